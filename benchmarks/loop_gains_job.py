"""A training loop without a loader, for loop_gains.py: `loop_gains_job.py CAUSES STEPS`. CAUSES:
`host`, `decode`, both, or `none`.

Prints the mean time of a steady step in milliseconds. Under torchrun its ranks exchange gradients.
"""

import io
import os
import sys
import time

import numpy as np
import torch
from PIL import Image
from torch import distributed, nn

SIZE = 512
SAMPLES = 256
IMAGES = 6
WARMUP = 0.1


def encoded() -> bytes:
    """One image as JPEG."""
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (400, 500, 3), np.uint8)).save(
        out, "JPEG", quality=90
    )
    return out.getvalue()


def python() -> int:
    """Some 13 ms of Python."""
    return sum(number * number % 7 for number in range(200_000))


def main(causes: str, steps: int) -> None:
    """Train, and print the time of a step."""
    model: nn.Module = nn.Sequential(
        nn.Linear(SIZE, 4 * SIZE), nn.ReLU(), nn.Linear(4 * SIZE, SIZE)
    )
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        torch.set_num_threads(1)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer, image, began = torch.optim.SGD(model.parameters(), 1e-3), encoded(), 0.0
    for step in range(steps):
        if step == int(WARMUP * steps):
            began = time.perf_counter()
        batch = torch.randn(SAMPLES, SIZE)
        if "host" in causes:
            python()
        if "decode" in causes:
            for _ in range(IMAGES):
                Image.open(io.BytesIO(image)).convert("RGB")
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sys.stdout.write(f"{(time.perf_counter() - began) / (steps - int(WARMUP * steps)) * 1e3}\n")


main(sys.argv[1], int(sys.argv[2]))
