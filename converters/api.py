"""The public names of `ioprof.converters`."""

from pathlib import Path

from ioprof.converters.job.conversion import Conversion, plan_conversion
from ioprof.converters.job.destination import leftovers
from ioprof.converters.job.engines import engine_for
from ioprof.converters.job.generation import Generation, Synthetic, plan_generation
from ioprof.converters.job.partial_output import PartialOutput
from ioprof.converters.job.parts import (
    FinishedPart,
    Merge,
    Part,
    WrittenMerge,
    plan_merge,
    read_part,
)
from ioprof.converters.job.relayout import Relayout, plan_relayout
from ioprof.converters.job.running import ConversionResult, run_conversion, run_merge, run_relayout
from ioprof.converters.job.verification import Verification, plan_verification
from ioprof.converters.options import ConvertOptions, GenerateOptions, LayoutOptions
from ioprof.converters.sources.source_kinds import FORMATS, detect
from ioprof.format.dataset import Dataset
from ioprof.reporter import Advance, ignore_progress

__all__ = [
    "FORMATS",
    "Conversion",
    "ConversionResult",
    "ConvertOptions",
    "FinishedPart",
    "GenerateOptions",
    "Generation",
    "LayoutOptions",
    "Merge",
    "Part",
    "PartialOutput",
    "Relayout",
    "Synthetic",
    "Verification",
    "WrittenMerge",
    "convert",
    "detect",
    "engine_for",
    "generate",
    "leftovers",
    "plan_conversion",
    "plan_generation",
    "plan_merge",
    "plan_relayout",
    "plan_verification",
    "read_part",
    "run_conversion",
    "run_merge",
    "run_relayout",
]


def convert(
    source: Path,
    destination: Path,
    options: ConvertOptions | None = None,
    advance: Advance = ignore_progress,
) -> Dataset:
    """Make a dataset at `destination` from the images at `source`; `advance` is called with the
    number of images just finished.

    Raises `CommandError` or `DatasetError`; finished work is kept, and the same call resumes from
    it.
    """
    dataset = plan_conversion(source, destination, options or ConvertOptions()).run(advance)
    assert isinstance(dataset, Dataset)  # only a conversion with `part` returns a `FinishedPart`
    return dataset


def generate(
    destination: Path,
    options: GenerateOptions | None = None,
    advance: Advance = ignore_progress,
) -> Synthetic:
    """Make a synthetic ImageNet at `destination`. Like `convert`, but an interrupted generation
    keeps nothing.
    """
    return plan_generation(destination, options or GenerateOptions()).run(advance)
