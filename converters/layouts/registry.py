"""The layouts by name. Each is a writer that receives the records in order."""

from typing import Any, Final

from ioprof.converters.layouts.files_layout import FilesLayout
from ioprof.converters.layouts.interface import Layout, Record, Target
from ioprof.converters.layouts.lmdb_layout import LmdbLayout
from ioprof.converters.layouts.parquet_layout import ParquetLayout
from ioprof.converters.layouts.raw_layout import RawLayout
from ioprof.converters.layouts.webdataset_layout import WebdatasetLayout

__all__ = [
    "LAYOUTS",
    "FilesLayout",
    "Layout",
    "LmdbLayout",
    "ParquetLayout",
    "RawLayout",
    "Record",
    "Target",
    "WebdatasetLayout",
]

LAYOUTS: Final[dict[str, type[Any]]] = {
    "files": FilesLayout,
    "lmdb": LmdbLayout,
    "webdataset": WebdatasetLayout,
    "parquet": ParquetLayout,
    "raw": RawLayout,
}
"""Name on the command line and in the manifest → its writer, a `Layout`."""
