"""The base Transformer (Vaswani et al., arXiv 1706.03762) on bytes: 6 + 6 layers, width 512, 8
heads, a vocabulary of 256.
"""

import math
from typing import Final

import torch
from torch import nn

VOCABULARY: Final = 256
_WIDTH: Final = 512
_HEADS: Final = 8
_LAYERS: Final = 6
_FEED_FORWARD: Final = 2048
_DROPOUT: Final = 0.1


class Transformer(nn.Module):
    """Predicts each token of a target from the source and from the tokens before it. Embeddings and
    output share their weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, _WIDTH)
        nn.init.normal_(self.embedding.weight, std=_WIDTH**-0.5)
        self.layers = nn.Transformer(
            _WIDTH, _HEADS, _LAYERS, _LAYERS, _FEED_FORWARD, _DROPOUT, batch_first=True
        )
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """uint8 (samples, 2, length), source and target, to (samples, vocabulary, length)."""
        source, target = tokens.long().unbind(1)
        before = torch.nn.functional.pad(target[:, :-1], (1, 0))
        length = tokens.shape[2]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        found = self.layers(
            self._embed(source), self._embed(before), tgt_mask=mask, tgt_is_causal=True
        )
        logits: torch.Tensor = nn.functional.linear(found, self.embedding.weight)
        return logits.transpose(1, 2)

    def targets(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens to predict, int64 (samples, length)."""
        return tokens[:, 1].long()

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens) * math.sqrt(_WIDTH)
        embedded = embedded + _positions(tokens.shape[1], tokens.device)
        dropped: torch.Tensor = self.dropout(embedded)
        return dropped


def transformer(_num_classes: int) -> nn.Module:
    """Takes uint8 (samples, 2, length), gives (samples, 256, length); its classes are the tokens,
    whatever the dataset has.
    """
    return Transformer()


def _positions(length: int, device: torch.device) -> torch.Tensor:
    """The sines and cosines that say where a token stands, (length, width)."""
    place = torch.arange(length, device=device, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, _WIDTH, 2, device=device) * (-math.log(10_000.0) / _WIDTH))
    return torch.stack([torch.sin(place * rate), torch.cos(place * rate)], dim=2).flatten(1)
