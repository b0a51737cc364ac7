"""Trains by the loop of a library with its `ProfileCallback`: `LIBRARY OUT [raise]`; `raise`: the
sixth step raises. Prints whether the callback has a run, and what the library logged of it.
"""

import csv
import json
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, RAISES_AT = 12, 4, 5
LIBRARY, OUT = sys.argv[1], Path(sys.argv[2])


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Ones."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(8)}


class Model(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 2), 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.calls == RAISES_AT and "raise" in sys.argv:
            raise ValueError("a batch is wrong")
        self.calls += 1
        return {"loss": self.layer(x).square().mean()}


def train_lightning() -> tuple[bool, dict[str, float]]:
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    from ioprof.integrations.lightning import ProfileCallback

    class Training(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    callback, logger = ProfileCallback(OUT), CSVLogger(OUT.parent)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=logger,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with suppress(ValueError):
        trainer.fit(Training(), DataLoader(Rows(), BATCH))
    metrics = Path(logger.log_dir, "metrics.csv")
    rows = list(csv.DictReader(metrics.open())) if metrics.exists() else []
    logged = {name: float(value) for row in rows for name, value in row.items() if value}
    return callback.run is not None, logged


def train_transformers() -> tuple[bool, dict[str, float]]:
    from transformers import Trainer, TrainingArguments

    from ioprof.integrations.transformers import ProfileCallback

    callback = ProfileCallback(OUT)
    options = TrainingArguments(
        str(OUT.parent / "trainer"),
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(Model(), options, train_dataset=Rows(), callbacks=[callback])
    trainer.train()
    logged = [each for each in trainer.state.log_history if "ioprof/step_s" in each]
    return callback.run is not None, dict(*logged)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = train_lightning() if LIBRARY == "lightning" else train_transformers()
    print(json.dumps(found))
