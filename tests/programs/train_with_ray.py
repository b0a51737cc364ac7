"""Trains with Ray Data: tasks in processes of Ray read, decode and augment images. Uses as in
training_loop.py."""

import io
import os
import shutil
import sys
import time
from pathlib import Path

os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import ray
from PIL import Image
from training_loop import TRANSFORM_MS, images, seed, train


def prepare(tree: str, folder: str) -> None:
    """Copies of the images in one folder, in a random order of names."""
    Path(folder).mkdir()
    for number, path in enumerate(images(tree)):
        shutil.copyfile(path, f"{folder}/{number:04}.jpg")


def load(row: dict) -> dict:
    """An image, decoded, and transformed for as long as the row says; this is called in processes
    of Ray."""
    with Image.open(io.BytesIO(Path(row["path"]).read_bytes())) as image:
        pixels = np.asarray(image.convert("RGB").resize((32, 32))).astype(np.float32)
    time.sleep(row["ms"] / 1000)
    return {"image": pixels.transpose(2, 0, 1) / 255, "label": row["label"]}


class Batches:
    """Images and labels, as tensors."""

    def __init__(self, data: "ray.data.Dataset") -> None:
        self.data = data

    def __iter__(self):
        for batch in self.data.iter_torch_batches(batch_size=4):
            yield batch["image"], batch["label"]


if __name__ == "__main__":
    use, data, *numbers = sys.argv[1:]
    if use == "prepare":
        prepare(data, numbers[0])
    else:
        seed()
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            logging_level="ERROR",
            object_store_memory=200 << 20,
        )
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        ray.data.DataContext.get_current().execution_options.verbose_progress = False
        rows = [
            {"path": str(path), "label": number % 2, "ms": TRANSFORM_MS}
            for number, path in enumerate(sorted(Path(data).glob("*.jpg")))
        ]
        train(Batches(ray.data.from_items(rows, override_num_blocks=9).map(load)), int(numbers[1]))
        ray.shutdown()
