"""Trains a small model on the CPU with batches that a pool makes of JPEGs.

feed_by_pool.py KIND DATA STEPS AHEAD     Prints the seconds that the loop waited for them after its first step, by its own
stopwatch, and those of these steps. KIND: "threads", tasks of a ThreadPoolExecutor, a sample each; "batches", a whole batch
each; "pool", imap of a multiprocessing.pool.ThreadPool; "loky" and "generator", a generator of joblib.Parallel, whose processes
or threads make a batch each. AHEAD: so many batches are submitted ahead, as far as KIND can.
"""  # noqa: E501

import sys
import time
from collections import deque
from collections.abc import Iterator
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


def made_by(kind: str, batches: list[list[Path]], ahead: int) -> Iterator[Pixels]:
    """The batches, in order."""
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
    made = made_by(
        kind,
        [
            [paths[(BATCH * step + each) % len(paths)] for each in range(BATCH)]
            for step in range(steps)
        ],
        ahead,
    )
    waited_s, began = 0.0, 0.0
    for step in range(steps):
        asked = time.perf_counter()
        batch = next(made)  # the wait
        waited_s += time.perf_counter() - asked if step else 0.0
        optimizer.zero_grad()
        model(torch.from_numpy(batch).flatten(1).float() / 255).square().mean().backward()
        optimizer.step()
        began = began or time.perf_counter()
    print(f"{waited_s:.3f} {time.perf_counter() - began:.3f}")


if __name__ == "__main__":
    main()
