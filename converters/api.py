"""What `ioprof.converters` offers."""

from collections.abc import Callable
from pathlib import Path

from ioprof.converters.conversion import Conversion, plan_conversion
from ioprof.converters.destination import leftovers
from ioprof.converters.engines import engine_for
from ioprof.converters.generation import Generation, Synthetic, plan_generation
from ioprof.converters.halfmade import HalfMade
from ioprof.converters.options import ConvertOptions, GenerateOptions
from ioprof.converters.parts import MadePart, Merged, Merging, Part, plan_merge, read_part
from ioprof.converters.verification import Verification, plan_verification
from ioprof.dataset import Dataset

__all__ = [
    "Conversion",
    "ConvertOptions",
    "GenerateOptions",
    "Generation",
    "HalfMade",
    "MadePart",
    "Merged",
    "Merging",
    "Part",
    "Synthetic",
    "Verification",
    "convert",
    "engine_for",
    "generate",
    "leftovers",
    "plan_conversion",
    "plan_generation",
    "plan_merge",
    "plan_verification",
    "read_part",
]


def convert(
    source: Path,
    destination: Path,
    options: ConvertOptions | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Dataset:
    """Make a dataset at `destination` from the images at `source`; `advance` is told how many more images are done.

    Raises `CommandError` or `DatasetError`; what is done by then is kept for the same call to go on from.
    """
    made = plan_conversion(source, destination, options or ConvertOptions()).run(advance)
    assert isinstance(made, Dataset)  # a part it would be if one had been asked for
    return made


def generate(
    destination: Path,
    options: GenerateOptions | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Synthetic:
    """Make a synthetic ImageNet at `destination`; what holds for `convert` holds here, but nothing half-made is kept."""
    return plan_generation(destination, options or GenerateOptions()).run(advance)
