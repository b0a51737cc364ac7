"""A training script that knows nothing of ioprof: images of a tree, torch's DataLoader, a small
network on the CPU.

Arguments: TREE WORKERS STEPS. Prints the sum of all pixels that it saw, which depends on every
sample and on their order.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tree(Dataset):
    """Images of class folders, 32 × 32."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(Path(root).glob("*/*.JPEG"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            pixels = np.asarray(image.convert("RGB").resize((32, 32)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255, index % 2


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    optimizer = Descent(model.parameters(), 0.1)
    loader = DataLoader(Tree(sys.argv[1]), batch_size=4, shuffle=True, num_workers=int(sys.argv[2]))
    seen, steps = 0.0, 0
    while steps < int(sys.argv[3]):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen = seen * 0.9 + images.sum().item()
            steps += 1
    print(f"{seen:.6f} {loss.item():.9f}")
