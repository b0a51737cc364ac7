"""Plans and runs a conversion or a merge, with messages and progress for the user."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.converters.job.conversion import Conversion, plan_conversion
from ioprof.converters.job.engines import Engine
from ioprof.converters.job.parts import FinishedPart, Merge, Part, WrittenMerge, plan_merge
from ioprof.converters.job.relayout import Relayout, plan_relayout
from ioprof.converters.layouts.lustre_striping import is_lustre, recommended_stripes
from ioprof.converters.manifests import PART_NAME
from ioprof.converters.options import ConvertOptions, LayoutOptions
from ioprof.format.dataset import MANIFEST_NAME, Dataset
from ioprof.reporter import SILENT, Advance, Reporter, note

_SHOWN_SUFFIXES: Final = 5


@dataclass(frozen=True)
class ConversionResult:
    """What a conversion, or a merge of its parts, has made."""

    dataset: Dataset | FinishedPart
    """The dataset; a part of one if that was asked for."""
    images: int
    """Images that were read, those of an interrupted run of the same conversion included."""
    resumed_images: int
    """Of these, how many an interrupted run had done before."""
    passed_over: dict[str, int]
    """Files of the source that are no images by their names: their number by suffix."""
    seconds: float
    """Wall time of this run, planning included."""
    was_done: bool = False
    """The same command had finished before, and nothing was left to do."""

    @property
    def path(self) -> Path:
        """The dataset's folder."""
        return self.dataset.path

    def text(self) -> str:
        """One line: records, bytes, rates of this run, and the files that were passed over."""
        made, images = self.dataset, self.images - self.resumed_images
        if self.was_done:
            return f"{made.path}: {made.records} records, {made.bytes / 1e6:.1f} MB"
        left_out = f", {len(made.quarantined)} quarantined" if made.quarantined else ""
        rates = f"{images / self.seconds:.0f} images/s"
        rates += (
            f" for the last {images}"
            if self.resumed_images
            else f", {made.bytes / 1e6 / self.seconds:.1f} MB/s"
        )
        text = (
            f"{made.path}: {made.records} records{left_out}, {made.bytes / 1e6:.1f} MB in"
            f" {self.seconds:.1f} s ({rates})"
        )
        if not self.passed_over:
            return text
        kinds = [
            f"{suffix} {count}"
            for suffix, count in list(self.passed_over.items())[:_SHOWN_SUFFIXES]
        ]
        more = ", ..." if len(self.passed_over) > _SHOWN_SUFFIXES else ""
        passed_over = (
            f"{sum(self.passed_over.values())} files passed over: not images by their names"
        )
        return f"{text}; {passed_over} ({', '.join(kinds)}{more})"

    def to_json(self, **more: object) -> str:
        """The manifest (of a part: part.json), path and seconds, and `more` keys, as one JSON
        object.
        """
        return json.dumps(
            {**self.dataset.manifest(), "path": str(self.path), "seconds": self.seconds, **more}
        )

    def quarantined_text(self) -> str | None:
        """How many images were quarantined, where they are listed, and the first of them; None:
        none was.
        """
        quarantined = self.dataset.quarantined
        if not quarantined:
            return None
        first, where = (
            quarantined[0],
            MANIFEST_NAME if isinstance(self.dataset, Dataset) else PART_NAME,
        )
        return (
            f"quarantined {len(quarantined)} images, listed in {where}; the first: {first['name']}:"
            f" {first['reason']}"
        )


def run_conversion(
    source: Path,
    destination: Path,
    options: ConvertOptions,
    part: Part | None = None,
    engine: Engine | None = None,
    reporter: Reporter = SILENT,
    *,
    now_s: Callable[[], float] = time.perf_counter,
    on_lustre: Callable[[Path], bool] = is_lustre,
) -> ConversionResult:
    """Make a dataset, or one part of it, at `destination`; resumes an interrupted run of the same
    conversion.

    Raises `CommandError` or `DatasetError`; what is done by then is kept for the same conversion to
    resume.
    """
    begin_s = now_s()
    conversion = plan_conversion(source, destination, options, part, engine)
    passed_over = conversion.source.passed_over
    # The stripes of a conversion that is resumed were chosen when its folder was made.
    if not conversion.done_before and on_lustre(conversion.destination):
        stripes = recommended_stripes(conversion.stored_as.layout, conversion.stored_as.shards)
        if conversion.stored_as.stripe:
            reporter.say(
                f"on Lustre: the new folder gets the stripes of {stripes.command}"
                f" ({stripes.reason})"
            )
        else:
            what = f"--stripe does {stripes.command} on the new folder, before anything is written"
            reporter.say(f"on Lustre: {what} ({stripes.reason})")
    made = _run(conversion, "convert", reporter)
    done = conversion.images if conversion.was_done else conversion.done_before
    return ConversionResult(
        made, conversion.images, done, passed_over, now_s() - begin_s, conversion.was_done
    )


def run_merge(
    destination: Path, force: bool = False, workers: int | None = None, reporter: Reporter = SILENT
) -> ConversionResult:
    """Make the dataset `destination` of its parts, and remove the parts; raises `CommandError` or
    `DatasetError`.
    """
    begin_s = time.perf_counter()
    merging = plan_merge(destination, force, workers)
    made = _run(merging, "merge", reporter)
    return ConversionResult(
        made,
        merging.images,
        merging.done_before,
        {},
        time.perf_counter() - begin_s,
        merging.was_done,
    )


def run_relayout(
    source: Path, destination: Path, options: LayoutOptions, reporter: Reporter = SILENT
) -> ConversionResult:
    """Make a dataset of another layout with the records of `source`; raises `CommandError` or
    `DatasetError`.
    """
    begin_s = time.perf_counter()
    plan = plan_relayout(source, destination, options)
    made = _run(plan, "copy", reporter)
    done = plan.images if plan.was_done else plan.done_before
    return ConversionResult(
        made, plan.images, done, {}, time.perf_counter() - begin_s, plan.was_done
    )


def _without_note(advance: Advance) -> Advance:
    """The same; what it notes is cleared once an image is done."""
    has_begun = False

    def counted(count: int, /) -> None:
        nonlocal has_begun
        if count and not has_begun:
            has_begun = True
            note(advance, "")
        advance(count)

    return counted


def _run(
    job: Conversion | Merge | Relayout | WrittenMerge, what: str, reporter: Reporter
) -> Dataset | FinishedPart:
    if job.was_done:
        reporter.say(f"{job.destination}: already done, same settings; nothing is changed")
        return job.run()
    if job.done_before:
        reporter.say(
            f"resuming: the same command has done {job.done_before} of {job.images} images before"
        )
    try:
        with reporter.progress(what, job.images) as advance:
            note(advance, "starting workers")
            return job.run(_without_note(advance))
    except KeyboardInterrupt:
        if job.done():
            reporter.say("what is done is kept: the same command resumes from there")
        raise
