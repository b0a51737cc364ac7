"""A training with two workers on the CPU; each worker and the trainer print their threads, settings
of libraries, and cores.

Argument: the number of batches.
"""

import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset

try:
    import cv2
except ImportError:
    cv2 = None


def describe(who: str) -> str:
    pools = torch.get_num_threads(), cv2.getNumThreads() if cv2 else None
    return (
        f"{who}: {len(os.listdir('/proc/self/task'))} threads, pools {pools}, CPUs"
        f" {sorted(os.sched_getaffinity(0))}"
    )


class Numbers(Dataset):
    """Random numbers; the last sample of each worker describes it."""

    def __len__(self) -> int:
        return 4 * int(sys.argv[1])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        return torch.rand(8), describe("worker") if index >= len(self) - 8 else ""


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = set()
    for numbers, texts in DataLoader(Numbers(), batch_size=4, num_workers=2):
        optimizer.zero_grad()
        model(numbers).sum().backward()
        optimizer.step()
        said |= {*texts}
        # while the loader is at work: its threads end some time after it
        trainer = describe("trainer")
    print("\n".join(sorted(said)), trainer, f"{model.weight.sum().item():.9f}", sep="\n")
