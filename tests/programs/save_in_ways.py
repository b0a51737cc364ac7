"""Trains a small network beside a large state, and saves that every few steps; prints what each save
took of the loop by its own stopwatch, and its bytes.

save_in_ways.py HOW STEPS FOLDER [WEIGHTS]     HOW: torch, distributed, async, safetensors, pickle (a new file, fsync, rename),
                gzip (the same, compressed), accelerate (all of a state); predictions: files that are written and not kept.
                WEIGHTS: a file of safetensors that the state is loaded from by map, and batches are skipped as on a resume
"""  # noqa: E501

import gzip
import importlib
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

how, num_steps, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
folder.mkdir(parents=True, exist_ok=True)
EVERY, ROWS, SKIPPED = 4, 4_000_000, 5
futures: list[Any] = []
accelerators: list[Any] = []


def keep(path: Path, opened: Any, content: Any, dump: Any) -> None:
    """By the usual way to be sure that a file is whole."""
    with opened as file:
        dump(content, file)
    with open(path.with_suffix(".new"), "rb+") as written:
        os.fsync(written.fileno())
    path.with_suffix(".new").rename(path)


def save(state: dict[str, torch.Tensor], number: int) -> None:
    path = folder / f"{number}.model"
    if how == "torch":
        torch.save(state, path)
    elif how == "safetensors":
        from safetensors.torch import save_file

        save_file(state, path)
    elif how == "distributed":
        from torch.distributed import checkpoint

        checkpoint.save(state, checkpoint_id=path, no_dist=True)
    elif how == "async":
        from torch.distributed import checkpoint

        futures.append(checkpoint.async_save(state, checkpoint_id=path, no_dist=True))
    elif how == "accelerate":
        accelerators[0].save_state(str(path))
    elif how == "predictions":
        np.save(path, state["weight"].numpy())
    else:
        arrays = {name: value.numpy() for name, value in state.items()}
        new = path.with_suffix(".new")
        opened = gzip.open(new, "wb", 1) if how == "gzip" else open(new, "wb")  # noqa: SIM115
        keep(path, opened, arrays, pickle.dump)


def main() -> None:
    torch.manual_seed(0)
    if how in ("distributed", "async"):
        importlib.import_module("torch.distributed.checkpoint")  # which takes seconds
    if how == "safetensors":
        importlib.import_module("safetensors.torch")
    model = nn.Linear(256, 1)
    state = {"weight": torch.arange(ROWS, dtype=torch.int64)}
    first = 0
    if len(sys.argv) > 4:
        from safetensors import safe_open

        with safe_open(sys.argv[4], "pt") as weights:
            state["weight"].copy_(weights.get_tensor("weight"))
        first = SKIPPED
    optimizer = Descent(model.parameters(), lr=0.01)
    if how == "accelerate":
        from accelerate import Accelerator

        accelerators.append(Accelerator(cpu=True))
        accelerators[0].prepare(nn.Linear(2000, 2000))
    loader = DataLoader(
        TensorDataset(torch.randn(num_steps * 32, 256), torch.randn(num_steps * 32, 1)),
        batch_size=32,
    )
    took = []
    for step, (inputs, targets) in enumerate(loader):
        if step < first:
            continue
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if step % EVERY == EVERY - 1:
            if futures:
                futures.pop().result()
            started = time.perf_counter()
            save(state, step)
            took.append(time.perf_counter() - started)
    for future in futures:
        future.result()
    sizes = [
        sum(path.stat().st_size for path in (found.rglob("*") if found.is_dir() else [found]))
        for found in sorted(folder.glob("*.model*"))
    ]
    print(json.dumps({"took_s": took, "bytes": sizes, "steps": num_steps}))


main()
