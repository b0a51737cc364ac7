"""Trains with the package tfrecord: TFRecord files with an index, a DataLoader. Uses as in
training_loop.py."""

import sys
from pathlib import Path

from tfrecord import TFRecordWriter
from tfrecord.tools.tfrecord2idx import create_index
from tfrecord.torch.dataset import TFRecordDataset
from torch.utils.data import DataLoader
from training_loop import augment, images, pixels, seed, train


def prepare(tree: str, folder: str) -> None:
    """Write one file and its index."""
    Path(folder).mkdir()
    writer = TFRecordWriter(f"{folder}/images.tfrecord")
    for number, path in enumerate(images(tree)):
        writer.write({"image": (path.read_bytes(), "byte"), "label": (number % 2, "int")})
    writer.close()
    create_index(f"{folder}/images.tfrecord", f"{folder}/images.index")


def prepared(example: dict) -> tuple:
    """The pixels of an image, augmented, and its label."""
    return augment(pixels(bytes(example["image"]))), int(example["label"][0])


if __name__ == "__main__":
    use, data, *numbers = sys.argv[1:]
    if use == "prepare":
        prepare(data, numbers[0])
    else:
        seed()
        columns = {"image": "byte", "label": "int"}
        dataset = TFRecordDataset(
            f"{data}/images.tfrecord", f"{data}/images.index", columns, transform=prepared
        )
        train(DataLoader(dataset, batch_size=4, num_workers=int(numbers[0])), int(numbers[1]))
