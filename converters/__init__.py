"""Datasets from images: `convert` what there is, or `generate` what looks like ImageNet.

    open_source ─▶ shuffled order ─▶ ordered_map(ImageWork: read, check, transform) ─▶ Layout, in order ─▶ Dataset.save, rename

Nothing here prints. A job is planned first, which finds everything that can be found wrong before work starts, and then run.
"""

from collections.abc import Callable
from pathlib import Path

from ioprof.converters.conversion import Conversion, plan_conversion
from ioprof.converters.destination import leftovers
from ioprof.converters.generation import Generation, Synthetic, plan_generation
from ioprof.converters.options import ConvertOptions, GenerateOptions
from ioprof.dataset import Dataset

__all__ = [
    "Conversion",
    "ConvertOptions",
    "GenerateOptions",
    "Generation",
    "Synthetic",
    "convert",
    "generate",
    "leftovers",
    "plan_conversion",
    "plan_generation",
]


def convert(
    source: Path,
    destination: Path,
    options: ConvertOptions | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Dataset:
    """Make a dataset at `destination` from the images at `source`; `advance` is told how many more images are done.

    Raises `CommandError` or `DatasetError`, and then leaves nothing behind. More than one worker means spawned processes, so a
    script that calls this needs its `if __name__ == "__main__":`.
    """
    return plan_conversion(source, destination, options or ConvertOptions()).run(advance)


def generate(
    destination: Path,
    options: GenerateOptions | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Synthetic:
    """Make a synthetic ImageNet at `destination`; what holds for `convert` holds here."""
    return plan_generation(destination, options or GenerateOptions()).run(advance)
