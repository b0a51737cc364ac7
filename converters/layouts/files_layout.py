"""The layout `files`: a file per record in class folders, and an index that lists them in order."""

import contextlib
from pathlib import Path
from typing import Final

from ioprof.converters.layouts.interface import Record, Target
from ioprof.converters.layouts.record_file_writer import RecordFileWriter
from ioprof.errors import CommandError

LABEL_TABLE: Final = "label_table.ssv"


class FilesLayout:
    """Each line of the index is written after its file, so every file in the index exists."""

    shards = None

    def __init__(self, target: Target, start: int = 0) -> None:
        self._target = target
        if target.labels == "ssv":
            _check_no_space(str(self._final))
        # All classes, including those that `--limit` leaves empty: tools that number the folders
        # must get the same labels.
        for wnid in target.wnids:
            (target.folder / target.split / wnid).mkdir(parents=True, exist_ok=True)
        self._path = target.folder / f"{target.split}.txt"
        self._files = RecordFileWriter(target.folder)
        self._durable = _cut_index(self._path, start)
        self._index = self._path.open("a", encoding="utf-8", newline="\n")

    def num_durable(self) -> int:
        """Number of records in the index."""
        return self._durable

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError on failure."""
        path = f"{self._target.split}/{record.wnid}/{record.name}"
        if self._target.labels == "ssv":
            _check_no_space(path)
        if len(record.data):
            self._files.write(path, record.data)
        self._index.write(f"{path} {record.label}\n")

    def finish(self) -> None:
        """Flush the index, and write the further label lists; called once all records have been
        added.
        """
        self._index.flush()
        if self._target.labels == "ssv":
            self._write_ssv()

    @property
    def _final(self) -> Path:
        return (self._target.final or self._target.folder).absolute()

    def _write_ssv(self) -> None:
        folder, split = self._target.folder, self._target.split
        with (
            self._path.open(encoding="utf-8", newline="\n") as index,
            (folder / f"{split}.ssv").open("w", encoding="utf-8", newline="\n") as stream,
        ):
            for line in index:
                stream.write(f"{self._final}/{line}")
        table = "".join(f"{wnid} {label}\n" for label, wnid in enumerate(self._target.wnids))
        (folder / LABEL_TABLE).write_text(table, encoding="utf-8")

    def __enter__(self) -> "FilesLayout":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # `finish` has already reported a full disk
            self._index.close()


def _cut_index(path: Path, start: int) -> int:
    whole = end = 0
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as stream:
        for line in stream:
            if whole == start or not line.endswith(b"\n"):
                break
            whole, end = whole + 1, end + len(line)
        stream.truncate(end)
    return whole


def _check_no_space(path: str) -> None:
    if len(path.split()) != 1:
        raise CommandError(
            f"{path}: holds a space, which separates the columns of .ssv lists; rename it, or leave"
            " out --labels ssv"
        )
