"""Loops that call their model in evaluation mode without gradients, each for a reason of its own,
which is the argument.

python evaluating.py evaluation | targets | playing | loader | search | endless
"""

import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import ioprof

STEPS, EVERY, PASSES, BATCH = 12, 4, 3, 8


class Net(nn.Module):
    """Takes 5 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        result: torch.Tensor = self.layer(x)
        return result


def evaluate(net: Net, size: int = BATCH) -> None:
    """Make batches in the loop and evaluate the model on them."""
    with ioprof.span("evaluate"), torch.no_grad():
        net.eval()
        for _ in range(PASSES):
            net(torch.ones(size, 4))
            time.sleep(0.005)
    net.train()


def evaluate_loader(net: Net, loader: DataLoader[torch.Tensor]) -> None:
    """As the examples of libraries do: gradients are switched off for the model's call alone."""
    net.eval()
    for batch in loader:
        with torch.no_grad():
            net(batch)


def search(net: Net) -> None:
    """Look for hard examples with the model in training mode; what it is given is made here."""
    with ioprof.span("whole search"), torch.no_grad():
        for _ in range(PASSES):
            net(torch.ones(BATCH, 4))
            time.sleep(0.005)


class Endless(DataLoader[torch.Tensor]):
    """Starts its workers when it is made, and again when it is reset, and begins anew by itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        for _ in range(EVERY):
            try:
                yield next(self.iterator)
            except StopIteration:
                return

    def reset(self) -> None:
        """Begin anew."""
        self.iterator = self._get_iterator()


def train_endlessly(net: Net, optimizer: torch.optim.Optimizer) -> None:
    """Train in epochs, evaluate a copy of the model after each, and gather gradients of two
    batches.
    """
    copy = deepcopy(net).eval()
    training = Endless([torch.ones(4)] * STEPS * BATCH, BATCH, num_workers=1)
    held_out = Endless([torch.ones(4)] * STEPS * BATCH, BATCH, num_workers=1)
    time.sleep(0.5)  # the job's own start, longer than that of the workers
    for epoch in range(2):
        if epoch:
            training.reset()
        for number, batch in enumerate(training):
            net(batch).square().mean().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        with torch.inference_mode():
            for batch in held_out:
                copy(batch)


def batches() -> Iterator[torch.Tensor]:
    """Made by the loop itself."""
    for _ in range(STEPS):
        yield torch.ones(BATCH, 4)


def main() -> None:
    """Train."""
    net, teacher, how = Net(), Net().eval(), sys.argv[1]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if how == "endless":
        train_endlessly(net, optimizer)
        return
    held_out = DataLoader([torch.ones(4)] * PASSES * BATCH, BATCH)
    training = DataLoader([torch.ones(4)] * STEPS * BATCH, BATCH)
    for step, batch in enumerate(training if how == "loader" else batches()):
        if how == "targets":
            with torch.no_grad():
                teacher.train()(batch)
                teacher.eval()(batch)
        net.train()
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == EVERY - 1 and how == "evaluation":
            evaluate(net)
        elif step % EVERY == EVERY - 1 and how == "playing":
            evaluate(net, 1)
        elif step % EVERY == EVERY - 1 and how == "search":
            search(net)
        elif step % EVERY == EVERY - 1 and how == "loader":
            evaluate_loader(net, held_out)


if __name__ == "__main__":
    main()
