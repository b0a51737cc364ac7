"""Train on samples of 250 kB that another program sends: KIND (pipe, socket or fifo), bytes per
second, samples, workers."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import torch
from descent import Descent
from torch.utils.data import DataLoader, IterableDataset

SAMPLE_BYTES: Final = 250_000
SENDER: Final = """
import socket, sys, time
where, rate, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
if where == "socket":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    out = listener.accept()[0].makefile("wb")
else:
    out = sys.stdout.buffer if where == "pipe" else open(where, "wb")
start = time.monotonic()
for piece in range(count * 10):
    out.write(bytes(25_000))
    out.flush()
    time.sleep(max(0, start + (piece + 1) * 25_000 / rate - time.monotonic()))
"""


def start_sender(
    kind: str, rate: str, count: str, folder: Path
) -> tuple[subprocess.Popen[bytes], BinaryIO]:
    """A program that sends at that rate, and what it sends."""
    where = str(folder / "fifo") if kind == "fifo" else kind
    if kind == "fifo":
        os.mkfifo(where)
    command = [sys.executable, "-S", "-c", SENDER, where, rate, count]
    sender = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert sender.stdout is not None
    if kind == "pipe":
        return sender, sender.stdout  # type: ignore[return-value]
    if kind == "fifo":
        return sender, open(where, "rb")
    import socket

    return sender, socket.create_connection(("127.0.0.1", int(sender.stdout.readline()))).makefile(
        "rb"
    )


class Samples(IterableDataset[torch.Tensor]):
    """What the sender sends."""

    def __init__(self, kind: str, rate: str, count: str, folder: Path) -> None:
        self.how = kind, rate, count, folder

    def __iter__(self) -> Iterator[torch.Tensor]:
        sender, stream = start_sender(*self.how)
        with sender:
            for _ in range(int(self.how[2])):
                yield torch.frombuffer(bytearray(stream.read(SAMPLE_BYTES)), dtype=torch.uint8)[
                    :1000
                ].float()
            stream.close()


if __name__ == "__main__":
    model = torch.nn.Linear(1000, 2)
    optimizer = Descent(model.parameters(), lr=0.001)
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        for batch in DataLoader(
            Samples(*sys.argv[1:4], Path(folder)), 4, num_workers=int(sys.argv[4])
        ):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        print(time.monotonic() - start)
