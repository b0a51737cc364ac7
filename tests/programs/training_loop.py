"""What the programs train_with_*.py share: pixels of an image, a small network on the CPU, and a
line that says all that was seen.

Each program has two uses: `prepare IMAGES DATA` brings the images of a tree into the library's
format, and `train DATA WORKERS STEPS [TRANSFORM_MS] ...` trains on it and prints a number that
depends on every sample and their order, the loss, and the state of all random number generators.
"""

import hashlib
import io
import pickle
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from PIL import Image
from torch import nn


def images(tree: str) -> list[Path]:
    """The images of a tree, in order."""
    return sorted(Path(tree).glob("*/*.JPEG"))


def pixels(image: Image.Image | bytes) -> torch.Tensor:
    """An image as a tensor of 3 × 32 × 32."""
    if isinstance(image, bytes):
        image = Image.open(io.BytesIO(image))
    return (
        torch.from_numpy(np.asarray(image.convert("RGB").resize((32, 32))).copy())
        .permute(2, 0, 1)
        .float()
        / 255
    )


def augment(sample: torch.Tensor) -> torch.Tensor:
    """A transform that takes as long as the command line says, and draws a random number."""
    time.sleep(TRANSFORM_MS / 1000)
    return sample.flip(-1) if random.random() < 0.5 else sample


def network() -> nn.Module:
    """A small network for images of 3 × 32 × 32."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )


def seed() -> None:
    """Make the program the same in every run."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


def say(*numbers: float) -> None:
    """Print numbers, and a digest of the state of the random number generators."""
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    say_line(
        *(f"{number:.9f}" for number in numbers),
        hashlib.sha256(pickle.dumps(states)).hexdigest()[:16],
    )


def say_line(*words: object) -> None:
    """Print a line in one piece: torchrun starts ranks with `python -u`, where `print` writes word
    by word into the same pipe."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def train(epoch: Iterable, steps: int) -> None:
    """Train for that many steps; `epoch` gives images and labels, and is iterated again and
    again."""
    model = network()
    optimizer = Descent(model.parameters(), 0.1)
    seen, done = 0.0, 0
    while done < steps:
        for pictures, labels in epoch:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen = seen * 0.9 + pictures.double().sum().item() + labels.sum().item()
            done += 1
            if done == steps:
                break
    say(seen, loss.item())


TRANSFORM_MS = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
