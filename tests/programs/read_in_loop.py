"""A training loop that reads its samples itself, with no loader: random records of one file, a
small network on the CPU.

Arguments: FILE STEPS. Prints the seconds in its own reads, the seconds of the loop, and the last
loss.
"""

import os
import random
import sys
import time

import torch
from descent import Descent
from torch import nn

RECORD_BYTES = 1 << 14
RECORDS = 16

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    order = random.Random(0)
    model = nn.Linear(RECORD_BYTES // 4, 2)
    optimizer = Descent(model.parameters(), 0.001)
    file = os.open(sys.argv[1], os.O_RDONLY)
    places = list(range(os.fstat(file).st_size // RECORD_BYTES))
    order.shuffle(places)
    began = time.perf_counter()
    reading = 0.0
    for _ in range(int(sys.argv[2])):
        start = time.perf_counter()
        records = [
            os.pread(file, RECORD_BYTES, places.pop() * RECORD_BYTES) for _ in range(RECORDS)
        ]
        reading += time.perf_counter() - start
        samples = (
            torch.frombuffer(bytearray(b"".join(records)), dtype=torch.int32)
            .view(RECORDS, -1)
            .float()
            / 2**31
        )
        loss = nn.functional.cross_entropy(model(samples), torch.arange(RECORDS) % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{reading:.3f} {time.perf_counter() - began:.3f} {loss.item():.9f}")
