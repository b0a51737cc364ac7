"""The layout `files`: a file per record in class folders, and the index in order."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ioprof.converters.record_files import RecordFiles
from ioprof.converters.target import Record, Target
from ioprof.errors import CommandError

LABEL_TABLE: Final = "label_table.ssv"


class FilesLayout:
    """A line of the index is written after its file, so what the index tells of is there."""

    shards = None

    def __init__(self, target: Target, start: int = 0) -> None:
        self._target = target
        if target.labels == "ssv":
            _check_one_word(str(self._final))
        # All classes, also those that a limit leaves empty: tools that number the folders must find the same labels.
        for wnid in target.wnids:
            (target.folder / target.split / wnid).mkdir(parents=True, exist_ok=True)
        self._path = target.folder / f"{target.split}.txt"
        self._files = RecordFiles(target.folder)
        self._durable = _cut_index(self._path, start)
        self._index = self._path.open("a", encoding="utf-8", newline="\n")

    def durable(self) -> int:
        """How many records are there for certain."""
        return self._durable

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError when it cannot."""
        path = f"{self._target.split}/{record.wnid}/{record.name}"
        if self._target.labels == "ssv":
            _check_one_word(path)
        if len(record.data):
            self._files.write(path, record.data)
        self._index.write(f"{path} {record.label}\n")

    def finish(self) -> None:
        """All records have been added: bring them to the file system."""
        self._index.flush()
        if self._target.labels == "ssv":
            self._write_ssv()

    @property
    def _final(self) -> Path:
        return (self._target.final or self._target.folder).absolute()

    def _write_ssv(self) -> None:
        folder, split = self._target.folder, self._target.split
        with (folder / f"{split}.ssv").open("w", encoding="utf-8", newline="\n") as stream:
            for line in _lines(self._path):
                stream.write(f"{self._final}/{line}")
        table = "".join(f"{wnid} {label}\n" for label, wnid in enumerate(self._target.wnids))
        (folder / LABEL_TABLE).write_text(table, encoding="utf-8")

    def __enter__(self) -> "FilesLayout":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a full disk has been reported by `finish` already
            self._index.close()


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as stream:
        yield from stream


def _cut_index(path: Path, start: int) -> int:
    whole = end = 0
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as stream:
        for line in stream:
            if whole == start or not line.endswith(b"\n"):
                break
            whole, end = whole + 1, end + len(line)
        stream.truncate(end)
    return whole


def _check_one_word(path: str) -> None:
    if len(path.split()) != 1:
        raise CommandError(f"{path}: holds a space, at which readers of .ssv lists cut; rename it, or leave out --labels ssv")
