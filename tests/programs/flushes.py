"""Trains a tiny model and waits in each step until a record of it is on storage; prints how long
that took by its own stopwatch.

flushes.py HOW STEPS FOLDER     HOW: log, a line of a file; database, a row of a database of SQLite; checkpoint, the weights, in
                                every fourth step, by the usual way: a new file, fsync, rename, fsync of the folder
"""  # noqa: E501

import json
import os
import sqlite3
import sys
import time
from pathlib import Path

import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

how, num_steps, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
folder.mkdir(parents=True, exist_ok=True)
EVERY = 4


def flush_folder() -> None:
    """Only then a file's new name is on storage."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(256, 1)
    optimizer = Descent(model.parameters(), lr=0.01)
    log = os.open(folder / "losses.csv", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    database = sqlite3.connect(folder / "losses.db")
    database.execute("CREATE TABLE IF NOT EXISTS losses (step INTEGER, loss REAL)")
    took, began = 0.0, time.perf_counter()
    loader = DataLoader(
        TensorDataset(torch.randn(num_steps * 32, 256), torch.randn(num_steps * 32, 1)),
        batch_size=32,
    )
    for step, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        started = time.perf_counter()
        if how == "log":
            os.write(log, f"{step},{loss.item()}\n".encode())
            os.fsync(log)
        elif how == "database":
            with database:
                database.execute("INSERT INTO losses VALUES (?, ?)", (step, loss.item()))
        elif step % EVERY == 0:
            with open(folder / "weights.new", "wb") as file:
                torch.save(model.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())
            (folder / "weights.new").rename(folder / "weights.pt")
            flush_folder()
        took += time.perf_counter() - started
    print(json.dumps({"took_s": took, "seconds": time.perf_counter() - began, "steps": num_steps}))


main()
