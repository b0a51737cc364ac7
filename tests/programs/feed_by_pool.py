"""Trains a small model on the CPU with batches that a pool makes of JPEGs.

feed_by_pool.py KIND DATA STEPS AHEAD     Prints the seconds that the loop waited for them after its first step, by its own
stopwatch, and those of these steps. KIND: "threads", tasks of a ThreadPoolExecutor, a sample each; "batches", a whole batch
each; "pool", imap of a multiprocessing.pool.ThreadPool; "loky" and "generator", a generator of joblib.Parallel, whose processes
or threads make a batch each; "gather", threads for which an event loop waits, AHEAD batches at a time; "awaited", the same one
after the other, where the training runs in the event loop. AHEAD: so many batches are submitted ahead, as far as KIND can.
"""  # noqa: E501

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

BATCH, NUM = 4, 2
Pixels = np.ndarray[Any, Any]


def load(path: Path) -> Pixels:
    """Pixels of a file."""
    with Image.open(BytesIO(path.read_bytes())) as image:
        return np.asarray(image.convert("RGB"))[:32, :32].copy()


def load_batch(paths: list[Path]) -> Pixels:
    """Those of several."""
    return np.stack([load(path) for path in paths])


def by_futures(kind: str, batches: list[list[Path]], ahead: int) -> Iterator[Pixels]:
    """Batches, in order."""
    pending: deque[Any] = deque()
    with ThreadPoolExecutor(NUM) as pool:
        for paths in [*batches, *[[]] * ahead]:
            if kind == "threads":
                pending.append([pool.submit(load, path) for path in paths])
            else:
                pending.append(pool.submit(load_batch, paths) if paths else None)
            if len(pending) > ahead:
                first = pending.popleft()
                yield (
                    np.stack([future.result() for future in first])
                    if kind == "threads"
                    else first.result()
                )


def by_gather(batches: list[list[Path]], together: int) -> Iterator[Pixels]:
    """The same, so many at a time."""
    loop = asyncio.new_event_loop()

    async def some(part: list[list[Path]]) -> list[Pixels]:
        return await asyncio.gather(*(asyncio.to_thread(load_batch, each) for each in part))

    for first in range(0, len(batches), together):
        yield from loop.run_until_complete(some(batches[first : first + together]))
    loop.close()


async def by_tasks(batches: list[list[Path]], ahead: int) -> AsyncIterator[Pixels]:
    """The same to an event loop that trains."""
    pending: deque[asyncio.Task[Pixels]] = deque()
    for paths in [*batches, *[[]] * ahead]:
        if paths:
            pending.append(asyncio.create_task(asyncio.to_thread(load_batch, paths)))
        if len(pending) > ahead or not paths:
            yield await pending.popleft()


def made_by(kind: str, batches: list[list[Path]], ahead: int) -> Iterator[Pixels]:
    """The batches, in order."""
    if kind == "gather":
        return by_gather(batches, ahead)
    if kind == "pool":
        return ThreadPool(NUM).imap(load_batch, batches)
    if kind in ("loky", "generator"):
        from joblib import Parallel, delayed

        backend = "loky" if kind == "loky" else "threading"
        parallel = Parallel(
            NUM, return_as="generator", backend=backend, batch_size=1, pre_dispatch=ahead + NUM
        )
        return iter(parallel(delayed(load_batch)(each) for each in batches))
    return by_futures(kind, batches, ahead)


def main() -> None:
    """Train."""
    import torch  # which the processes of loky need not import
    from descent import Descent

    kind, steps, ahead = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(3 * 32 * 32, 2)
    optimizer = Descent(model.parameters(), 1e-6)
    paths = sorted(Path(sys.argv[2]).rglob("*.JPEG"))
    batches = [
        [paths[(BATCH * step + each) % len(paths)] for each in range(BATCH)]
        for step in range(steps)
    ]
    ends = [0.0]  # of the steps
    waits = []

    def train(batch: Pixels) -> None:
        waits.append(time.perf_counter() - ends[-1])
        optimizer.zero_grad()
        model(torch.from_numpy(batch).flatten(1).float() / 255).square().mean().backward()
        optimizer.step()
        ends.append(time.perf_counter())

    if kind == "awaited":
        asyncio.run(trained(by_tasks(batches, ahead), train))
    else:
        for batch in made_by(kind, batches, ahead):
            train(batch)
    print(f"{sum(waits[1:]):.3f} {ends[-1] - ends[1]:.3f}")


async def trained(made: AsyncIterator[Pixels], train: Callable[[Pixels], None]) -> None:
    """Train with each batch."""
    async for batch in made:
        train(batch)


if __name__ == "__main__":
    main()
