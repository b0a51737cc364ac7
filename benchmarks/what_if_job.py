"""The job that `what_if.py` records and changes: images of a tree, torch's DataLoader, a network on
one core of the CPU.

    python benchmarks/what_if_job.py TREE '{"workers": 2, "batch": 8, ...}'

Settings, all with a default below: what of a job can be changed and predicted.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFile
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEFAULTS = {
    "workers": 1,
    "prefetch": 2,
    "batch": 8,
    "samples": 320,
    "epochs": 1,
    "persistent": False,
    "decodes": 1,  # times that each image is decoded; 0: it was decoded before
    "copies": 1,  # of what was decoded before, after reading its file: what else `convert` does
    "resizes": 1,  # 0: it was resized before
    # the same images elsewhere, from which those are made that were decoded or resized before
    "source": (""),
    "synthetic": False,  # whether samples are there already, so that nothing is read
    "computes": True,  # whether the loop computes anything
    "own_ms": 0.0,  # time without computation in the dataset's own code, per sample
    "layers": 2,  # of the network: its computation is proportional to them
    "pause_ms": 0.0,  # time without computation in the loop, per batch
    "real_time": False,  # whether loop and workers come before all other programs
}
SIZE = 160


class Tree(Dataset):
    """Images of class folders, in order, from the beginning again where there are too few."""

    def __init__(self, root: str, settings: dict) -> None:
        self.paths = sorted(Path(root).glob("*/*.JPEG"))
        self.settings = settings
        # made before the first epoch, for what a run shall not do for each sample
        self.decoded: dict[Path, Image.Image] = {}
        self.resized: dict[Path, Image.Image] = {}
        if settings["decodes"] and settings["resizes"] and not settings["synthetic"]:
            return
        for path in self.paths[: settings["samples"]]:
            self.decoded[path] = Image.open(
                Path(settings["source"]) / path.relative_to(root)
            ).convert("RGB")
            self.resized[path] = resized(self.decoded[path])
        self.tensor = as_tensor(next(iter(self.resized.values())))

    def __len__(self) -> int:
        return self.settings["samples"]

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.settings["synthetic"]:
            return self.tensor
        path = self.paths[index % len(self.paths)]
        for _ in range(self.settings["decodes"]):
            image = Image.open(path).convert("RGB")
        for _ in range(0 if self.settings["decodes"] else self.settings["copies"]):
            # reads as decoding does, in as many pieces
            with (
                path.open("rb") as file,
                Image.open(file),
            ):
                while file.read(ImageFile.MAXBLOCK):
                    pass
            image = self.decoded[path].copy()
        small = self.resized.get(path)
        for _ in range(self.settings["resizes"]):
            small = resized(image)
        if self.settings["own_ms"]:
            time.sleep(self.settings["own_ms"] / 1e3)
        return as_tensor(small)


def resized(image: Image.Image) -> Image.Image:
    """A square of it."""
    return image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def as_tensor(image: Image.Image) -> torch.Tensor:
    """Its channels first, 0 to 1."""
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


class Network(nn.Module):
    """Convolutions of equal cost."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 5, 4)
        self.layers = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(layers))
        self.last = nn.Linear(16, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.first(images)
        for layer in self.layers:
            found = layer(found).relu()
        return self.last(found.mean((2, 3)))


def main() -> None:
    settings = DEFAULTS | json.loads(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if settings["real_time"]:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    network = Network(settings["layers"])
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    more = (
        {"prefetch_factor": settings["prefetch"], "persistent_workers": settings["persistent"]}
        if settings["workers"]
        else {}
    )
    loader = DataLoader(
        Tree(sys.argv[1], settings), settings["batch"], num_workers=settings["workers"], **more
    )
    for _ in range(settings["epochs"]):
        for images in loader:
            if settings["computes"]:
                optimizer.zero_grad()
                network(images).square().mean().backward()
                optimizer.step()
            if settings["pause_ms"]:
                time.sleep(settings["pause_ms"] / 1e3)


if __name__ == "__main__":
    main()
