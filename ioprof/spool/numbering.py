"""One numbering of files and of names for all processes of a run."""

from dataclasses import dataclass, field

import polars as pl

from ioprof.schema import FILE_COLUMNS
from ioprof.spool.values import text
from ioprof.trace import empty_table, table_schema


@dataclass
class Numbering:
    """The run's numbers of files, and its names: the same bytes in two processes are one file."""

    files: dict[bytes, int] = field(default_factory=dict)
    names: dict[bytes, int] = field(default_factory=dict)

    def file(self, path: bytes) -> int:
        """The run's number of a file."""
        return self.files.setdefault(path, len(self.files))

    def files_table(self) -> pl.DataFrame:
        """The files that spans use, in the order of their numbers."""
        known = {"file": list(self.files.values()), "path": [text(path) for path in self.files]}
        missing = {name: None for name in FILE_COLUMNS if name not in known}
        return pl.DataFrame({**known, **missing}, schema=table_schema(FILE_COLUMNS)) if self.files else empty_table(FILE_COLUMNS)
