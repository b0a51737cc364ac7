"""Trains with Hugging Face datasets. Uses as in training_loop.py, with a fifth argument of `train`:

rows (the default): Arrow rows with an Image feature, transformed when they are accessed; stream:
the same as an IterableDataset with `map`; numbers: columns of numbers, formatted as tensors;
folder: an image folder without a conversion.
"""

import sys
from pathlib import Path

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader
from training_loop import augment, images, pixels, seed, train

NUMBERS = 3 * 32 * 32


def prepare(tree: str, folder: str) -> None:
    """Write Arrow files of images, and of numbers."""
    paths = images(tree)
    labels = [number % 2 for number in range(len(paths))]
    rows = {
        "image": [{"bytes": path.read_bytes(), "path": None} for path in paths],
        "label": labels,
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    made = datasets.Dataset.from_dict(rows, features=features)
    made.save_to_disk(f"{folder}/images", num_shards=4)
    values = np.random.default_rng(0).random((len(paths), NUMBERS)).tolist()
    datasets.Dataset.from_dict({"image": values, "label": labels}).save_to_disk(f"{folder}/numbers")


def prepared(batch: dict) -> dict:
    """The pixels of the images of a batch, augmented."""
    return {"image": [augment(pixels(image)) for image in batch["image"]], "label": batch["label"]}


def prepared_one(example: dict) -> dict:
    """The same for a single example."""
    return {"image": augment(pixels(example["image"])), "label": example["label"]}


def collate(examples: list) -> tuple:
    """A batch of images of 3 × 32 × 32 and labels."""
    pictures = torch.stack(
        [torch.as_tensor(example["image"]).float().reshape(3, 32, 32) for example in examples]
    )
    return pictures, torch.tensor([int(example["label"]) for example in examples])


def examples(data: str, how: str) -> object:
    """The examples, in the way that the command line asks for."""
    if how == "numbers":
        return datasets.load_from_disk(f"{data}/numbers").with_format("torch")
    if how == "stream":
        files = sorted(map(str, Path(data, "images").glob("*.arrow")))
        streamed = datasets.load_dataset("arrow", data_files=files, split="train", streaming=True)
        return streamed.map(prepared_one)
    if how == "folder":
        return datasets.load_dataset("imagefolder", data_dir=data, split="train").with_transform(
            prepared
        )
    return datasets.load_from_disk(f"{data}/images").with_transform(prepared)


if __name__ == "__main__":
    use, data, *rest = sys.argv[1:]
    if use == "prepare":
        prepare(data, rest[0])
    else:
        seed()
        datasets.disable_progress_bars()
        how = rest[3] if len(rest) > 3 else "rows"
        loader = DataLoader(
            examples(data, how),
            batch_size=4,
            num_workers=int(rest[0]),
            collate_fn=collate,
            shuffle=how != "stream",
        )
        train(loader, int(rest[1]))
