"""Trains on token sequences of many lengths, padded to the longest of a batch, as a collator of
transformers does; prints the tokens and the positions of each batch. Arguments: workers, steps.
"""

import json
import sys

import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, WORDS = 8, 1000
workers, steps = int(sys.argv[1]), int(sys.argv[2])


class Texts(Dataset[torch.Tensor]):
    """Sequences of 8 to 128 tokens."""

    def __len__(self) -> int:
        return BATCH * steps

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8 + index * 37 % 121,), index % WORDS)


def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    lengths = torch.tensor([len(each) for each in samples])[:, None]
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths).long()}


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, WORDS))
    optimizer = Descent(model.parameters(), lr=0.01)
    sizes = []
    for batch in DataLoader(Texts(), BATCH, num_workers=workers, collate_fn=padded):
        optimizer.zero_grad()
        model(batch["input_ids"]).square().mean().backward()
        optimizer.step()
        sizes.append((int(batch["attention_mask"].sum()), batch["input_ids"].numel()))
    print(json.dumps(sizes))


main()
