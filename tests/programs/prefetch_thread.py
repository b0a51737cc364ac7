"""A training loop whose batches a thread of its own makes, two ahead, in a deque that a Condition guards; no loader.

Arguments: TREE STEPS SKIPPED. The thread decodes SKIPPED images for each one that it uses, as one does who reads a video from its
start. Prints the seconds of waiting for batches, the seconds of the loop, and the last loss.
"""

import sys
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from PIL import Image
from torch import nn

BATCH, DEPTH = 4, 2


class Prefetcher:
    """Makes batches in a thread, and hands them out in order."""

    def __init__(self, paths: list[Path], steps: int, skipped: int) -> None:
        self.paths, self.steps, self.skipped = paths, steps, skipped
        self.ready: deque[torch.Tensor] = deque()
        self.changed = threading.Condition()
        threading.Thread(target=self.run, name="prefetch", daemon=True).start()

    def sample(self, number: int) -> torch.Tensor:
        """The corner of the last of some images."""
        for place in range(number, number + self.skipped + 1):
            with Image.open(self.paths[place % len(self.paths)]) as image:
                image.load()  # decode
                found = image.convert("RGB")
        return torch.from_numpy(np.asarray(found)[:64, :64].copy()).permute(2, 0, 1).float() / 255

    def run(self) -> None:
        """What the thread does."""
        for step in range(self.steps):
            batch = torch.stack([self.sample(step * BATCH + place) for place in range(BATCH)])
            with self.changed:
                while len(self.ready) >= DEPTH:
                    self.changed.wait()
                self.ready.append(batch)
                self.changed.notify_all()

    def next(self) -> torch.Tensor:
        """The next batch."""
        with self.changed:
            while not self.ready:
                self.changed.wait()  # wait
            self.changed.notify_all()
            return self.ready.popleft()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    steps = int(sys.argv[2])
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    optimizer = Descent(model.parameters(), 0.1)
    prefetcher = Prefetcher(sorted(Path(sys.argv[1]).glob("*/*.JPEG")), steps, int(sys.argv[3]))
    began, waiting = time.perf_counter(), 0.0
    for _ in range(steps):
        start = time.perf_counter()
        images = prefetcher.next()
        waiting += time.perf_counter() - start
        loss = nn.functional.cross_entropy(model(images), torch.arange(BATCH) % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{waiting:.3f} {time.perf_counter() - began:.3f} {loss.item():.9f}")
