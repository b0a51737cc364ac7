"""What a probe reads: a dataset's own records, the files that are there, or scratch files that are
written for it.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ioprof.errors import CommandError
from ioprof.format.dataset import MANIFEST_NAME, Dataset
from ioprof.reporter import Reporter, in_megabytes, megabytes
from ioprof.storage.probe import Ranges, ReadTargets, RecordSizes, WholeFiles
from ioprof.storage.probe.folders import USUAL_RECORD_BYTES, find_read_targets
from ioprof.storage.probe.scratch import scratch_files


@dataclass(frozen=True)
class ProbeRequest:
    """What is to be read, checked as far as it can be before anything is opened."""

    path: Path
    dataset: Dataset | None
    """Named by --dataset, or the path itself."""
    record_bytes: int | None
    scratch_bytes: int | None
    readahead: bool


@dataclass(frozen=True)
class ProbeTarget:
    """What is read, and the same in words."""

    material: ReadTargets
    description: str


def check_request(
    path: Path,
    dataset: Path | None,
    record_bytes: int | None,
    scratch_bytes: int | None,
    readahead: bool,
) -> ProbeRequest:
    """The request; raises `CommandError` or `DatasetError`."""
    if not path.is_dir() and not path.is_file():
        raise CommandError(
            f"{path}:"
            f" {'neither a file nor a folder' if path.exists() else 'no such file or folder'}; name"
            " one to read"
        )
    if scratch_bytes and not path.is_dir():
        raise CommandError(f"{path}: --scratch writes below a folder, and this is a file")
    if dataset is None and (path / MANIFEST_NAME).exists():
        dataset = path
    loaded = Dataset.load(dataset) if dataset else None
    if loaded and record_bytes:
        raise CommandError(
            f"--record-bytes {record_bytes}: the records of {dataset} have their own lengths; leave"
            " one of the two out"
        )
    return ProbeRequest(path, loaded, record_bytes, scratch_bytes, readahead)


@contextmanager
def open_target(
    request: ProbeRequest, random: np.random.Generator, reporter: Reporter
) -> Iterator[ProbeTarget]:
    """What to read, open until the block ends; scratch files are removed then."""
    with ExitStack() as stack:
        if request.scratch_bytes:
            target = stack.enter_context(
                _scratch_target(request, request.scratch_bytes, random, reporter)
            )
        else:
            target = _existing_target(request, random)
        stack.callback(target.material.close)
        yield target


def _existing_target(request: ProbeRequest, random: np.random.Generator) -> ProbeTarget:
    dataset = request.dataset
    # By their real paths, since data is often linked to.
    if dataset and Path(os.path.realpath(dataset.path)).is_relative_to(
        os.path.realpath(request.path)
    ):
        return _dataset_target(dataset, random, request.readahead)
    material, is_all = find_read_targets(
        str(request.path), _record_sizes(request), random, request.readahead
    )
    if isinstance(material, WholeFiles):
        return ProbeTarget(
            material,
            f"{_num_files(material)} {'that' if is_all else 'of those that'} are there, whole",
        )
    return ProbeTarget(material, f"ranges {_length_in_words(request)}, in {_num_files(material)}")


def _dataset_target(dataset: Dataset, random: np.random.Generator, readahead: bool) -> ProbeTarget:
    what = f"dataset {dataset.name}, {dataset.layout}"
    if dataset.layout == "files":
        paths = dataset.data_files()[1:]
        return ProbeTarget(WholeFiles(paths, random), f"{what}: {len(paths):,} files, whole")
    shards = dataset.record_files()
    material = Ranges(
        shards, RecordSizes.of_quantiles(dataset.record_bytes_quantiles), random, readahead
    )
    return ProbeTarget(
        material,
        f"{what}: ranges of {len(material.paths)} of {len(shards)} shards, as long as its records",
    )


@contextmanager
def _scratch_target(
    request: ProbeRequest, num_bytes: int, random: np.random.Generator, reporter: Reporter
) -> Iterator[ProbeTarget]:
    whole = request.dataset is not None and request.dataset.layout == "files"
    sizes = _record_sizes(request) or RecordSizes.fixed(USUAL_RECORD_BYTES)
    with ExitStack() as stack:
        with reporter.progress("writing scratch files, MB", megabytes(num_bytes)) as advance:
            files = scratch_files(
                str(request.path),
                num_bytes,
                sizes if whole else None,
                random,
                in_megabytes(advance),
            )
            paths = stack.enter_context(files)
        if whole:
            description = f"{len(paths):,} scratch files, whole, {_length_in_words(request)}"
            yield ProbeTarget(WholeFiles(paths, random), description)
        else:
            ranges = Ranges(paths, sizes, random, request.readahead)
            yield ProbeTarget(
                ranges, f"ranges {_length_in_words(request)}, in scratch, {_num_files(ranges)}"
            )


def _num_files(material: ReadTargets) -> str:
    number = len(material.paths)
    return "1 file" if number == 1 else f"{number:,} files"


def _record_sizes(request: ProbeRequest) -> RecordSizes | None:
    if request.dataset:
        return RecordSizes.of_quantiles(request.dataset.record_bytes_quantiles)
    return RecordSizes.fixed(request.record_bytes) if request.record_bytes else None


def _length_in_words(request: ProbeRequest) -> str:
    if request.dataset:
        return f"as long as the records of {request.dataset.name}"
    usual = "" if request.record_bytes else ", a mean image of ImageNet"
    return f"of {request.record_bytes or USUAL_RECORD_BYTES:,} bytes{usual}"
