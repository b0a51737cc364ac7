"""A job of one process per GPU whose ranks exchange 16 MB per step by NCCL. Argument: steps. Rank 1
computes 50 ms late in Python.

Start it with torchrun. Prints, per rank, how many steps it made.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

LATE_S = 0.05


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = torch.nn.Linear(2048, 2048, bias=False, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.rand(256, 2048, device="cuda")
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        if rank == 1:
            time.sleep(LATE_S)
        gradient = model.weight.grad
        assert gradient is not None
        dist.all_reduce(gradient)
        optimizer.step()
        torch.cuda.synchronize()
    print(sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
