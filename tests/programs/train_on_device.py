"""A training loop on one device that hooks record: a few matrix products per step. Arguments:
device, steps."""

import sys

import torch


def main() -> None:
    device, steps = sys.argv[1], int(sys.argv[2])
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.utils.data.TensorDataset(torch.rand(64 * steps, 1024))
    for (batch,) in torch.utils.data.DataLoader(images, 64):
        optimizer.zero_grad()
        model(batch.to(device)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
