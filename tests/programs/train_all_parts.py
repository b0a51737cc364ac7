"""A job of one or more ranks that does a bit of everything, and writes down what it did and what it
computed.

    torchrun --nproc-per-node 2 train_all_parts.py FOLDER

`FOLDER/RANK.json` gets how often each part happened, which is what a recording must show, and
results that must be the same with and without one. It runs under any torch since 2.1.
"""

import hashlib
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 8
BATCH = 4


class Photographs(Dataset):
    """The same image again and again, with random numbers added."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, number: int) -> torch.Tensor:
        with Image.open(self.path) as image:
            pixels = np.asarray(image.convert("RGB").resize((8, 8)), dtype=np.float32)
        return (
            torch.from_numpy(pixels.reshape(-1)) / 255
            + number / 100
            + random.random()
            + torch.rand(())
        )


def save_distributed(model: torch.nn.Module, folder: Path) -> bool:
    """By torch.distributed.checkpoint, if this torch has a part that saves without GPUs; whether it
    has."""
    try:
        from torch.distributed import checkpoint
    except ImportError:
        return False
    save = getattr(checkpoint, "save", None) or getattr(checkpoint, "save_state_dict", None)
    if save is None:
        return False
    save({"model": model.state_dict()}, storage_writer=checkpoint.FileSystemWriter(str(folder)))
    return True


def main() -> None:
    """Train for one epoch, with a collective in each step, and save the model in two ways."""
    out = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", "0"))
    out.mkdir(parents=True, exist_ok=True)
    image = out / f"{rank}.jpg"
    Image.new("RGB", (64, 64), (200, 100, 50)).save(image)
    random.seed(rank)
    torch.manual_seed(rank)
    dist.init_process_group("gloo")
    network = torch.nn.Sequential(torch.nn.Linear(192, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = hashlib.sha256()
    num_collectives = 0
    for batch in DataLoader(Photographs(image), BATCH, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), torch.ones(BATCH, 1))
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        num_collectives += 1
        seen.update(np.float32(total.item()).tobytes() + batch.numpy().tobytes())
    dist.barrier()
    num_collectives += 1
    torch.save(network.state_dict(), str(out / f"{rank}.pt"))
    num_checkpoints = 1 + save_distributed(network, out / "distributed")
    parameters = b"".join(value.detach().numpy().tobytes() for value in network.parameters())
    result = {
        "counts": {
            "steps": STEPS,
            "waits": STEPS,
            "fetches": STEPS,
            "decodes": STEPS * BATCH,
            "forward": STEPS,
            "backward": STEPS,
            "optimizer": STEPS,
            "gradients": STEPS,
            "collectives": num_collectives,
            "checkpoints": num_checkpoints,
        },
        "batches and losses": seen.hexdigest(),
        "parameters": hashlib.sha256(parameters).hexdigest(),
        "random numbers": [
            random.random(),
            float(torch.rand(())),
            float(np.random.RandomState(0).rand()),
        ],
        "torch": torch.__version__,
    }
    (out / f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
