"""Trains on two processes, of which rank 0 loads the batches of both and sends them: HOW TREE
STEPS, under torchrun.

HOW: `accelerate` (its DataLoaderDispatcher) or `broadcast` (code of one's own).
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

BATCH = 4


class Tree(Dataset[torch.Tensor]):
    """Images of class folders, 32 × 32, each of which takes 20 ms more."""

    def __init__(self, root: str, length: int) -> None:
        self.paths, self.length = sorted(Path(root).glob("*/*.JPEG")), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index % len(self.paths)]) as image:
            pixels = np.asarray(image.convert("RGB").resize((32, 32)))
        time.sleep(0.02)
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255


def train_with_accelerate(tree: str, steps: int) -> None:
    """Rank 0 loads for all."""
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True)
    )
    model, optimizer = network()
    loader = DataLoader(Tree(tree, 2 * BATCH * steps), BATCH, num_workers=0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
    accelerator.end_training()


def train_with_broadcast(tree: str, steps: int) -> None:
    """Rank 0 loads, and sends each batch to the others."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    module, _ = network()
    model = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = (
        iter(DataLoader(Tree(tree, BATCH * steps), BATCH, num_workers=0)) if rank == 0 else None
    )
    for _ in range(steps):
        batch = next(batches) if batches is not None else torch.empty(BATCH, 3, 32, 32)
        distributed.broadcast(batch, 0)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    distributed.destroy_process_group()


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small network, and its optimizer."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    return model, torch.optim.SGD(model.parameters(), 0.1)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    {"accelerate": train_with_accelerate, "broadcast": train_with_broadcast}[sys.argv[1]](
        sys.argv[2], int(sys.argv[3])
    )
