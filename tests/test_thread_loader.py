"""`--loader threads`: what the loader of each layout delivers with as many workers, recorded like
it."""

import threading
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import polars as pl
import pytest
import torch
from made_datasets import made
from PIL import Image
from preload import needs_library

from ioprof.format.dataset import Dataset
from ioprof.format.trace import Trace
from ioprof.loaders import check_loader, make_loader
from ioprof.loaders.base import DECODES, LoaderOptions
from ioprof.model.recorded import pipeline

RECORDS, BATCH = 24, 4
LAYOUTS = {
    "files": {"layout": "files"},
    "lmdb": {"layout": "lmdb", "shards": 3},
    "webdataset": {"layout": "webdataset", "shard_bytes": 1 << 16},
    "parquet": {"layout": "parquet", "shard_bytes": 1 << 16},
    "raw": {"layout": "raw"},
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of noise, each of its own size."""
    root = tmp_path_factory.mktemp("noise") / "tree"
    chance = np.random.default_rng(0)
    for record in range(RECORDS):
        folder = root / f"n{record % 3:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = chance.integers(0, 256, (90 - record, 60 + record, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{record}.JPEG")
    return root


def found(
    name: str, dataset: Dataset, **chosen: Any
) -> list[tuple[int, bytes, list[int], tuple[str, ...]]]:
    """All that a job sees of a rank's batches, of two epochs and one batch more."""
    options = LoaderOptions(
        **{
            "batch_size": BATCH,
            "num_batches": 2 * RECORDS // BATCH + 1,
            "crop": 32,
            "workers": 2,
            **chosen,
        }
    )
    check_loader(name, dataset, options)
    loader = make_loader(name, dataset, options)
    return [
        (batch.number, batch.images.numpy().tobytes(), batch.labels.tolist(), batch.left_out)
        for batch in loader
    ]


@pytest.mark.job
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_are_those_of_worker_processes(tree: Path, tmp_path: Path, layout: str) -> None:
    """To the byte: decoded in part or by Pillow, for an evaluation, and from a later batch on."""
    dataset = made(tree, tmp_path / "data", **LAYOUTS[layout])
    for options in (
        {},
        {"decode": DECODES[2], "prefetch": 1},
        {"evaluates": True, "first_batch": 3},
    ):
        assert found(layout, dataset, **options) == found("threads", dataset, **options), options


@pytest.mark.job
def test_corrupt_images_are_left_out(tree: Path, tmp_path: Path) -> None:
    """The same ones, with the same words, as by worker processes; a batch is smaller by what is
    left out."""
    dataset = made(tree, tmp_path / "data", layout="files")
    for line in dataset.index_path.read_text().splitlines()[3:12:4]:
        path = dataset.path / line.rpartition(" ")[0]
        path.write_bytes(path.read_bytes()[:400] + b"\xff\xd9")
    ours = found("threads", dataset, on_corrupt="quarantine")
    assert found("files", dataset, on_corrupt="quarantine") == ours
    assert 3 == len({text for batch in ours[: RECORDS // BATCH] for text in batch[3]})


def test_threads_end_with_the_loop(tree: Path, tmp_path: Path) -> None:
    """Also where the loop ends early; torch computes with as many threads as before, in threads of
    later too."""
    dataset = made(tree, tmp_path / "data", layout="files")
    before, num_threads = set(threading.enumerate()), torch.get_num_threads()
    batches = iter(make_loader("threads", dataset, LoaderOptions(BATCH, 50, crop=32, workers=3)))
    next(batches)
    assert 3 == len(set(threading.enumerate()) - before)
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    batches.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) == before
    assert [num_threads] * 2 == [torch.get_num_threads(), *later]


@pytest.mark.job(every=4)
@needs_library
def test_each_read_leads_to_its_batch(tree: Path, tmp_path: Path) -> None:
    """Reads lie in the thread and time of their batch's fetch; each file is read once in the epoch
    and once in the evaluation.

    A replay takes what the loop waits for as its own time.
    """
    dataset = made(tree, tmp_path / "data", layout="files")
    words = (
        "--loader",
        "threads",
        "--epochs",
        1,
        "--no-stacks",
        "--batch-size",
        BATCH,
        "--eval-data",
        dataset.path,
        "--out",
        "run",
    )
    finished = jobs.ioprof("run", dataset.path, *words, "--device", "cpu", cwd=tmp_path)
    assert 0 == finished.code, finished.err
    trace = Trace.load(tmp_path / "run")
    made_batches = {
        kind: set(
            trace.spans.filter(pl.col("kind") == kind, pl.col("batch").is_not_null())["batch"]
        )
        for kind in ("fetch", "wait", "read", "decode", "transform", "deliver")
    }
    num_batches = 2 * RECORDS // BATCH  # an epoch and an evaluation
    assert dict.fromkeys(made_batches, num_batches) == {
        kind: len(found) for kind, found in made_batches.items()
    }
    assert 1 == len({frozenset(found) for found in made_batches.values()})
    files = trace.files.filter(pl.col("path").str.ends_with(".JPEG"))
    reads = trace.spans.filter(pl.col("kind") == "read").join(files, on="file")
    assert (
        2 * sum(path.stat().st_size for path in dataset.path.rglob("*.JPEG"))
        == reads["bytes"].sum()
    )
    fetches = trace.spans.filter(pl.col("kind") == "fetch").select(
        "batch", "tid", since="start_ns", until="end_ns"
    )
    joined = reads.join(fetches, on=["batch", "tid"])
    assert len(reads) == len(
        joined.filter(pl.col("start_ns") >= pl.col("since"), pl.col("end_ns") <= pl.col("until"))
    )
    assert not pipeline(trace).knows_makers
