"""Trains with LitData: chunks in a local folder, a StreamingDataLoader. Uses as in
training_loop.py."""

import sys

import litdata
from litdata.streaming.writer import BinaryWriter
from training_loop import augment, images, pixels, seed, train


def prepare(tree: str, folder: str) -> None:
    """Write chunks of 1 MB."""
    writer = BinaryWriter(folder, chunk_bytes=1 << 20)
    for number, path in enumerate(images(tree)):
        writer[number] = {"image": path.read_bytes(), "label": number % 2}
    writer.done()
    writer.merge()


def prepared(sample: dict) -> tuple:
    """The pixels of an image, augmented, and its label."""
    return augment(pixels(sample["image"])), sample["label"]


if __name__ == "__main__":
    use, data, *numbers = sys.argv[1:]
    if use == "prepare":
        prepare(data, numbers[0])
    else:
        seed()
        dataset = litdata.StreamingDataset(data, shuffle=True, seed=0, transform=prepared)
        train(
            litdata.StreamingDataLoader(dataset, batch_size=4, num_workers=int(numbers[0])),
            int(numbers[1]),
        )
