"""A dataset in another layout: the same records in the same order, so the digest stays, and nothing
is decoded.
"""

from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ioprof import __version__
from ioprof.converters.job.dataset_writer import DatasetWriter, Job, Outcome, Resumable, Tally
from ioprof.converters.job.destination import SPACE_MARGIN, check_destination, require_space
from ioprof.converters.job.multiples import Multiple, storage_options
from ioprof.converters.job.partial_output import PartialOutput
from ioprof.converters.layouts.registry import LAYOUTS
from ioprof.converters.options import ConvertOptions, LayoutOptions
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import MANIFEST_NAME, Dataset
from ioprof.reporter import Advance

_RECORD_OVERHEAD_BYTES = 4096


@dataclass(frozen=True)
class Relayout(Resumable):
    """A planned copy of a dataset in another layout."""

    dataset: Dataset
    destination: Path
    options: ConvertOptions
    was_done: bool = False
    """The same command has finished before."""

    @property
    def images(self) -> int:
        """Number of records."""
        return self.dataset.records

    def run(self, advance: Advance = lambda _: None) -> Dataset:
        """Write it, from the start or from where it was interrupted; raises `CommandError` or
        `DatasetError`.
        """
        if not self.was_done:
            self._job.run(self._outcomes, advance)
        return Dataset.load(self.destination)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What a finished dataset must agree in to be the result of the same command."""
        stored = ("layout", "shards", "shard_bytes", "labels")
        return {
            "dataset": self.dataset.digest,
            **{key: getattr(self.options, key) for key in stored},
        }

    @cached_property
    def _job(self) -> Job:
        dataset = self.dataset
        writer = DatasetWriter(
            self.destination,
            self.options,
            dataset.classes,
            dataset.source,
            0,
            dataset.records,
            dataset.records,
            conversion=self.settings,
        )
        kept = {
            key: getattr(dataset, key)
            for key in ("image", "label_convention", "shuffle_seed", "scale", "quarantined")
        }

        def manifest(tally: Tally) -> dict[str, Any]:
            made = replace(writer.manifest(self.destination, tally), **kept)
            if dataset.is_read and made.digest != dataset.digest:
                raise DatasetError(
                    f"{dataset.path}: its records differ from its manifest; see: ioprof verify"
                    f" {dataset.path}"
                )
            return made.manifest()

        return Job(
            writer,
            {**self.settings, "image": asdict(dataset.image), "version": __version__},
            MANIFEST_NAME,
            manifest,
        )

    def _outcomes(self, first: int) -> Generator[list[Outcome]]:
        dataset = self.dataset
        whole = Multiple(
            dataset,
            self.destination,
            1,
            np.empty(0, np.int64),
            dataset.scale,
            dataset.source,
            self.options.workers,
        )
        yield from whole.outcomes(first)


def plan_relayout(source: Path, destination: Path, options: LayoutOptions) -> Relayout:
    """Check dataset, destination and free space; raises `CommandError` or `DatasetError` for what
    would stop the work.
    """
    if options.layout not in LAYOUTS:
        raise CommandError(f"--layout {options.layout!r}: choose one of {', '.join(LAYOUTS)}")
    dataset = Dataset.load(source)
    stored = storage_options(dataset, options.workers, options)
    target = check_destination(destination, force=True)
    if target == dataset.path.resolve() or target in dataset.path.resolve().parents:
        raise CommandError(f"{destination}: is or holds the dataset {source}; give another place")
    plan = Relayout(dataset, target, stored)
    work = PartialOutput.for_destination(target)
    work.remove_if_empty()
    if not options.force and not work.is_renamed and is_finished(target, plan.settings):
        return replace(plan, was_done=True)
    if not work.is_renamed:
        check_destination(destination, options.force)
    left = dataset.records - plan.done_before
    needed = left * (dataset.bytes / dataset.records + _RECORD_OVERHEAD_BYTES) * SPACE_MARGIN
    require_space(target, round(needed), left if options.layout == "files" else 1)
    return plan


def is_finished(destination: Path, settings: dict[str, Any]) -> bool:
    """Whether `destination` is a dataset that was made with these settings."""
    try:
        return Dataset.load(destination).conversion == settings
    except DatasetError:
        return False
