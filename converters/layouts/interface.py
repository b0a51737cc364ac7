"""The interface of every layout: `Target` and `Record` are its input, `Layout` is the protocol that
it implements.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from ioprof.format.dataset import ImageFormat


@dataclass(frozen=True)
class Target:
    """Where and how a layout writes."""

    folder: Path
    split: str
    image: ImageFormat
    wnids: tuple[str, ...]
    """Of all classes, in the order of their labels."""
    images: int = 0
    """Number of images in the source, good or bad: the shards of `lmdb` are equal parts of them."""
    shards: int | None = None
    """Of `lmdb`; None: one environment, named after the split."""
    shard_bytes: int | None = None
    """Of `webdataset`: maximum size of a tar."""
    labels: str | None = None
    """Of `files`: the format of additional label lists."""
    final: Path | None = None
    """The dataset's final path, for lists with absolute paths; None: `folder`."""


class Record(NamedTuple):
    """One sample as every layout stores it."""

    number: int
    """Its index in the dataset."""
    wnid: str
    name: str
    """File name, unique within its class."""
    label: int
    data: bytes | memoryview
    """Of `files`: empty where the worker has already written the file."""
    place: int | None = None
    """The index of its image in the shuffled source, which includes bad images; None: the same as
    `number`."""


class Layout(Protocol):
    """A writer of records, used as a context manager; leaving it without `finish` keeps what has
    been written.

    With `start` it resumes in a folder in which at most that many records had been written before a
    kill. It determines how many of them are complete, counted from the first, and drops the rest.
    """

    def __init__(self, target: Target, start: int = 0) -> None: ...

    @property
    def shards(self) -> int | None:
        """Number of shards, for the manifest; valid once all records have been added."""

    def num_durable(self) -> int:
        """Number of records that are completely written; after opening, the number of the next
        record to add.
        """

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError on failure."""

    def finish(self) -> None:
        """Write everything to the file system; called once all records have been added."""

    def __enter__(self) -> "Layout": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`, or raise OSError: on a full disk write() writes a part, and fails the
    next time.
    """
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])
