"""From what was typed to what a probe reads: a dataset's own records, what files there are, or files that are written for it."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ioprof.cli.console import Advance, progress
from ioprof.dataset import MANIFEST_NAME, Dataset, read_index
from ioprof.errors import CommandError
from ioprof.storage.probe import Material, Ranges, RecordSizes, WholeFiles
from ioprof.storage.probe.folders import USUAL_RECORD_BYTES, material_of
from ioprof.storage.probe.scratch import scratch_files

_MEGABYTE: Final = 1 << 20


@dataclass(frozen=True)
class Asked:
    """What is to be read, as it was typed and checked."""

    path: Path
    dataset: Dataset | None
    """Named by --dataset, or the path itself."""
    record_bytes: int | None
    scratch_bytes: int | None
    readahead: bool


@dataclass(frozen=True)
class Chosen:
    """The material, and what it is in words."""

    material: Material
    what: str


def asked_for(path: Path, dataset: Path | None, record_bytes: int | None, scratch_bytes: int | None, readahead: bool) -> Asked:
    """The request, checked as far as it can be before anything is opened; raises `CommandError` or `DatasetError`."""
    if not path.is_dir() and not path.is_file():
        raise CommandError(
            f"{path}: {'neither a file nor a folder' if path.exists() else 'no such file or folder'}; name one to read"
        )
    if scratch_bytes and not path.is_dir():
        raise CommandError(f"{path}: --scratch writes below a folder, and this is a file")
    if dataset is None and (path / MANIFEST_NAME).exists():
        dataset = path
    loaded = Dataset.load(dataset) if dataset else None
    if loaded and record_bytes:
        raise CommandError(
            f"--record-bytes {record_bytes}: the records of {dataset} have their own lengths; leave one of the two out"
        )
    return Asked(path, loaded, record_bytes, scratch_bytes, readahead)


@contextmanager
def chosen(asked: Asked, random: np.random.Generator) -> Iterator[Chosen]:
    """What to read, open until the block ends; scratch files are removed then."""
    if asked.scratch_bytes:
        with _scratch(asked, asked.scratch_bytes, random) as found:
            yield from _closing(found)
    else:
        yield from _closing(_there(asked, random))


def _closing(found: Chosen) -> Iterator[Chosen]:
    try:
        yield found
    finally:
        found.material.close()


def _there(asked: Asked, random: np.random.Generator) -> Chosen:
    dataset, path = asked.dataset, asked.path
    if dataset and _holds(path, dataset.path):
        return _of_dataset(dataset, random, asked.readahead)
    sizes = _sizes(asked)
    material, is_all = material_of(str(path), sizes, random, asked.readahead)
    if isinstance(material, WholeFiles):
        return Chosen(material, f"{_files(material)} {'that' if is_all else 'of those that'} are there, whole")
    return Chosen(material, f"ranges {_in_words(asked)}, in {_files(material)}")


def _of_dataset(dataset: Dataset, random: np.random.Generator, readahead: bool) -> Chosen:
    what = f"dataset {dataset.name}, {dataset.layout}"
    if dataset.layout == "files":
        paths = [f"{dataset.path}/{path}" for path in read_index(dataset)[0]]
        return Chosen(WholeFiles(paths, random), f"{what}: {len(paths):,} files, whole")
    shards = [str(path / "data.mdb" if dataset.layout == "lmdb" else path) for path in dataset.shard_paths()]
    material = Ranges(shards, RecordSizes.of_quantiles(dataset.record_bytes_quantiles), random, readahead)
    return Chosen(material, f"{what}: ranges of {len(material.paths)} of {len(shards)} shards, as long as its records")


@contextmanager
def _scratch(asked: Asked, num_bytes: int, random: np.random.Generator) -> Iterator[Chosen]:
    whole = asked.dataset is not None and asked.dataset.layout == "files"
    sizes = _sizes(asked) or RecordSizes.fixed(USUAL_RECORD_BYTES)
    with ExitStack() as stack:
        with progress("writing scratch files, MB", max(1, num_bytes // _MEGABYTE)) as advance:
            written = scratch_files(str(asked.path), num_bytes, sizes if whole else None, random, _in_megabytes(advance))
            paths = stack.enter_context(written)
        if whole:
            yield Chosen(WholeFiles(paths, random), f"{len(paths):,} scratch files, whole, {_in_words(asked)}")
        else:
            ranges = Ranges(paths, sizes, random, asked.readahead)
            yield Chosen(ranges, f"ranges {_in_words(asked)}, in scratch, {_files(ranges)}")


def _in_megabytes(advance: Advance) -> Callable[[int], None]:
    done = [0]

    def more(num_bytes: int) -> None:
        before = done[0] // _MEGABYTE
        done[0] += num_bytes
        advance(done[0] // _MEGABYTE - before)

    return more


def _files(material: Material) -> str:
    number = len(material.paths)
    return "1 file" if number == 1 else f"{number:,} files"


def _sizes(asked: Asked) -> RecordSizes | None:
    if asked.dataset:
        return RecordSizes.of_quantiles(asked.dataset.record_bytes_quantiles)
    return RecordSizes.fixed(asked.record_bytes) if asked.record_bytes else None


def _in_words(asked: Asked) -> str:
    if asked.dataset:
        return f"as long as the records of {asked.dataset.name}"
    return f"of {asked.record_bytes or USUAL_RECORD_BYTES:,} bytes" + ("" if asked.record_bytes else ", a mean image of ImageNet")


def _holds(path: Path, dataset: Path) -> bool:
    """Whether the dataset lies at the path, or below it; by its real place, since data is often linked to."""
    return Path(os.path.realpath(dataset)).is_relative_to(os.path.realpath(path))
