"""The cost of single hooks in a process that they observe, in microseconds per call.

    python benchmarks/hook_cost.py [--json]

Each operation runs in a process of its own, alternately with and without the hooks, and the median
of the differences of the fastest runs of each pair counts. In a job each call costs more, because
the job has displaced the hooks from the processor's caches; for that see job_cost.py. Processor
time is measured: on a busy machine wall time gave negative costs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PAIRS = 5
SITE = Path(__file__).resolve().parents[1] / "ioprof" / "instrument" / "site"

PREPARE = """
import gc, queue, sys, time, timeit, threading
from concurrent.futures import Future, ThreadPoolExecutor
gc.disable()
def measured(call, number):
    return min(timeit.repeat(call, number=number, repeat=15, timer=time.process_time)) / number * 1e6
"""  # noqa: E501
TORCH = "import torch\nx = torch.ones(1)\n"
LINEAR = "class Empty(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
NESTED = """
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.weight = Empty(), torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        for _ in range(1000):
            self.inner(x)
        return x
model = Outer()
print(measured(lambda: model(x), 10) / 1000)
"""
OPERATIONS = {
    "call of a module within another": TORCH + LINEAR + NESTED,
    "outermost call of a model on the CPU": (
        TORCH + LINEAR + "model = Empty(); model.weight ="
        " torch.nn.Parameter(torch.ones(1))\nprint(measured(lambda: model(x), 2000))"
    ),
    "outermost call of a model on another device": (
        TORCH + LINEAR + "model = Empty(); model.weight = torch.nn.Parameter(torch.ones(1,"
        " device='meta'))\nprint(measured(lambda: model(x), 2000))"
    ),
    "training step of a linear model": TORCH
    + """
torch.set_num_threads(1)
model, x, y = torch.nn.Linear(8, 4), torch.ones(16, 8), torch.ones(16, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def step():
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print(measured(step, 200))
""",
    "call of a transform that is a module": (
        TORCH + LINEAR + "model = Empty()\nprint(measured(lambda: model(x), 2000))"
    ),
    "choice of the samples of a batch": TORCH
    + """
from torch.utils.data import DataLoader
iterator = iter(DataLoader([0] * 1000, batch_size=1, sampler=iter(int, 1)))
print(measured(iterator._next_index, 2000))
""",
    "result of a future outside of the loop": (
        "future = Future(); future.set_result(1)\nprint(measured(future.result, 5000))"
    ),
    "task of a thread pool": (
        """
pool = ThreadPoolExecutor(1)
def tasks():
    for future in [pool.submit(int) for _ in range(200)]:
        future.result()
print(measured(tasks, 5) / 200)
"""
    ),
    "item through a queue outside of the loop": (
        """
items = queue.Queue()
def pass_on():
    items.put(1); items.get()
print(measured(pass_on, 5000))
"""
    ),
    "garbage collection of the youngest": "print(measured(lambda: gc.collect(0), 2000))",
    "batch of ioprof.batches": TORCH
    + """
import ioprof, itertools
torch.optim.SGD([torch.nn.Parameter(x)], 0.1)
batches = iter(ioprof.batches(itertools.repeat(x)))
print(measured(lambda: next(batches), 2000))
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What single hooks cost.")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    for name, program in OPERATIONS.items():
        pairs = [
            (measured(program, recorded=True), measured(program, recorded=False))
            for _ in range(PAIRS)
        ]
        alone = statistics.median(without for _, without in pairs)
        added = statistics.median(hooked - without for hooked, without in pairs)
        if options.json:
            print(json.dumps({"operation": name, "alone_us": alone, "added_us": added}), flush=True)
        else:
            print(f"{name}: {added:+.2f} µs added to {alone:.2f}", flush=True)


def measured(program: str, *, recorded: bool) -> float:
    """Microseconds per call."""
    with tempfile.TemporaryDirectory() as spool:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        if recorded:
            variables |= {"IOPROF_SPOOL": spool, "PYTHONPATH": str(SITE)}
        ended = subprocess.run(
            [sys.executable, "-c", PREPARE + program],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        )
    return float(ended.stdout)


if __name__ == "__main__":
    main()
