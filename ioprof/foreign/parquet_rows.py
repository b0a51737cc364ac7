"""Rows of the layout `parquet`: an image with its file name, and a label, in row groups that are
read as a whole.

    image   struct { bytes: binary, path: string }        label   int64

The metadata of the schema says to Hugging Face's `datasets` what the columns are. pyarrow is
imported when it is needed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ioprof.errors import CommandError, DatasetError

IMAGE: Final = "image"
LABEL: Final = "label"
MAX_GROUP_BYTES: Final = 1 << 31
_AGAIN: Final = "convert the dataset again"


class Row(NamedTuple):
    """One record."""

    name: str
    label: int
    data: bytes


def import_pyarrow(path: Path | str) -> Any:
    """The library, with its module `parquet`; raises `CommandError` where it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CommandError(
            f"{path}: Parquet needs pyarrow; install it with: pip install 'ioprof[parquet]'",
            exit_code=1,
        ) from None
    return pyarrow


class ParquetRows:
    """One shard, open for reading; raises `DatasetError` that names it."""

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)
        self._pyarrow = import_pyarrow(path)
        if not Path(path).is_file():
            raise DatasetError(
                f"{path}: {'not a regular file' if Path(path).exists() else 'missing'}; {_AGAIN}"
            )
        try:
            self._file = self._pyarrow.parquet.ParquetFile(path, memory_map=False, pre_buffer=False)
            self.group_sizes: Sequence[int] = [
                self._file.metadata.row_group(group).num_rows
                for group in range(self._file.num_row_groups)
            ]
        except (self._pyarrow.ArrowException, ValueError, OSError) as error:
            raise self._damaged(
                f"not a Parquet file that can be read ({str(error)[:100]})"
            ) from None
        names = self._file.schema_arrow.names
        if IMAGE not in names or LABEL not in names or min(self.group_sizes, default=1) < 0:
            raise self._damaged(f"no columns {IMAGE} and {LABEL} ({', '.join(names)[:100]})")

    def group(self, number: int) -> list[Row]:
        """The rows of a row group, by one read of it."""
        if self._file.metadata.row_group(number).total_byte_size > MAX_GROUP_BYTES:
            raise self._damaged(f"row group {number} has more than {MAX_GROUP_BYTES} bytes")
        try:
            table = self._file.read_row_group(number, columns=[IMAGE, LABEL], use_threads=False)
            images, labels = table.column(IMAGE).to_pylist(), table.column(LABEL).to_pylist()
        except (self._pyarrow.ArrowException, ValueError, OSError) as error:
            raise self._damaged(f"row group {number} cannot be read ({str(error)[:100]})") from None
        rows = []
        for image, label in zip(images, labels, strict=True):
            name, data = (
                (image.get("path"), image.get("bytes")) if isinstance(image, dict) else (None, None)
            )
            if (
                not isinstance(name, str)
                or not isinstance(data, bytes)
                or not isinstance(label, int)
            ):
                raise self._damaged(f"row group {number} has a row without image, name or label")
            rows.append(Row(name, label, data))
        if len(rows) != self.group_sizes[number]:
            raise self._damaged(
                f"row group {number} has {len(rows)} rows, and announces {self.group_sizes[number]}"
            )
        return rows

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _damaged(self, what: str) -> DatasetError:
        return DatasetError(f"{self._path}: {what}; {_AGAIN}")
