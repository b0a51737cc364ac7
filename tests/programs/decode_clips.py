"""Trains on one frame of each clip, for which PyAV decodes all frames before it; prints how many it
decoded and used. Arguments: folder, steps.
"""

import json
import sys
from pathlib import Path

import av
import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset

FRAMES, WIDTH, BATCH = 24, 160, 2
folder, steps = Path(sys.argv[1]), int(sys.argv[2])


def write_clip(path: Path) -> None:
    randomly = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width = stream.height = WIDTH
        for _ in range(FRAMES):
            pixels = randomly.integers(0, 255, (WIDTH, WIDTH, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


class Clips(Dataset[torch.Tensor]):
    """The last frame of each."""

    def __len__(self) -> int:
        return steps * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        with av.open(str(folder / "clip.mp4")) as container:
            *_, last = container.decode(video=0)
            return torch.from_numpy(last.to_ndarray(format="rgb24")).float().flatten()


def main() -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_clip(folder / "clip.mp4")
    model = nn.Linear(WIDTH * WIDTH * 3, 1)
    optimizer = Descent(model.parameters(), lr=0.01)
    for batch in DataLoader(Clips(), BATCH, num_workers=1):
        optimizer.zero_grad()
        model(batch / 255).square().mean().backward()
        optimizer.step()
    print(json.dumps({"decoded": FRAMES * BATCH * steps, "used": BATCH * steps}))


main()
