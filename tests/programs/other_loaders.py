"""A training script with a loader that is not torch's DataLoader: images of a tree, a small network
on the CPU.

Arguments: LOADER TREE STEPS [MILLISECONDS]. LOADER is a function below; every image is transformed
for that many milliseconds. Prints a digest of all batches in their order, the last loss and the
state of all random number generators.
"""

import hashlib
import itertools
import multiprocessing
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from descent import Descent
from PIL import Image
from torch import nn

import ioprof

BATCH = 4
THREADS = 2


def load(path: Path, milliseconds: float) -> torch.Tensor:
    """One image, decoded and transformed."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize((32, 32))).copy()
    if milliseconds:
        with ioprof.span("transform"):
            time.sleep(milliseconds / 1000)
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def load_batch(paths: list[Path], milliseconds: float) -> torch.Tensor:
    """Images of equal size, stacked."""
    return torch.stack([load(path, milliseconds) for path in paths])


def batches_of(paths: list[Path]) -> list[list[Path]]:
    """The paths of the batches of an epoch, in a random order."""
    order = torch.randperm(len(paths)).tolist()
    return [
        [paths[number] for number in order[start : start + BATCH]]
        for start in range(0, len(order) - BATCH + 1, BATCH)
    ]


class Images(torch.utils.data.Dataset[torch.Tensor]):
    """Images by number."""

    def __init__(self, paths: list[Path], milliseconds: float) -> None:
        self.paths, self.milliseconds = paths, milliseconds

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        return load(self.paths[number], self.milliseconds)


class SlowSampler(torch.utils.data.Sampler[int]):
    """Takes 20 ms to choose an image."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for number in torch.randperm(self.length).tolist():
            time.sleep(0.02)
            yield number


