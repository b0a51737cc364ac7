"""A dataset that a small network can learn: each class has a colour, under noise."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from ioprof.converters import ConvertOptions, convert

COLOURS = ((200, 60, 60), (60, 200, 60), (60, 60, 200), (180, 180, 60))


def make_coloured_dataset(folder: Path, images_per_class: int, seed: int = 0) -> Path:
    """A dataset of files with a class for each colour."""
    source = np.random.default_rng(seed)
    tree = folder.with_name(f"{folder.name}-tree")
    for number, colour in enumerate(COLOURS):
        (tree / f"n{number:08d}").mkdir(parents=True)
        for place in range(images_per_class):
            noise = source.normal(0, 40, (48, 48, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tree / f"n{number:08d}" / f"n{number:08d}_{place}.JPEG")
    convert(tree, folder, ConvertOptions(layout="files", image="original", workers=1))
    shutil.rmtree(tree)
    return folder
