"""Detection of a source's kind: ImageNet's archives, class folders, Kaggle's layout, shards of
other programs, synthetic images.

Each opener in `SOURCES` is tried in turn. Every name in a source is untrusted input.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from ioprof.converters.sources.archive_checksums import check_archives
from ioprof.converters.sources.arrow_files import open_arrow
from ioprof.converters.sources.image_folders import open_kaggle, open_tree
from ioprof.converters.sources.imagenet_tars import archive_name, open_tar
from ioprof.converters.sources.indexed_chunks import open_litdata, open_mds
from ioprof.converters.sources.lmdb_environments import open_lmdb
from ioprof.converters.sources.parquet_shards import open_parquet
from ioprof.converters.sources.recordio_files import open_recordio
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import Source
from ioprof.converters.sources.synthetic_source import open_synthetic
from ioprof.converters.sources.tfrecord_files import open_tfrecord
from ioprof.converters.sources.webdataset_shards import open_webdataset
from ioprof.errors import CommandError
from ioprof.format.dataset import MANIFEST_NAME

SOURCES: Final[dict[str, Callable[[Path, str, Refusals], Source | None]]] = {
    "webdataset": open_webdataset,
    "lmdb": open_lmdb,
    "tfrecord": open_tfrecord,
    "recordio": open_recordio,
    "arrow": open_arrow,
    "mds": open_mds,
    "litdata": open_litdata,
    "tars": open_tar,
    "kaggle": open_kaggle,
    "parquet": open_parquet,
    "tree": open_tree,
}
"""Each returns None when `path` is not of its kind, and raises when it is of its kind and cannot be
used."""


class UnknownSourceError(CommandError):
    """A path is no source of any kind."""


FORMATS: Final = {
    "webdataset": "webdataset: tars of samples or of class folders",
    "lmdb": "LMDB of Caffe Datum or Caffe2 TensorProtos",
    "tfrecord": "TFRecord of tf.train.Example",
    "recordio": "MXNet RecordIO",
    "arrow": "Hugging Face Arrow",
    "mds": "MosaicML MDS",
    "litdata": "LitData chunks",
    "tars": "ImageNet's tars",
    "kaggle": "ImageNet as Kaggle distributes it",
    "parquet": "Hugging Face Parquet",
    "tree": "class folders of images",
}
"""Kind of a source, a key of `SOURCES` → what it is."""


def open_source(path: Path, split: str, check_md5: bool = False, on_error: str = "fail") -> Source:
    """The source at `path`; raises `CommandError` or `DatasetError` if it cannot be used.

    With `on_error` "quarantine" a name or a member that cannot be used is left out, and listed in
    `Source.refused`. With `check_md5` ImageNet's archives in it are read first, and their MD5
    compared with the published values.
    """
    return open_synthetic(path) or detect(path, split, check_md5, on_error)[1]


def detect(
    path: Path, split: str, check_md5: bool = False, on_error: str = "quarantine"
) -> tuple[str, Source]:
    """Kind of the source at `path`, a key of `SOURCES`, and the source; raises as `open_source`
    does.
    """
    try:
        return _detect(path, split, check_md5, on_error)
    except OSError as error:
        raise CommandError(
            f"{error.filename or path}: cannot be read ({error.strerror or error})"
        ) from None


def _detect(path: Path, split: str, check_md5: bool, on_error: str) -> tuple[str, Source]:
    if not path.exists():
        raise CommandError(
            f"{path}: no such file or folder; give the folder of the class folders, or"
            f" {archive_name(split)}"
        )
    if (path / MANIFEST_NAME).exists():
        raise CommandError(
            f"{path}: already a dataset of ioprof ({MANIFEST_NAME}); another layout of it makes:"
            " ioprof convert dataset"
        )
    if check_md5:
        check_archives(path, split)
    for kind, opener in SOURCES.items():
        refusals = Refusals(stops=on_error == "fail")
        source = opener(path, split, refusals)
        if source is not None:
            return kind, replace(source, refused=tuple(refusals.found))
    raise UnknownSourceError(
        f"{path}: neither a folder of class folders with images nor {archive_name(split)} nor"
        " Parquet shards, nor any other form that is read (docs/formats.md)"
    )
