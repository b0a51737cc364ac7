"""One rank of a small data-parallel training that fails in its first attempt: STEPS RANK HOW.

HOW is `exit` (with 7), `kill` (by SIGKILL), or `memory` (it takes memory until it is killed). In
later attempts nothing fails. A worker makes the batches, which takes most of the time. Takes its
rank from the variables of torchrun, or of srun.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

steps, failing, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for ours, theirs in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")):
    os.environ.setdefault(ours, os.environ.get(theirs, "0"))


class Slow(Dataset):
    """Samples that take 10 ms each."""

    def __len__(self) -> int:
        return 4 * steps

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass
        return torch.zeros(256)


def fail() -> None:
    """End as was asked for."""
    if how == "exit":
        sys.exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1 << 24)))


def main() -> None:
    """Train, or fail in the middle."""
    torch.set_num_threads(1)
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    store, rank, ranks = next(dist.rendezvous("env://"))
    # The launcher keeps its store: ranks of a later attempt would find the addresses of the first.
    own = dist.PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(DataLoader(Slow(), batch_size=4, num_workers=1)):
        if (rank, attempt, step) == (failing, 0, steps // 2):
            fail()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
