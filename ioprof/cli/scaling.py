"""The multiple of a dataset that a job is to read: found beside the dataset, or made there."""

from typing import Final

import numpy as np

from ioprof.cli.console import progress, say
from ioprof.converters.multiples import Multiple, plan_multiple, stored_labels
from ioprof.dataset import MANIFEST_NAME, Dataset
from ioprof.errors import CommandError
from ioprof.loaders.scaling import Scale, balanced_subset, check_scalable

_WORTH_PROCESSES_BYTES: Final = 1 << 27


def scaled(dataset: Dataset, scale: Scale) -> Dataset:
    """That multiple of the dataset; made at first use, and said so. Raises `CommandError` or `DatasetError`."""
    if scale.is_one:
        return dataset
    check_scalable(dataset, scale)
    folder, source = scale.beside(dataset.path.resolve()), scale.source(dataset)
    if (folder / MANIFEST_NAME).is_file():
        found = Dataset.load(folder)
        if found.source != source:
            raise CommandError(f"{folder}: is not {source}, but {found.source[:200]!r}; move it, or remove it: rm -r {folder}")
        say(f"--dataset-scale {scale}: using {folder}")
        return found
    workers = 1 if dataset.bytes * scale.factor < _WORTH_PROCESSES_BYTES else None
    chosen = _chosen(dataset, scale, workers)
    return _made(plan_multiple(dataset, folder, scale.copies, chosen, float(scale.factor), source, workers))


def _chosen(dataset: Dataset, scale: Scale, workers: int | None) -> np.ndarray:
    if not scale.fraction:
        return np.empty(0, dtype=np.int64)
    with progress("labels", dataset.records) as advance:
        labels = stored_labels(dataset, workers, advance)
    return balanced_subset(labels, scale.fraction, dataset.shuffle_seed)


def _made(multiple: Multiple) -> Dataset:
    what = "an index of" if multiple.is_view else "a copy of"
    say(f"{multiple.destination}: making it, {what} {multiple.records} records (once)")
    if done := multiple.done():
        say(f"goes on with what the same command has done before: {done} of {multiple.records} records")
    with progress("scale", multiple.records) as advance:
        return multiple.run(advance)
