"""Trains a tiny model, with work of its own of which the place is known; prints how long that took
by its own stopwatch.

own_tensors.py WHAT STEPS     WHAT: negatives, a search in the loop by functions of tensors; shards, of which one worker of two has
                              nine of ten, and Python for each sample
"""  # noqa: E501

import json
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

what, num_steps = sys.argv[1], int(sys.argv[2])
BATCH, WIDTH = 16, 64


def work() -> int:
    """Some 3 ms of Python."""
    found = 0
    for value in range(30_000):
        found += value * value % 7  # shards
    return found


def hardest(bank: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """The stored outputs that are most like each of these, one by one."""
    found = []
    for row in outputs:
        found.append((bank * row).sum(1).argsort(descending=True)[:4])  # negatives
    return torch.stack(found)


class Samples(IterableDataset[torch.Tensor]):
    """A shard for each worker, of unequal size."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        part = 1.0 if info is None else (0.9, 0.1)[info.id]
        for number in range(int(part * num_steps) * BATCH):
            if what == "shards":
                work()
            yield torch.full((WIDTH,), number / num_steps / BATCH)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bank, searched_s, began = torch.randn(20_000, WIDTH), 0.0, time.perf_counter()
    for batch in DataLoader(Samples(), BATCH, num_workers=2 if what == "shards" else 0):
        outputs = model(batch)
        others = bank[:BATCH]
        if what == "negatives":
            since = time.perf_counter()
            others = bank[hardest(bank, outputs.detach())[:, 0]]
            searched_s += time.perf_counter() - since
        loss = (outputs * others).sum(1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(
        json.dumps({"what": what, "loop_s": time.perf_counter() - began, "searched_s": searched_s})
    )


if __name__ == "__main__":
    main()