def sampler(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """torch's DataLoader, with a slow sampler."""
    loader = torch.utils.data.DataLoader(
        Images(paths, milliseconds),
        BATCH,
        sampler=SlowSampler(len(paths)),
        num_workers=1,
        persistent_workers=True,
    )
    return endless(lambda: iter(loader))


def stateful(paths: list[Path], milliseconds: float, workers: int = 1) -> Iterable[torch.Tensor]:
    """torchdata's StatefulDataLoader; its state is saved and restored after each epoch."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(
        Images(paths, milliseconds),
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )
    while True:
        yield from loader
        loader.load_state_dict(loader.state_dict())


stateful_alone = partial(stateful, workers=0)


def spdl(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """SPDL: threads of this process load batches, in order."""
    from spdl.pipeline import PipelineBuilder

    while True:
        builder = PipelineBuilder().add_source(batches_of(paths))
        builder.pipe(
            partial(load_batch, milliseconds=milliseconds),
            concurrency=THREADS,
            output_order="input",
        )
        pipeline = builder.add_sink(2).build(num_threads=THREADS)
        with pipeline.auto_stop():
            yield from pipeline


def spdl_stages(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """SPDL: threads load images one by one, and a further stage stacks them."""
    from spdl.pipeline import PipelineBuilder

    while True:
        builder = PipelineBuilder().add_source(itertools.chain.from_iterable(batches_of(paths)))
        builder.pipe(
            partial(load, milliseconds=milliseconds), concurrency=THREADS, output_order="input"
        )
        pipeline = (
            builder.aggregate(BATCH, drop_last=True)
            .pipe(torch.stack)
            .add_sink(2)
            .build(num_threads=THREADS)
        )
        with pipeline.auto_stop():
            yield from pipeline


def spdl_source(paths: list[Path], milliseconds: float, seed: int) -> Any:
    """The pipeline that a process of its own runs."""
    from spdl.pipeline import PipelineBuilder

    torch.manual_seed(seed)
    builder = PipelineBuilder().add_source(batches_of(paths))
    builder.pipe(
        partial(load_batch, milliseconds=milliseconds), concurrency=THREADS, output_order="input"
    )
    return builder.add_sink(2).get_config()


def spdl_process(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """SPDL: a process of its own loads batches."""
    from spdl.pipeline import run_pipeline_in_subprocess

    config = spdl_source(paths, milliseconds, 0)
    items: Iterable[torch.Tensor] = run_pipeline_in_subprocess(
        config, num_threads=THREADS, mp_context="forkserver"
    )
    return endless(lambda: iter(items))


def pool(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """A thread pool, with four batches ahead."""
    with ThreadPoolExecutor(THREADS) as executor:
        while True:
            chosen = batches_of(paths)
            futures = [executor.submit(load_batch, batch, milliseconds) for batch in chosen[:4]]
            for ahead in [*chosen[4:], *([None] * 4)]:
                yield futures.pop(0).result()
                if ahead is not None:
                    futures.append(executor.submit(load_batch, ahead, milliseconds))


@contextmanager
def processes_that_finish(number: int) -> Iterator[Any]:
    """A pool whose tasks are all done at the end: a tensor that a process has sent cannot be taken
    once that has ended, and then the end of the pool fails."""
    with multiprocessing.Pool(number) as made:
        try:
            yield made
        finally:
            made.close()
            made.join()


def processes(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """Processes of a multiprocessing.Pool, in order."""
    with processes_that_finish(THREADS) as made:
        while True:
            yield from made.imap(partial(load_batch, milliseconds=milliseconds), batches_of(paths))


def processes_unordered(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """Batches as they come; one process, so that the order is known."""
    with processes_that_finish(1) as made:
        while True:
            yield from made.imap_unordered(
                partial(load_batch, milliseconds=milliseconds), batches_of(paths)
            )


def processes_asked(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """A job of the pool for each batch, two ahead."""
    with processes_that_finish(THREADS) as made:
        asked = [
            made.apply_async(load_batch, (batch, milliseconds)) for batch in batches_of(paths)[:2]
        ]
        for batch in itertools.chain.from_iterable(batches_of(paths) for _ in range(20)):
            yield asked.pop(0).get()
            asked.append(made.apply_async(load_batch, (batch, milliseconds)))


def threads(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """A thread that fills a queue."""
    ready: queue.Queue[torch.Tensor] = queue.Queue(2)
    order: list[list[Path]] = list(
        itertools.islice(itertools.chain.from_iterable(batches_of(paths) for _ in range(20)), 200)
    )

    ends = threading.Event()

    def fill() -> None:
        for batch in order:
            made = load_batch(batch, milliseconds)
            if ends.is_set():
                return
            ready.put(made)

    maker = threading.Thread(target=fill, daemon=True)
    maker.start()
    try:
        while True:
            yield ready.get()
    finally:
        ends.set()
        # the interpreter's end would abort a thread in torch's C++; one that waits in put() may
        # stay
        maker.join(0.5)


def own(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """A generator of one's own, which the script wraps."""
    return ioprof.batches(
        endless(lambda: (load_batch(batch, milliseconds) for batch in batches_of(paths)))
    )


def dali_dynamic(paths: list[Path], milliseconds: float) -> Iterable[torch.Tensor]:
    """DALI's dynamic mode."""
    import nvidia.dali.experimental.dynamic as ndd

    reader = ndd.readers.File(file_root=str(paths[0].parents[1]), random_shuffle=True, seed=7)
    while True:
        for files, _labels in reader.next_epoch(batch_size=BATCH):
            images = ndd.resize(ndd.decoders.image(files, device="cpu"), size=[32, 32])
            pixels = torch.from_numpy(np.asarray(ndd.as_tensor(images)).copy())
            yield pixels.permute(0, 3, 1, 2).float() / 255


def endless(epoch: Callable[[], Iterator[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """One epoch after the other."""
    while True:
        yield from epoch()


def main() -> None:
    """Train for some steps."""
    name, root, steps, *rest = sys.argv[1:]
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    optimizer = Descent(model.parameters(), 0.1)
    digest = hashlib.sha256()
    batches = globals()[name](sorted(Path(root).glob("*/*.JPEG")), float(rest[0]) if rest else 0.0)
    batches = iter(batches)
    for images in itertools.islice(batches, int(steps)):
        digest.update(images.numpy().tobytes())
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if isinstance(batches, Generator):  # ends pools before the interpreter ends their threads
        batches.close()
    states = (
        random.getstate(),
        np.random.get_state()[1].tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    )
    print(
        digest.hexdigest(), f"{loss.item():.9f}", hashlib.sha256(repr(states).encode()).hexdigest()
    )


if __name__ == "__main__":
    main()
