"""Loaders: datasets to batches of uint8 images, for one rank, in a seeded order that is the same for every layout.

To add one: a file with a class that has `check` and `read` (see `files.py`), and its line in `LOADERS`.
"""

from typing import TYPE_CHECKING, Final

from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.loaders.base import Loader, LoaderOptions

if TYPE_CHECKING:
    from ioprof.loaders.base import Records

LOADERS: Final = {
    "null": "null",
    "files": "files:FileRecords",
    "lmdb": "lmdb_records:LmdbRecords",
}
"""Name of each loader, and the class that reads its records; `null` reads nothing."""


def check_loader(name: str, dataset: Dataset | None, options: LoaderOptions) -> None:
    """Raise the error that a job with this loader would end with, before the job is started; reads next to nothing."""
    if name not in LOADERS:
        raise CommandError(f"--loader {name}: unknown; choose one of {', '.join(LOADERS)}")
    if name == "null":
        return
    if dataset is None:
        raise CommandError(f"--loader {name} needs a dataset; make one with: ioprof convert imagenet SOURCE DATASET")
    if dataset.layout != name:
        layout = dataset.layout
        raise CommandError(f"--loader {name} cannot read {dataset.path}, whose layout is {layout}; use --loader {layout}")
    if dataset.records < options.num_ranks:
        ranks = options.num_ranks
        raise CommandError(f"{dataset.path}: {dataset.records} records are too few for {ranks} ranks; use fewer --ranks")
    open_records(name, dataset).check()


def open_records(name: str, dataset: Dataset) -> "Records":
    """The reader of the records of `dataset` for the loader `name`; opens nothing until it is used."""
    from importlib import import_module

    module, _, reader = LOADERS[name].partition(":")
    records: Records = getattr(import_module(f"ioprof.loaders.{module}"), reader)(dataset)
    return records


def make_loader(name: str, dataset: Dataset | None, options: LoaderOptions) -> Loader:
    """A loader that yields the batches of one rank; imports torch."""
    if name == "null":
        from ioprof.loaders.null import NullLoader

        return NullLoader(options)
    assert dataset is not None
    from ioprof.loaders.torch_loader import TorchLoader

    return TorchLoader(open_records(name, dataset), dataset.records, options)
