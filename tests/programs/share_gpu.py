"""Two ranks that train on one device: DistributedDataParallel over gloo, on photographs.

torchrun --nproc-per-node 2 share_gpu.py FOLDER STEPS
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from descent import Descent
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH, SIZE = 32, 96


class Photographs(Dataset[torch.Tensor]):
    """Decoded when they are asked for, again and again where there are too few."""

    def __init__(self, folder: str, samples: int) -> None:
        found = sorted(Path(folder).rglob("*"))
        self.paths = [path for path in found if path.suffix.lower() in (".jpg", ".jpeg")]
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index % len(self.paths)]) as image:
            small = image.convert("RGB").resize((SIZE, SIZE))
        return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)


def main() -> None:
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(3 * SIZE * SIZE, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = Descent(parallel.parameters(), lr=0.01)
    steps = int(sys.argv[2])
    data = Photographs(sys.argv[1], steps * BATCH * dist.get_world_size())
    sampler = DistributedSampler(data, shuffle=False)
    for batch in DataLoader(
        data, BATCH, sampler=sampler, num_workers=2, pin_memory=device != "cpu"
    ):
        optimizer.zero_grad()
        rows = batch.to(device, non_blocking=True).float() / 255
        parallel(rows).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    print(os.environ["RANK"])


main()
