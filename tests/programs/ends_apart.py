"""A rank of two; rank 1 takes 1.5 s to end its interpreter, and rank 0, which has the store, ends
meanwhile.

python ends_apart.py RANK PORT
"""

import os
import sys
import time

import torch
import torch.distributed as dist


class Slow:
    """What is freed when the interpreter ends, and takes its time."""

    def __init__(self) -> None:
        self.sleep = time.sleep

    def __del__(self) -> None:
        self.sleep(1.5)


rank = sys.argv[1]
os.environ.pop("LOCAL_WORLD_SIZE", None)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2], RANK=rank, WORLD_SIZE="2")
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if rank == "1":
    slow = Slow()
else:
    time.sleep(0.7)
