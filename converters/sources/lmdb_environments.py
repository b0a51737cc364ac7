"""LMDB environments of Caffe (`Datum`) and Caffe2 (`TensorProtos`), as a source."""

from pathlib import Path
from typing import Final

from ioprof.converters.sources.foreign_files import head_of, mapped, shown_name
from ioprof.converters.sources.record_table import RecordTable
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import Source
from ioprof.errors import DatasetError
from ioprof.foreign import lmdb_format, lmdb_tree, tensorprotos

DATA: Final = "data.mdb"
_SPLITS: Final = {"val": ("val", "validation"), "validation": ("val", "validation")}
_METADATA: Final = (b"__len__", b"__keys__", b"__classes__", b"__meta__")
"""Entries that some writers add beside the records."""


def open_lmdb(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The environment `path`, or those in folders of the split in it, as a source."""
    files = _find(path, split)
    if not files:
        return None
    table = RecordTable("lmdb", refusals)
    for file in files:
        where = str(file.absolute())
        with mapped(file) as content:
            for key, start, end in lmdb_tree.entries(content, where):
                name = key.decode(errors="replace").rstrip("\0")
                if key in _METADATA:
                    continue
                try:
                    label = tensorprotos.decode(content[start:end])[2]
                except DatasetError as error:
                    refusals.add(
                        f"{file.parent.name}/{name}",
                        DatasetError(f"{where} key {name[:80]!r}: {error}"),
                    )
                    continue
                table.add(where, start, end - start, _without_number(name), label=label)
    return table.finish(f"{len(files)} LMDB environments of {shown_name(path)}", path)


def _find(path: Path, split: str) -> list[Path]:
    if not path.is_dir():
        return [path] if lmdb_format.is_lmdb(head_of(path)) else []
    for folder in (path, path / split):
        if lmdb_format.is_lmdb(head_of(folder / DATA)):
            return [folder / DATA]
    found = sorted(file for file in path.glob(f"*/{DATA}") if lmdb_format.is_lmdb(head_of(file)))
    words = _SPLITS.get(split, (split,))
    return [file for file in found if any(word in file.parent.name for word in words)] or found


def _without_number(key: str) -> str:
    """Without the `%08d_` that keeps the keys in order."""
    number, underscore, name = key.partition("_")
    return name if underscore and name and len(number) >= 8 and number.isdigit() else key
