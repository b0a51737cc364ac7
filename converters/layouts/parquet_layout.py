"""The layout `parquet`: shards as Hugging Face's `datasets` has them, in row groups that a reader
takes as a whole.

A shard is complete once its footer is written; it is called `NAME.part` until all are, because
their number is part of their names.
"""

import contextlib
import json
import re
from pathlib import Path
from typing import Any, Final

from ioprof.converters.layouts.interface import Record, Target
from ioprof.errors import DatasetError
from ioprof.foreign.parquet_rows import IMAGE, LABEL, ParquetRows, import_pyarrow
from ioprof.format.dataset import PARQUET_FOLDER, parquet_name

DEFAULT_SHARD_BYTES: Final = 1 << 27
"""A kill loses what is in the shard that is being written."""
GROUP_RECORDS: Final = 100
"""As Hugging Face's `datasets` writes images."""
GROUP_BYTES: Final = 1 << 25
_PART: Final = ".part"


class ParquetLayout:
    """Shards and row groups end where the sums of their records' bytes say, so they depend on the
    records alone.
    """

    def __init__(self, target: Target, start: int = 0) -> None:
        self._pyarrow = import_pyarrow(target.folder)
        self._split, self._folder = target.split, target.folder / PARQUET_FOLDER
        self._folder.mkdir(exist_ok=True)
        self._max_bytes = target.shard_bytes or DEFAULT_SHARD_BYTES
        self._schema = self._make_schema(target)
        self._writer: Any = None
        self._group: list[Record] = []
        self._group_bytes = self._bytes = 0
        self._shard, self._durable = self._find_end(start)

    @property
    def shards(self) -> int:
        """Number of shards, for the manifest; valid once all records have been added."""
        return self._shard

    def num_durable(self) -> int:
        """Number of records in complete shards."""
        return self._durable

    def add(self, record: Record) -> None:
        """Take the next record, which is written with its row group; raises OSError on failure."""
        size = len(record.data)
        if self._bytes and self._bytes + size > self._max_bytes:
            self._end_shard()
        if self._group and (
            len(self._group) >= GROUP_RECORDS or self._group_bytes + size > GROUP_BYTES
        ):
            self._end_group()
        # a view is valid until the next record
        self._group.append(record._replace(data=bytes(record.data)))
        self._group_bytes += size
        self._bytes += size

    def finish(self) -> None:
        """Write the last shard, and give all of them their names."""
        self._end_shard()
        for number in range(self._shard):
            for path in _complete(self._folder, self._split, number):
                path.rename(self._folder / parquet_name(self._split, number, self._shard))

    def _end_group(self) -> None:
        if not self._group:
            return
        if self._writer is None:
            path = self._part(self._shard).with_suffix(".tmp")
            # JPEGs do not become smaller, and pixels would take longer to read than they save.
            self._writer = self._pyarrow.parquet.ParquetWriter(
                path, self._schema, compression="none", use_dictionary=False
            )
        columns = {
            IMAGE: [{"bytes": record.data, "path": record.name} for record in self._group],
            LABEL: [record.label for record in self._group],
        }
        self._writer.write_table(
            self._pyarrow.table(columns, schema=self._schema), row_group_size=len(self._group)
        )
        self._group, self._group_bytes = [], 0

    def _end_shard(self) -> None:
        self._end_group()
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        part = self._part(self._shard)
        part.with_suffix(".tmp").rename(part)
        self._shard, self._bytes = self._shard + 1, 0

    def _part(self, number: int) -> Path:
        return self._folder / f"{self._split}-{number:05d}{_PART}"

    def _find_end(self, start: int) -> tuple[int, int]:
        shard = durable = 0
        while found := _complete(self._folder, self._split, shard):
            rows = _num_rows(found[0])
            if rows is None or durable + rows > start:
                break
            shard, durable = shard + 1, durable + rows
        kept = {
            path for number in range(shard) for path in _complete(self._folder, self._split, number)
        }
        for path in set(self._folder.iterdir()) - kept:
            path.unlink()
        for number in range(shard):  # a kill while they were renamed
            for path in _complete(self._folder, self._split, number):
                path.rename(self._part(number))
        return shard, durable

    def _make_schema(self, target: Target) -> Any:
        pyarrow = self._pyarrow
        image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        features = {
            IMAGE: {"_type": "Image"},
            LABEL: {"names": list(target.wnids), "_type": "ClassLabel"},
        }
        if target.image.encoding == "raw":  # pixels are no file that an `Image` could decode
            features[IMAGE] = {
                "bytes": {"dtype": "binary", "_type": "Value"},
                "path": {"dtype": "string", "_type": "Value"},
            }
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        return pyarrow.schema([(IMAGE, image), (LABEL, pyarrow.int64())], metadata=metadata)

    def __enter__(self) -> "ParquetLayout":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            # `add` has already reported a full disk
            with contextlib.suppress(OSError, self._pyarrow.ArrowException):
                self._writer.close()


def complete_shards(folder: Path, split: str) -> list[Path]:
    """The complete shards of a dataset that may be unfinished, in order."""
    found: list[Path] = []
    while shard := _complete(folder / PARQUET_FOLDER, split, len(found)):
        found.append(shard[0])
    return found


def _complete(folder: Path, split: str, number: int) -> list[Path]:
    name = re.compile(re.escape(f"{split}-{number:05d}") + r"(?:\.part|-of-\d{5,}\.parquet)")
    return [path for path in folder.glob(f"*-{number:05d}*") if name.fullmatch(path.name)]


def _num_rows(path: Path) -> int | None:
    try:
        rows = ParquetRows(path)
    except DatasetError:
        return None
    rows.close()
    return sum(rows.group_sizes)
