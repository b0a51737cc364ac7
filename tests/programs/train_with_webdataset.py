"""Trains with webdataset: tar shards, a pipeline in the workers of a WebLoader. Uses as in
training_loop.py; the word `pipe` after the time of the transform has each shard read by `cat`,
`late` has samples shuffled after all that is done to them, in epochs of 30 batches, for each of
which the workers fill their buffers anew.
"""

import sys
from pathlib import Path

import webdataset as wds
from training_loop import augment, images, pixels, seed, train

SHARDS = 6


def prepare(tree: str, folder: str) -> None:
    """Write shards in which the images take turns."""
    Path(folder).mkdir()
    for shard in range(SHARDS):
        with wds.TarWriter(f"{folder}/{shard:03}.tar") as tar:
            for number, path in list(enumerate(images(tree)))[shard::SHARDS]:
                tar.write(
                    {
                        "__key__": f"{number:06}",
                        "jpg": path.read_bytes(),
                        "cls": str(number % 2).encode(),
                    }
                )


def prepared(sample: tuple) -> tuple:
    """The pixels of an image, augmented."""
    image, label = sample
    return augment(pixels(image)), label


if __name__ == "__main__":
    use, data, *numbers = sys.argv[1:]
    if use == "prepare":
        prepare(data, numbers[0])
    else:
        seed()
        shards = sorted(map(str, Path(data).glob("*.tar")))
        if "pipe" in numbers:
            shards = [f"pipe:cat {shard}" for shard in shards]
        if "late" in numbers:
            samples = wds.WebDataset(
                shards, shardshuffle=False, resampled=True, nodesplitter=None
            ).decode("pil")
            batches = (
                samples.to_tuple("jpg", "cls").map(prepared).shuffle(120, initial=120).batched(4)
            )
            train(
                wds.WebLoader(batches, batch_size=None, num_workers=int(numbers[0])).with_epoch(30),
                int(numbers[1]),
            )
            sys.exit()
        samples = (
            wds.WebDataset(shards, shardshuffle=False, seed=0)
            .shuffle(4, initial=4, seed=0)
            .decode("pil")
        )
        batches = samples.to_tuple("jpg", "cls").map(prepared).batched(4)
        train(wds.WebLoader(batches, batch_size=None, num_workers=int(numbers[0])), int(numbers[1]))
