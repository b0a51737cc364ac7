"""A DDP job on gloo with two ranks and a DataLoader whose batches go through its pipes: messages
within the job, and nothing else.

Arguments: method by which workers are started, tensors per batch as NumPy arrays through the pipe
(`pipe`) or in shared memory."""

import os
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[Any]):
    """Samples of 64 kB, of no file."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return np.full(16384, index, np.float32)


def as_it_is(samples: list[Any]) -> Any:
    """The samples themselves, which are pickled into the pipe of the workers."""
    return samples


def train(rank: int, port: int, method: str) -> None:
    """One rank."""
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16384, 16))
    for collate in (as_it_is, None):
        loader = DataLoader(
            Numbers(), 4, num_workers=2, collate_fn=collate, multiprocessing_context=method
        )
        for batch in loader:
            data = torch.as_tensor(np.stack(batch)) if isinstance(batch, list) else batch
            model(data).sum().backward()
    dist.all_reduce(torch.zeros(1 << 20))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["MASTER_PORT"]), sys.argv[1])
    else:
        import socket
        import subprocess

        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        variables = {**os.environ, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen([sys.executable, *sys.argv], env={**variables, "RANK": str(rank)})
            for rank in range(2)
        ]
        sys.exit(max(rank.wait() for rank in ranks))
