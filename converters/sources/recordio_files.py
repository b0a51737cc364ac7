"""MXNet's RecordIO files of images (`.rec`), as a source; the `.idx` file beside one is not needed,
and is not read.
"""

from pathlib import Path
from typing import Final

from ioprof.converters.sources.foreign_files import find_shards, mapped, shown_name
from ioprof.converters.sources.record_table import RecordTable
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import Source
from ioprof.errors import DatasetError
from ioprof.foreign import recordio

_SUFFIXES: Final = (".rec",)


def open_recordio(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The file `path`, or the files in the folder `path` that belong to `split`, as a source."""
    files = find_shards(path, split, _SUFFIXES)
    if not files:
        return None
    table = RecordTable("recordio", refusals)
    for file in files:
        where = str(file.absolute())
        with mapped(file) as content:
            for record in recordio.records(content, where):
                key = f"{file.stem}_{record.number:08d}"
                if record.label != record.label or record.label != int(
                    min(max(record.label, -1.0), 2.0**40)
                ):
                    refusals.add(
                        key,
                        DatasetError(
                            f"{where}: record {record.number} has the label {record.label}, no"
                            " class"
                        ),
                    )
                    continue
                table.add(
                    where, record.start, record.end - record.start, key, label=int(record.label)
                )
    return table.finish(f"{len(files)} RecordIO files of {shown_name(path)}", path)
