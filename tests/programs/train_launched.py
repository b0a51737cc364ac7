"""Two ranks that a library's own launcher starts: `lightning` (processes of the same script) or
`accelerate` (forked processes)."""

import os
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 6


def data() -> DataLoader:
    """Of both ranks together."""
    samples = TensorDataset(
        torch.arange(8.0 * STEPS * 16).reshape(-1, 16), torch.zeros(8 * STEPS, dtype=torch.int64)
    )
    return DataLoader(samples, batch_size=4)


def train_lightning() -> None:
    """Lightning starts the script once more for rank 1."""
    import lightning

    class Training(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(16, 2)

        def training_step(self, batch: list, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.001)

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Training(), data())


def train_accelerate() -> None:
    """One rank."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(16, 2)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 0.001), data()
    )
    for samples, labels in loader:
        accelerator.backward(nn.functional.cross_entropy(model(samples), labels))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if sys.argv[1] == "lightning":
        train_lightning()
    else:
        from accelerate import debug_launcher

        debug_launcher(train_accelerate, num_processes=2)
