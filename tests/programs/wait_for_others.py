"""A loop that waits for threads or processes of a library: `wait_for_others.py KIND`. Prints the id
of the thread that waits."""

import asyncio
import multiprocessing
import sys
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

STEPS = 150
TOOK_S = 0.003


def compute() -> None:
    """What the loop does between two waits."""
    sum(range(10_000))


def make(_: int) -> int:
    """What it waits for."""
    time.sleep(TOOK_S)
    return sum(range(5_000))


def with_loader(**settings: object) -> None:
    """torch's loader."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((8,), float(make(index)))

    for _ in DataLoader(Samples(), 2, num_workers=2, **settings):  # type: ignore[arg-type]
        compute()


async def by_tasks() -> None:
    """Threads that an event loop awaits."""
    for _ in range(STEPS // 3):
        await asyncio.gather(*(asyncio.to_thread(make, number) for number in range(3)))


def with_manager() -> None:
    """Values that another process keeps."""
    with multiprocessing.Manager() as manager:
        known = manager.dict()
        for number in range(10 * STEPS):
            known[number] = number


def main() -> None:
    """Wait as the first argument says."""
    warnings.simplefilter("ignore")
    kind = sys.argv[1]
    if kind == "loader":
        with_loader()
    elif kind == "pinning loader":
        with_loader(pin_memory=True)
    elif kind == "asyncio":
        asyncio.run(by_tasks())
    elif kind == "manager":
        with_manager()
    elif kind == "joblib":
        from joblib import Parallel, delayed

        for _ in range(3):
            Parallel(n_jobs=2)(delayed(make)(number) for number in range(STEPS // 3))
    else:
        pools = {
            "threads": ThreadPoolExecutor,
            "processes": ProcessPoolExecutor,
            "pool": multiprocessing.Pool,
        }
        with pools[kind](2) as pool:
            results = pool.imap if kind == "pool" else pool.map  # type: ignore[attr-defined]
            for _ in results(make, range(STEPS)):
                compute()


if __name__ == "__main__":
    main()
    sys.stdout.write(f"{threading.get_native_id()}\n")
