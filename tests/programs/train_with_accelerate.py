"""Trains with accelerate on an image tree: `train DATA WORKERS STEPS TRANSFORM_MS HOW`, see
training_loop.py.

HOW: shard (each rank loads its own batches), dispatch (rank 0 loads for all), inference (no
optimizer; two epochs).
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, Dataset
from training_loop import augment, images, network, pixels, say, say_line, seed


class Tree(Dataset):
    """Images of class folders, their pixels augmented."""

    def __init__(self, root: str) -> None:
        self.paths = images(root)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return augment(pixels(self.paths[index].read_bytes())), index % 2, index


if __name__ == "__main__":
    _, data, workers, steps, _, how = sys.argv[1:]
    seed()
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=how == "dispatch")
    )
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1) if how != "inference" else None
    loader = DataLoader(Tree(data), batch_size=4, shuffle=how == "shard", num_workers=int(workers))
    model, loader = accelerator.prepare(model, loader)
    if optimizer is not None:
        optimizer = accelerator.prepare(optimizer)
    seen, done, given = 0.0, 0, []
    while done < int(steps):
        for pictures, labels, indices in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            if optimizer is not None:
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
            seen = seen * 0.9 + pictures.double().sum().item() + labels.sum().item()
            given.append(int(indices[0]))
            done += 1
            if done == int(steps):
                break
    say_line("given", *given)
    say(seen, loss.item())
    accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
