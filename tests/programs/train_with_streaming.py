"""Trains with MosaicML streaming: MDS shards in a local folder, a StreamingDataLoader. Uses as in
training_loop.py.

It imports torchvision, for which see run_example.py.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(sys.prefix, "examples")))
if torch.version.cuda is None:
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import streaming
from training_loop import augment, images, pixels, seed, train


def prepare(tree: str, folder: str) -> None:
    """Write shards of 1 MB."""
    columns = {"image": "bytes", "label": "int"}
    with streaming.MDSWriter(out=folder, columns=columns, size_limit=1 << 20) as writer:
        for number, path in enumerate(images(tree)):
            writer.write({"image": path.read_bytes(), "label": number % 2})


class Pictures(streaming.StreamingDataset):
    """The pixels of the images, augmented, and their labels."""

    def __getitem__(self, index: int) -> tuple:
        sample = super().__getitem__(index)
        return augment(pixels(sample["image"])), sample["label"]


if __name__ == "__main__":
    use, data, *numbers = sys.argv[1:]
    if use == "prepare":
        prepare(data, numbers[0])
    else:
        seed()
        dataset = Pictures(local=data, shuffle=True, shuffle_seed=0, batch_size=4)
        train(
            streaming.StreamingDataLoader(dataset, batch_size=4, num_workers=int(numbers[0])),
            int(numbers[1]),
        )
