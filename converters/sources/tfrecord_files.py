"""TFRecord files of `tf.train.Example` with `image/encoded` and a label, as a source.

The checksum of each record is compared when it is read; those of the lengths at once.
"""

from pathlib import Path
from typing import Final

from ioprof.converters.sources.foreign_files import find_shards, head_of, mapped, shown_name
from ioprof.converters.sources.record_table import RecordTable
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import Source
from ioprof.errors import CommandError, DatasetError
from ioprof.foreign import tfrecord

_SUFFIXES: Final = (".tfrecord", ".tfrecords", ".tfrec", ".tfr")
_GZIP: Final = b"\x1f\x8b"


def open_tfrecord(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The file `path`, or the files in the folder `path` that belong to `split`, as a source."""
    files = find_shards(path, split, _SUFFIXES) or _without_suffix(path, split)
    if not files:
        return None
    if head_of(files[0]).startswith(_GZIP):
        raise CommandError(
            f"{files[0]}: compressed TFRecord files cannot be read at random; unpack them first"
            " with gunzip"
        )
    table = RecordTable("tfrecord", refusals)
    for file in files:
        where = str(file.absolute())
        with mapped(file) as content:
            for start, end in tfrecord.frames(content, where):
                try:
                    found = tfrecord.parse_example(content, start + tfrecord.HEAD_BYTES, end - 4)
                except DatasetError as error:
                    refusals.add(
                        f"{file.name}@{start}",
                        DatasetError(f"{where}: the record at byte {start}: {error}"),
                    )
                    continue
                table.add(
                    where,
                    start,
                    end - start,
                    found.name,
                    label=found.label,
                    class_name=found.synset,
                )
    return table.finish(f"{len(files)} TFRecord files of {shown_name(path)}", path)


def _without_suffix(path: Path, split: str) -> list[Path]:
    """Files called `train-00000-of-01024`, as the scripts for ImageNet name them."""
    if path.is_dir():
        found = sorted(
            file
            for folder in (path / split, path)
            if folder.is_dir()
            for file in folder.glob(f"{split}*-of-*")
        )
        found = [file for file in found if not file.suffix]
    else:
        found = [path]
    return found if found and tfrecord.is_tfrecord(head_of(found[0])) else []
