"""Loops that call their model in evaluation mode without gradients, each for a reason of its own,
which is the argument.

python evaluating.py evaluation | targets | playing | loader
"""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader

import ioprof

STEPS, EVERY, PASSES, BATCH = 12, 4, 3, 8


class Net(nn.Module):
    """Takes 5 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        result: torch.Tensor = self.layer(x)
        return result


def evaluate(net: Net, size: int = BATCH) -> None:
    """Make batches in the loop and evaluate the model on them."""
    with ioprof.span("evaluate"), torch.no_grad():
        net.eval()
        for _ in range(PASSES):
            net(torch.ones(size, 4))
            time.sleep(0.005)
    net.train()


def evaluate_loader(net: Net, loader: DataLoader[torch.Tensor]) -> None:
    """As the examples of libraries do: gradients are switched off for the model's call alone."""
    net.eval()
    for batch in loader:
        with torch.no_grad():
            net(batch)


def batches() -> Iterator[torch.Tensor]:
    """Made by the loop itself."""
    for _ in range(STEPS):
        yield torch.ones(BATCH, 4)


def main() -> None:
    """Train."""
    net, teacher, how = Net(), Net().eval(), sys.argv[1]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    held_out = DataLoader([torch.ones(4)] * PASSES * BATCH, BATCH)
    training = DataLoader([torch.ones(4)] * STEPS * BATCH, BATCH)
    for step, batch in enumerate(training if how == "loader" else batches()):
        if how == "targets":
            with torch.no_grad():
                teacher(batch)
        net.train()
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == EVERY - 1 and how == "evaluation":
            evaluate(net)
        elif step % EVERY == EVERY - 1 and how == "playing":
            evaluate(net, 1)
        elif step % EVERY == EVERY - 1 and how == "loader":
            evaluate_loader(net, held_out)


if __name__ == "__main__":
    main()
