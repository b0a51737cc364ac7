"""Consumes loaders of all kinds, and writes down all that a hook might have changed: data, order,
random states, errors.

    python hooked_loaders.py OUT START_METHOD

Items and batches leave spans of the user's own, so that who made what for whom is known without the
hooks.
"""

import inspect
import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    get_worker_info,
)

from ioprof import span

ITEMS = 13

KNOWS_ORDER = "in_order" in inspect.signature(DataLoader).parameters
"""Whether batches may arrive as they are made: torch 2.6 and newer."""

torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2
"""How long torch waits for a worker that does not end, 5 s by itself: one with loaders of its own
waits for them four times."""


def item(mode: int, number: int) -> torch.Tensor:
    """An item that says who it is, and what random numbers its maker would draw."""
    with span("make", f"{mode}:{number}"):
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor([float(number), *drawn], dtype=torch.float64)


class Items(Dataset[torch.Tensor]):
    """Items by their numbers; number 7 cannot be made if `fails`."""

    def __init__(self, mode: int, fails: bool = False) -> None:
        self.mode, self.fails = mode, fails

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.fails and number == 7:
            raise LookupError("no item 7")
        return item(self.mode, number)


class Stream(IterableDataset[torch.Tensor]):
    """Items one after the other, each worker its share, of unequal sizes."""

    def __init__(self, mode: int) -> None:
        self.mode = mode

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (item(self.mode, number) for number in range(first, ITEMS, step))


class Nested(Items):
    """Items that another loader makes."""

    def __getitem__(self, number: int) -> torch.Tensor:
        [found] = DataLoader(Items(self.mode), batch_size=None, sampler=[number])
        return found


def stack(items: list[torch.Tensor]) -> torch.Tensor:
    """A collate function of one's own."""
    return torch.stack(items)


def describe(batch: torch.Tensor) -> list[float]:
    """All that a batch holds."""
    return [float(value) for value in batch.reshape(-1)]


def modes(method: str) -> Iterator[dict[str, Any]]:
    """Arguments of DataLoader, without the dataset, and what to do with it."""
    if method != "fork":  # each worker imports torch anew, for seconds
        yield {"style": "map", "batching": "size", "workers": 2, "persistent": True}
        yield {"style": "stream", "batching": "size", "workers": 1, "persistent": True}
        return
    every = {
        "style": ("map", "stream"),
        "batching": ("size", "sampler", "none"),
        "workers": (0, 1, 3),
        "persistent": (False, True),
    }
    for values in itertools.product(*every.values()):
        mode = dict(zip(every, values, strict=True))
        allowed = not mode["persistent"] or (mode["workers"] > 0 and mode["batching"] == "size")
        if allowed and not (mode["style"] == "stream" and mode["batching"] == "sampler"):
            yield mode
    if KNOWS_ORDER:
        yield {
            "style": "map",
            "batching": "size",
            "workers": 3,
            "persistent": False,
            "in_order": False,
        }
    yield {
        "style": "map",
        "batching": "size",
        "workers": 2,
        "persistent": True,
        "timeout": 60,
        "leaves_after": 2,
    }
    yield {"style": "map", "batching": "size", "workers": 2, "persistent": False, "leaves_after": 1}
    yield {"style": "fails", "batching": "size", "workers": 0, "persistent": False}
    yield {"style": "fails", "batching": "size", "workers": 2, "persistent": False}
    yield {"style": "nested", "batching": "size", "workers": 0, "persistent": False}
    yield {"style": "nested", "batching": "size", "workers": 1, "persistent": False, "epochs": 1}


def loader(number: int, mode: dict[str, Any], method: str) -> DataLoader[torch.Tensor]:
    """The loader of a mode."""
    kinds = {
        "map": Items,
        "stream": Stream,
        "nested": Nested,
        "fails": lambda number: Items(number, fails=True),
    }
    batching: dict[str, Any] = {
        "size": {"batch_size": 3, "shuffle": mode["style"] == "map" or None, "collate_fn": stack},
        "sampler": {"batch_sampler": BatchSampler(SequentialSampler(range(ITEMS)), 4, True)},
        "none": {"batch_size": None},
    }[mode["batching"]]
    return DataLoader(
        kinds[mode["style"]](number),
        num_workers=mode["workers"],
        persistent_workers=mode["persistent"],
        multiprocessing_context=method if mode["workers"] else None,
        timeout=mode.get("timeout", 0),
        **({"in_order": mode["in_order"]} if "in_order" in mode else {}),
        **batching,
    )


def consume(number: int, loader: DataLoader[torch.Tensor], leaves_after: int | None) -> list[Any]:
    """One epoch."""
    found: list[Any] = []
    try:
        for batch in itertools.islice(loader, leaves_after):
            with span("use", f"{number}:{int(batch.reshape(-1)[0])}"):
                found.append(describe(batch))
    except LookupError as error:
        found.append([type(error).__name__, str(error).strip().splitlines()[-1]])
    return found


def take_turns(loaders: list[DataLoader[torch.Tensor]]) -> None:
    """One batch of each, then the next of each."""
    batches = [iter(loader) for loader in loaders]
    for _ in range(len(loaders[0])):
        for place, iterator in enumerate(batches):
            batch = next(iterator)
            with span("use", f"{1000 + place}:{int(batch.reshape(-1)[0])}"):
                pass


def main() -> None:
    """All modes, two epochs of each; then two loaders in turns."""
    out, method = sys.argv[1:]
    found = []
    for number, mode in enumerate(modes(method)):
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)
        made = loader(number, mode, method)
        epochs = [
            consume(number, made, mode.get("leaves_after")) for _ in range(mode.get("epochs", 2))
        ]
        if not mode.get("in_order", True):
            epochs = [sorted(epoch) for epoch in epochs]
        state = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        found.append({"mode": mode, "epochs": epochs, "state": state})
    if method == "fork":
        take_turns(
            [
                loader(
                    1000 + place,
                    {"style": "map", "batching": "size", "workers": 1, "persistent": False},
                    method,
                )
                for place in (0, 1)
            ]
        )
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
