"""Loads batches with one worker, as a rank does, and prints a line for each, and how it ended.
Arguments: DATASET NUM_BATCHES."""

import sys
from pathlib import Path

from ioprof.errors import IoprofError
from ioprof.format.dataset import Dataset
from ioprof.loaders import make_loader
from ioprof.loaders.base import LoaderOptions

if __name__ == "__main__":
    dataset = Dataset.load(Path(sys.argv[1]))
    loader = make_loader(
        dataset.layout, dataset, LoaderOptions(dataset.records, int(sys.argv[2]), workers=1)
    )
    try:
        for batch in loader:
            print(f"{len(batch.labels)} samples", flush=True)
    except IoprofError as error:
        print(f"{type(error).__name__}: {error}")
    except (
        RuntimeError,
        OSError,
        EOFError,
    ):  # which of them depends on what the rank was doing, as in ioprof.train.job
        print(loader.lost_worker())
