"""The dataset that `ioprof run` and `ioprof demo` use when they are given none."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ioprof.files import cache_folder
from ioprof.format.dataset import MANIFEST_NAME
from ioprof.reporter import Reporter

NUM_IMAGES: Final = 1000


def cached_dataset(environment: Mapping[str, str], reporter: Reporter) -> Path:
    """A synthetic dataset in the user's cache folder (XDG_CACHE_HOME, else ~/.cache); made at first
    use.
    """
    base = cache_folder(environment)
    folder = base / f"synthetic-{NUM_IMAGES}-files"
    if (folder / MANIFEST_NAME).is_file():
        reporter.say(f"no dataset given: using the synthetic one in {folder}")
        return folder
    reporter.say(
        f"no dataset given: making a synthetic one of {NUM_IMAGES} images in {folder} (once)"
    )
    # most runs have a dataset, and need not load what makes one
    from ioprof.converters import (
        ConvertOptions,
        convert,
    )

    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base) as temporary:
        tree = Path(temporary) / "tree"
        generate_tree(tree, NUM_IMAGES, reporter)
        with reporter.progress("convert", NUM_IMAGES) as advance:
            convert(tree, folder, ConvertOptions(layout="files", image="original"), advance)
    return folder


def generate_tree(
    tree: Path, images: int, reporter: Reporter, seed: int = 0, *, force: bool = False
) -> None:
    """Make a synthetic ImageNet tree of `images` JPEGs; one that is there is replaced with
    `force`.
    """
    from ioprof.converters import GenerateOptions, generate

    with reporter.progress("generate", images) as advance:
        generate(tree, GenerateOptions(images=images, seed=seed, force=force), advance)
