"""How records are laid out on disk. Each layout is a writer that is given the records in order."""

from typing import Any, Final

from ioprof.converters.environments import LmdbLayout
from ioprof.converters.image_files import FilesLayout
from ioprof.converters.shards import WebdatasetLayout
from ioprof.converters.target import Layout, Record, Target

__all__ = ["LAYOUTS", "FilesLayout", "Layout", "LmdbLayout", "Record", "Target", "WebdatasetLayout"]

LAYOUTS: Final[dict[str, type[Any]]] = {"files": FilesLayout, "lmdb": LmdbLayout, "webdataset": WebdatasetLayout}
"""Name on the command line and in the manifest → its writer, a `Layout`."""
