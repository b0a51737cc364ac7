"""Loaders: datasets to batches of uint8 images, for one rank, in a seeded order.

    null         one random batch again and again: the upper bound of every other loader
    files        torch's DataLoader, a file per image                  one order for both of them, whatever the
    lmdb         the same on LMDB, by its memory map or by reads       layout and the number of workers
    webdataset   the same on tars, each read from end to end           an order that depends on ranks and workers
    parquet      row groups of Parquet shards, each read as a whole     an order that depends on ranks and workers
    raw          one packed file and its index, by map or by reads     the order of files and lmdb
    indexed      records in files of other programs, by an index       the order of files and lmdb
    threads      any of these layouts, by threads of the rank           the order of the layout's own loader
    dali         DALI's own readers, threads and decoders              an order of DALI's

To add one: a file with a subclass of `records.Records`, or a `base.Backend` of its own, and its
line in `LOADERS`. Then tests/test_loader_contract.py, which states what a loader must do, runs on
it.
"""  # noqa: E501

from importlib import import_module
from typing import TYPE_CHECKING, Final

from ioprof.errors import CommandError
from ioprof.loaders.base import Backend, Loader, LoaderOptions
from ioprof.options import check_options

if TYPE_CHECKING:
    from ioprof.format.dataset import Dataset
    from ioprof.loaders.records import Records

LOADERS: Final = {
    "null": "null:NullBackend",
    "files": "files:FileRecords",
    "lmdb": "lmdb_records:LmdbRecords",
    "webdataset": "tar_shards:TarRecords",
    "parquet": "parquet_groups:ParquetRecords",
    "raw": "packed:RawRecords",
    "indexed": "packed:IndexedRecords",
    "threads": "thread_loader:ThreadBackend",
    "dali": "dali_loader:DaliBackend",
}
"""Name of each loader, and its `base.Backend`."""


def backend_kind(name: str) -> type[Backend]:
    """The class of a loader by its name; `CommandError` if there is none."""
    if name not in LOADERS:
        raise CommandError(f"--loader {name}: unknown; choose one of {', '.join(LOADERS)}")
    module, _, kind = LOADERS[name].partition(":")
    found: type[Backend] = getattr(import_module(f"ioprof.loaders.{module}"), kind)
    return found


def check_loader(name: str, dataset: "Dataset | None", options: LoaderOptions) -> None:
    """Raise the error that a job with this loader would end with, before the job is started; reads
    next to nothing.
    """
    kind = backend_kind(name)
    check_options(options)
    if kind.layouts:
        _check_dataset(name, kind, dataset, options)
    kind(dataset, options).check()


def open_records(name: str, dataset: "Dataset", options: LoaderOptions | None = None) -> "Records":
    """The records of `dataset`, for a loader that reads them one by one; opens nothing until it is
    used.
    """
    from ioprof.loaders.records import Records

    found = backend_kind(name)(
        dataset, options or LoaderOptions(batch_size=1, num_batches=dataset.records, workers=0)
    )
    assert isinstance(found, Records)
    return found


def make_loader(name: str, dataset: "Dataset | None", options: LoaderOptions) -> Loader:
    """A loader that yields the batches of one rank; imports torch."""
    from ioprof.loaders.filling import FillingOptions, filling

    if isinstance(options, FillingOptions):
        return filling(name, dataset, options).loader()
    return backend_kind(name)(dataset, options).loader()


def _check_dataset(
    name: str, kind: type[Backend], dataset: "Dataset | None", options: LoaderOptions
) -> None:
    if dataset is None:
        raise CommandError(
            f"--loader {name} needs a dataset; make one with: ioprof convert imagenet SOURCE"
            " DATASET"
        )
    if dataset.layout not in kind.layouts:
        layout = dataset.layout
        raise CommandError(
            f"--loader {name} cannot read {dataset.path}, whose layout is {layout}; use --loader"
            f" {layout}"
        )
    if dataset.records < options.num_ranks:
        ranks = options.num_ranks
        raise CommandError(
            f"{dataset.path}: {dataset.records} records are too few for {ranks} ranks; use fewer"
            " --ranks"
        )
