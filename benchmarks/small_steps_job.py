"""Training loops of small steps, for small_steps.py.

    python benchmarks/small_steps_job.py KIND SECONDS START

Prints steps per second and microseconds of CPU time per step, of about so many seconds from START
on, by the monotonic clock.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

BATCH = 128
LAST_WAIT_S = 0.5
"""Between the last exchange and its end, for the other rank."""
WARM_UP = 500
"""Steps, twice: before any are counted, and to learn how long they take."""


def dqn() -> Iterator[None]:
    """A deep Q network that plays one step of an environment of a few numbers, and trains after
    each tenth; a step is one of the environment.
    """
    random = np.random.default_rng(0)
    network, target = (
        nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))
        for _ in range(2)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=2.5e-4)
    size = 10_000
    seen, after = random.normal(size=(2, size, 4)).astype(np.float32)
    actions, rewards = random.integers(0, 2, (size, 1)), random.normal(size=size).astype(np.float32)
    observed = seen[0]
    for step in count():
        if random.random() < 0.05:
            action = int(random.integers(0, 2))
        else:
            values = network(torch.from_numpy(observed[None]))
            action = int(torch.argmax(values, dim=1)[0])
        place = step % size
        observed = np.tanh(observed * 0.99 + (action - 0.5) * 0.1).astype(np.float32)
        seen[place], actions[place], rewards[place] = observed, action, observed.sum()
        if step % 10 == 0:
            chosen = random.integers(0, size, BATCH)
            with torch.no_grad():
                best, _ = target(torch.from_numpy(after[chosen])).max(dim=1)
                wanted = torch.from_numpy(rewards[chosen]) + 0.99 * best
            values = network(torch.from_numpy(seen[chosen]))
            values = values.gather(1, torch.from_numpy(actions[chosen])).squeeze()
            loss = nn.functional.mse_loss(wanted, values)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 500 == 0:
            target.load_state_dict(network.state_dict())
        yield


def ppo() -> Iterator[None]:
    """Actor and critic: 128 steps of 4 environments, then 4 epochs of 4 minibatches; a step is one
    of the environments.
    """
    actor = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    critic = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
    states, chosen, before = torch.zeros(128, 4, 4), torch.zeros(128, 4), torch.zeros(128, 4)
    values, observed = torch.zeros(128, 4), torch.randn(4, 4)
    while True:
        for step in range(128):
            states[step] = observed
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=actor(observed))
                action = policy.sample()
                values[step] = critic(observed).flatten()
            chosen[step], before[step] = action, policy.log_prob(action)
            observed = torch.tanh(observed + (action - 0.5)[:, None] * 0.1)
            yield
        flat, returns = states.reshape(-1, 4), values.reshape(-1) + 0.1
        for _ in range(4):
            for part in torch.randperm(512).split(BATCH):
                policy = torch.distributions.Categorical(logits=actor(flat[part]))
                ratio = (policy.log_prob(chosen.reshape(-1)[part]) - before.reshape(-1)[part]).exp()
                gained = (critic(flat[part]).flatten() - returns[part]) ** 2
                loss = gained.mean() - ratio.clamp(0.8, 1.2).mean() - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()


def linear() -> Iterator[None]:
    """A linear model of 8 features by SGD."""
    model, x, y = nn.Linear(8, 4), torch.randn(16, 8), torch.randn(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while True:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        yield


def rnn() -> Iterator[None]:
    """A recurrent network written by hand: a call of its cell for each of 16 characters."""

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.output = nn.Linear(60 + 128, 128), nn.Linear(128, 18)

        def forward(
            self, x: torch.Tensor, state: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            state = torch.tanh(self.hidden(torch.cat((x, state), 1)))
            return self.output(state), state

    cell, letters, wanted = Cell(), torch.randn(16, 1, 60), torch.tensor([3])
    optimizer = torch.optim.SGD(cell.parameters(), 0.005)
    while True:
        state = torch.zeros(1, 128)
        for letter in letters:
            output, state = cell(letter, state)
        optimizer.zero_grad()
        nn.functional.cross_entropy(output, wanted).backward()
        optimizer.step()
        yield


def lbfgs() -> Iterator[None]:
    """L-BFGS with a closure that computes the loss."""
    model, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(64, 8)
    y = x.sum(1, keepdim=True).sin()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    while True:
        optimizer.step(closure)
        yield


def ranks() -> Iterator[None]:
    """A thousand steps per second in two ranks, which exchange gradients by hand."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    x, y = torch.randn(32, 16), torch.randn(32, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while True:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        yield


KINDS: dict[str, Callable[[], Iterator[None]]] = {
    each.__name__: each for each in (dqn, ppo, linear, rnn, lbfgs, ranks)
}


def run(kind: str, seconds: float, start_s: float) -> tuple[float, float]:
    """Steps per second, and microseconds of CPU time per step."""
    torch.set_num_threads(1)
    if kind == "ranks":
        dist.init_process_group("gloo")
    steps = KINDS[kind]()
    timed(steps, WARM_UP)
    rate = timed(steps, WARM_UP)[0]
    before = max(0.0, start_s - time.monotonic())
    wanted = torch.tensor([int(before * rate), int(seconds * rate)])
    if kind == "ranks":  # which must make as many each
        dist.broadcast(wanted, 0)
    timed(steps, int(wanted[0]))
    found = timed(steps, int(wanted[1]))
    if kind == "ranks":  # else one that ends first may fail the other
        dist.barrier()
        # and where both close at once, one ends at times in a thread of Gloo (3 of 16 runs)
        time.sleep(LAST_WAIT_S)
        dist.destroy_process_group()
    return found


def timed(steps: Iterator[None], number: int) -> tuple[float, float]:
    """The same of the next so many steps."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(number):
        next(steps)
    elapsed_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    return number / elapsed_s, cpu_s / max(1, number) * 1e6


def main() -> None:
    rate, cpu_us = run(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
    if int(os.environ.get("RANK", "0")) == 0:
        print(rate, cpu_us)


if __name__ == "__main__":
    main()
