"""The job that job_cost.py measures: torch's DataLoader, Pillow's decode, a small network on the
CPU.

    python benchmarks/training.py TREE WORKERS BEGIN SECONDS [light]

Samples are processed as in torchvision's reference training for ImageNet, with its batch size: a
random crop, resized to 224 x 224, randomly flipped, as normalised floats. With `light` it mainly
decodes, in batches of 16: the minimum work per image, so that the share of the recording cost is
the largest.

In each process the memory for images starts at a random address. The time of the same decode
depends on the address, which depends on the environment and the loaded libraries in the same way in
each run, so that averaging over runs does not remove the effect.

Prints, for SECONDS from the monotonic time BEGIN on (0: after the first epoch), including the time
between epochs: samples per second, and CPU microseconds per sample of this process, of its workers,
and of its parent.
"""

import math
import os
import random
import secrets
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, SIZE = 32, 224
MEAN, DEVIATION = (
    torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
)
LIGHT_BATCH, LIGHT_SIZE = 16, 160


displaced: list[bytearray] = []


def displace(_worker: int = -1) -> None:
    """Allocate unused memory of a random size that does not depend on a seed: later allocations
    start at a random address.
    """
    displaced.append(bytearray(1 << 20 | secrets.randbelow(1 << 12) << 4))


class Tree(Dataset[tuple[torch.Tensor, int]]):
    """Images of class folders."""

    def __init__(self, root: str, is_light: bool) -> None:
        self.paths = sorted(Path(root).glob("*/*.JPEG"))
        self.is_light = is_light

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            picture = image.convert("RGB")
        return (little if self.is_light else usual)(picture), index % 10


def usual(picture: Image.Image) -> torch.Tensor:
    """A random crop of 8 to 100 % of the area with aspect ratio 3:4 to 4:3, float32, 3 x 224 x
    224.
    """
    picture = picture.crop(random_part(*picture.size)).resize(
        (SIZE, SIZE), Image.Resampling.BILINEAR
    )
    if random.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
    return pixels.float().div_(255).sub_(MEAN).div_(DEVIATION)


def random_part(width: int, height: int) -> tuple[int, int, int, int]:
    """The crop of torchvision's RandomResizedCrop, except that the whole image is used if ten
    attempts fail.
    """
    for _ in range(10):
        area, shape = (
            width * height * random.uniform(0.08, 1),
            math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3))),
        )
        wide, high = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - high)
            return left, top, left + wide, top + high
    return 0, 0, width, height


def little(picture: Image.Image) -> torch.Tensor:
    """The whole image, uint8, 3 x 160 x 160."""
    return torch.from_numpy(np.array(picture.resize((LIGHT_SIZE, LIGHT_SIZE)))).permute(2, 0, 1)


def main() -> None:
    displace()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    is_light = sys.argv[5:] == ["light"]
    data, batch = Tree(sys.argv[1], is_light), LIGHT_BATCH if is_light else BATCH
    loader = DataLoader(
        data,
        batch,
        shuffle=True,
        num_workers=int(sys.argv[2]),
        persistent_workers=True,
        worker_init_fn=displace,
    )
    begin, seconds = float(sys.argv[3]), float(sys.argv[4])
    started, start, cpu_us, samples, num_epochs = False, 0.0, (0.0, 0.0, 0.0), 0, 0
    while True:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(
                model(images.float() / 255 if is_light else images), labels
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.monotonic()
            if not started and now >= begin and num_epochs > 0:
                started, start, cpu_us = True, now, cpu_by_process()
            elif started:
                samples += len(images)
                if now - start >= seconds:
                    taken = [
                        after - before
                        for before, after in zip(cpu_us, cpu_by_process(), strict=True)
                    ]
                    print(samples / (now - start), *(us / samples for us in taken))
                    return
        num_epochs += 1


def cpu_by_process() -> tuple[float, float, float]:
    """CPU microseconds of this process, of its running children, and of its parent."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return (
        microseconds([os.getpid()]),
        microseconds(map(int, children)),
        microseconds([os.getppid()]),
    )


def microseconds(pids: Iterable[int]) -> float:
    """CPU time of these processes from their CPU-time clocks (man clock_getcpuclockid)."""
    return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in pids) / 1e3


if __name__ == "__main__":
    main()
