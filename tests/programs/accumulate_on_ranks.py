"""Two ranks of DistributedDataParallel that exchange gradients once for several batches
(`no_sync`), on the CPU.

accumulate_on_ranks.py STEPS HOW     HOW: staggered, each rank collects the garbage of many objects in every tenth step, and not in
                                     the same one as the other; none

Prints, by rank, how long collecting and the whole loop took, and of each backward pass that
exchanges when it began and ended.
"""  # noqa: E501

import gc
import json
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from descent import Descent
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

num_steps, how = int(sys.argv[1]), sys.argv[2]
ACCUMULATED, EVERY = 4, 10


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    )
    optimizer = Descent(model.parameters(), lr=0.01)
    kept = (
        [
            {"path": str(number), "boxes": [(number, 1.0), (number, 2.0)]}
            for number in range(300_000)
        ]
        if how != "none"
        else []
    )
    gc.collect()
    gc.disable()
    rows = num_steps * ACCUMULATED * 32
    loader = iter(DataLoader(TensorDataset(torch.randn(rows, 256), torch.randn(rows, 1)), 32))
    passes, collecting = [], 0.0
    dist.barrier()
    began = time.perf_counter()
    for step in range(num_steps):
        for part in range(ACCUMULATED):
            inputs, targets = next(loader)
            exchanges = part == ACCUMULATED - 1
            with nullcontext() if exchanges else model.no_sync():
                loss = nn.functional.mse_loss(model(inputs), targets) / ACCUMULATED
                started = time.monotonic_ns()
                loss.backward()
                if exchanges:
                    passes.append((started, time.monotonic_ns()))
        optimizer.step()
        optimizer.zero_grad()
        if how != "none" and (step + rank * EVERY // 2) % EVERY == EVERY // 2 - 1:
            started_s = time.perf_counter()
            gc.collect()
            collecting += time.perf_counter() - started_s
    found = {
        "rank": rank,
        "collecting_s": collecting,
        "seconds": time.perf_counter() - began,
        "passes": passes,
        "kept": len(kept),
    }
    # under torchrun's `python -u`, print() would write the end of the line by itself
    sys.stdout.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


main()
