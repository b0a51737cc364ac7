"""Trains with Lightning on an image tree: `train DATA WORKERS STEPS TRANSFORM_MS HOW`, see
training_loop.py.

HOW: sized (a dataset of known length), stream (an IterableDataset, which Lightning fetches one
batch ahead).
"""

import sys
import warnings
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from training_loop import augment, images, network, pixels, say, seed

try:
    import lightning
except ImportError:
    import pytorch_lightning as lightning


class Tree(Dataset):
    """Images of class folders, their pixels augmented."""

    def __init__(self, root: str) -> None:
        self.paths = images(root)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return augment(pixels(self.paths[index].read_bytes())), index % 2


class Stream(IterableDataset):
    """The same, of unknown length."""

    def __init__(self, root: str) -> None:
        self.tree = Tree(root)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from (self.tree[index] for index in range(first, len(self.tree), stride))


class Training(lightning.LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.seen = network(), 0.0

    def training_step(self, batch: list, _: int) -> torch.Tensor:
        pictures, labels = batch
        self.seen = self.seen * 0.9 + pictures.double().sum().item() + labels.sum().item()
        return nn.functional.cross_entropy(self.model(pictures), labels)

    def validation_step(self, batch: list, _: int) -> None:
        pictures, labels = batch
        self.seen += nn.functional.cross_entropy(self.model(pictures), labels).item()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    _, data, workers, steps, _, how = sys.argv[1:]
    warnings.simplefilter("ignore")
    seed()
    kind = Tree if how == "sized" else Stream
    loader = DataLoader(kind(data), batch_size=4, num_workers=int(workers))
    module = Training()
    trainer = lightning.Trainer(
        max_steps=int(steps),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=3,
        num_sanity_val_steps=2,
    )
    trainer.fit(module, loader, DataLoader(Tree(data), batch_size=4))
    say(module.seen, float(trainer.global_step))
