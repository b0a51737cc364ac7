"""How much longer a small step of training computes on the CPU after a wait than without one.

    python benchmarks/after_waits.py [--rounds 5] [--steps 100]

The loop sleeps before each step, or waits for a thread that computes in Python, or does neither: in
turn, for so many steps each. CPU time of a step, over that without a wait of the same round.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Final

import torch

ROWS: Final = (300, 1000)
WAIT_S: Final = 0.01


def spin() -> None:
    """Compute in Python for the time of a wait."""
    until_s = time.thread_time() + WAIT_S
    while time.thread_time() < until_s:
        sum(range(200))


def for_thread() -> None:
    """Wait for a thread that computes."""
    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()


WAITS: Final[dict[str, Callable[[], None]]] = {
    "none": lambda: None,
    "sleep of 2 ms": lambda: time.sleep(0.002),
    "sleep of 10 ms": lambda: time.sleep(WAIT_S),
    "thread of 10 ms": for_thread,
}


def step_of(rows: int) -> Callable[[], None]:
    """A step of a small model on batches of so many rows."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    parts = [torch.randn(rows, 64) for _ in range(2)]

    def step() -> None:
        optimizer.zero_grad()
        torch.stack([model(part).square().mean() for part in parts]).sum().backward()
        optimizer.step()

    return step


def cpu_s(step: Callable[[], None], wait: Callable[[], None], steps: int) -> float:
    """Median of the CPU time of a step after such a wait."""
    found = []
    for _ in range(steps):
        wait()
        before_s = time.thread_time()
        step()
        found.append(time.thread_time() - before_s)
    return statistics.median(found)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| rows | wait | ms of CPU time | over none |\n|---:|---|---:|---:|")
    for rows in ROWS:
        step, rounds = step_of(rows), []
        cpu_s(step, WAITS["none"], options.steps)
        for _ in range(options.rounds):
            rounds.append({name: cpu_s(step, wait, options.steps) for name, wait in WAITS.items()})
        for name in WAITS:
            took = statistics.median(each[name] for each in rounds)
            over = statistics.median(each[name] / each["none"] for each in rounds)
            print(f"| {rows} | {name} | {took * 1e3:.2f} | {over:.2f} |")


if __name__ == "__main__":
    main()
