"""The dataset that `ioprof run` and `ioprof demo` use when they are given none."""

import os
import tempfile
from pathlib import Path
from typing import Final

from ioprof.cli.console import progress, say
from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.dataset import MANIFEST_NAME

NUM_IMAGES: Final = 1000


def cached_dataset() -> Path:
    """A synthetic dataset in the user's cache folder; made at first use, and said so."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ioprof"
    folder = base / f"synthetic-{NUM_IMAGES}-files"
    if not (folder / MANIFEST_NAME).is_file():
        say(f"no dataset given: making a synthetic one of {NUM_IMAGES} images in {folder} (once)")
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base) as temporary:
            tree = Path(temporary) / "tree"
            make_tree(tree, NUM_IMAGES)
            with progress("convert", NUM_IMAGES) as advance:
                convert(tree, folder, ConvertOptions(layout="files", image="original"), advance)
    else:
        say(f"no dataset given: using the synthetic one in {folder}")
    return folder


def make_tree(tree: Path, images: int, seed: int = 0) -> None:
    """A synthetic ImageNet tree of `images` JPEGs, with progress."""
    with progress("generate", images) as advance:
        generate(tree, GenerateOptions(images=images, seed=seed), advance)
