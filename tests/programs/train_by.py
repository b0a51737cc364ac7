"""Trains and validates on one dataset whose samples take a while, each with a loader of its own:
`train_by HOW [WORKERS]`.

HOW: plain, positional, helper (one line of a loop makes both loaders), each_epoch (made anew for
every epoch), subclass (hands all arguments on), own (takes num_workers itself, and uses it), fixed
(has at most one worker), stateful, accelerate, lightning, trainer (of transformers), two (trains
from two loaders), careless (validates with gradients), fails (where a loader has several workers).
"""

import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

SAMPLES, BATCH, EPOCHS = 64, 4, 2


class Slow(Dataset):
    """Samples that a worker waits for."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        info = get_worker_info()
        if HOW == "fails" and info is not None and info.num_workers > 1:
            raise RuntimeError("several workers are too many")
        time.sleep(0.003)
        return torch.full((8,), float(index)), index % 2


class Columns(Slow):
    """The same as transformers wants it."""

    def __getitem__(self, index: int) -> Any:
        sample, label = super().__getitem__(index)
        return {"x": sample, "labels": label}


class Own(DataLoader):
    """Does something with the number of workers itself."""

    def __init__(self, dataset: Dataset, num_workers: int = 0, **options: Any) -> None:
        self.shares = [[] for _ in range(num_workers)]
        super().__init__(dataset, num_workers=num_workers, **options)


class Handing(DataLoader):
    """Hands all arguments on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)


class Fixed(DataLoader):
    """Always has one worker."""

    def __init__(self, dataset: Dataset, num_workers: int = 0) -> None:
        super().__init__(dataset, BATCH, num_workers=min(num_workers, 1))


def network() -> nn.Module:
    """A small one."""
    return nn.Linear(8, 2)


def loaders() -> Iterator[tuple[DataLoader, DataLoader]]:
    """To train and to validate, for each epoch."""
    data = Slow()
    if HOW == "helper":
        both = [
            DataLoader(data, num_workers=WORKERS if place else 1, batch_size=BATCH)
            for place in range(2)
        ]
        yield from [(both[1], both[0])] * EPOCHS
    elif HOW == "each_epoch":
        for _ in range(EPOCHS):
            yield (
                DataLoader(data, BATCH, num_workers=WORKERS),
                DataLoader(data, BATCH, num_workers=1),
            )
    else:
        made = {
            "positional": lambda: DataLoader(data, BATCH, False, None, None, WORKERS),
            "subclass": lambda: Handing(data, BATCH, num_workers=WORKERS),
            "own": lambda: Own(data, WORKERS, batch_size=BATCH),
            "fixed": lambda: Fixed(data, WORKERS),
            "stateful": stateful,
        }.get(HOW, lambda: DataLoader(data, BATCH, num_workers=WORKERS))()
        yield from [(made, DataLoader(data, BATCH, num_workers=1))] * EPOCHS
        if HOW == "own":
            assert len(made.shares) == made.num_workers


def stateful() -> DataLoader:
    """That of torchdata."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Slow(), BATCH, num_workers=WORKERS)


def train(model: nn.Module) -> None:
    """A loop over all epochs."""
    optimizer = Descent(model.parameters(), 0.01)
    for training, validation in loaders():
        prepared = training, validation
        if HOW == "accelerate":
            from accelerate import Accelerator

            prepared = Accelerator(cpu=True).prepare(training, validation)
        second = DataLoader(Slow(), BATCH, num_workers=1) if HOW == "two" else None
        for samples, labels in prepared[0]:
            nn.functional.cross_entropy(model(samples), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.set_grad_enabled(HOW == "careless"):
            for samples, _ in prepared[1]:
                model(samples)
        for samples, labels in second or ():
            nn.functional.cross_entropy(model(samples), labels).backward()
            optimizer.step()


def train_lightning() -> None:
    """By Lightning, which validates before it trains too."""
    import lightning

    class Training(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: list, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch: list, _: int) -> None:
            self.model(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

        def train_dataloader(self) -> DataLoader:
            return DataLoader(Slow(), BATCH, num_workers=WORKERS)

        def val_dataloader(self) -> DataLoader:
            return DataLoader(Slow(), BATCH, num_workers=1)

    lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Training())


def train_trainer() -> None:
    """By the Trainer of transformers, whose loaders to train and to validate have the same number
    of workers."""
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            found = self.model(x)
            return {"loss": nn.functional.cross_entropy(found, labels), "logits": found}

    options = TrainingArguments(
        output_dir=sys.argv[3],
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        dataloader_num_workers=WORKERS,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(Model(), options, train_dataset=Columns(), eval_dataset=Columns()).train()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    HOW, WORKERS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.set_num_threads(1)
    if HOW == "lightning":
        train_lightning()
    elif HOW == "trainer":
        train_trainer()
    else:
        train(network())
