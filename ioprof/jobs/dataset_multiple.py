"""The multiple of a dataset that a job reads: used if it was made before, else made next to the
dataset.
"""

from typing import Final

import numpy as np

from ioprof.errors import CommandError
from ioprof.format.dataset import MANIFEST_NAME, Dataset
from ioprof.format.run_record import DistinctBytes
from ioprof.loaders.scaling import Scale, balanced_subset, check_scalable
from ioprof.reporter import SILENT, Reporter
from ioprof.storage import describe
from ioprof.storage.shared_extents import extent_sharing

_WORTH_PROCESSES_BYTES: Final = 1 << 27
_MOST_FILES: Final = 100_000


def multiple_of(dataset: Dataset, scale: Scale, reporter: Reporter = SILENT) -> Dataset:
    """The dataset times `scale`; made at first use, in a folder next to the dataset's. Raises
    `CommandError` or `DatasetError`.
    """
    if scale.is_one:
        return dataset
    check_scalable(dataset, scale)
    folder, source = scale.beside(dataset.path.resolve()), scale.source(dataset)
    if (folder / MANIFEST_NAME).is_file():
        found = Dataset.load(folder)
        if found.source != source:
            raise CommandError(
                f"{folder}: is not {source}, but {found.source[:200]!r}; move it, or remove it: rm"
                f" -r {folder}"
            )
        reporter.say(f"--dataset-scale {scale}: using {folder}")
        return found
    # loads the libraries of images and layouts
    from ioprof.converters.job.multiples import (
        plan_multiple,
        stored_labels,
    )

    workers = 1 if dataset.bytes * scale.factor < _WORTH_PROCESSES_BYTES else None
    subset = np.empty(0, dtype=np.int64)
    if scale.fraction:
        with reporter.progress("labels", dataset.records) as advance:
            labels = stored_labels(dataset, workers, advance)
        subset = balanced_subset(labels, scale.fraction, dataset.shuffle_seed)
    multiple = plan_multiple(
        dataset, folder, scale.copies, subset, float(scale.factor), source, workers
    )
    what = "an index of" if multiple.is_view else "a copy of"
    reporter.say(f"{multiple.destination}: making it, {what} {multiple.records} records (once)")
    if done := multiple.done():
        reporter.say(
            f"resuming: the same command has done {done} of {multiple.records} records before"
        )
    with reporter.progress("scale", multiple.records) as advance:
        return multiple.run(advance)


def shared_blocks(dataset: Dataset | None, reporter: Reporter = SILENT) -> DistinctBytes | None:
    """How many bytes of a multiple's copies share their blocks on the disk with others (reflinks,
    deduplication), for run.json.

    None where there are no copies: no dataset, or at most 1x.
    """
    if dataset is None or dataset.scale <= 1:
        return None
    found = extent_sharing(
        dataset.data_files()[-_MOST_FILES:], describe(dataset.path).file_system or ""
    )
    if found.shared_bytes:
        reporter.say(
            f"{dataset.path}: {found.shared_bytes / found.bytes:.0%} of the bytes share their"
            " blocks on the disk with others"
        )
    elif found.reason:
        reporter.say(
            f"{dataset.path}: not known whether its copies are so many bytes on the disk:"
            f" {found.reason}"
        )
    return DistinctBytes.of(found.facts())
