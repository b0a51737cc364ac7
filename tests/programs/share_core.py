"""Trains a small model on one core that another process keeps busy, with Python at two places of
each step.

share_core.py STEPS MS     Prints the seconds in which that Python had no core, by wall time and CPU time of the thread, and those
of the loop. After each step it sleeps, which is no wait for a core.
"""  # noqa: E501

import os
import subprocess
import sys
import time

import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader

steps, work_s = int(sys.argv[1]), float(sys.argv[2]) / 1000
waited_s = 0.0


def compute_for(seconds: float) -> None:
    """Python for so much CPU time."""
    global waited_s
    began, began_cpu = time.perf_counter(), time.thread_time()
    while time.thread_time() - began_cpu < seconds:
        sum(range(200))
    waited_s += time.perf_counter() - began - (time.thread_time() - began_cpu)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    model = nn.Linear(256, 1)
    optimizer = Descent(model.parameters(), 1e-9)
    began = time.perf_counter()
    for batch in DataLoader(torch.zeros(4 * steps, 256), batch_size=4):
        compute_for(work_s)
        optimizer.zero_grad()
        loss = model(batch)
        compute_for(work_s)
        loss.square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
    print(f"{waited_s:.3f} {time.perf_counter() - began:.3f}")


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as other:
        try:
            main()
        finally:
            other.kill()
