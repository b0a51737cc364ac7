"""A model divided into the stages of a pipeline."""

from collections import OrderedDict
from functools import cache
from itertools import pairwise

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ioprof.train.models import ModelFacts


def stage_of(
    model: nn.Sequential, facts: ModelFacts, num_stages: int, number: int
) -> nn.Sequential:
    """The layers of one stage, under their names in the whole model.

    Layers without parameters stay with the one before. Of all divisions that one is taken whose
    largest stage has the fewest operations in the forward pass.
    """
    named = list(model.named_children())
    first = [
        place for place, (_, layer) in enumerate(named) if any(True for _ in layer.parameters())
    ]
    first[0] = 0  # what prepares the samples is part of the first stage
    costs = _costs(model, facts)
    bounds = [*first, len(named)]
    units = [sum(costs[begin:end]) for begin, end in pairwise(bounds)]
    cuts = divide(units, num_stages)
    return nn.Sequential(OrderedDict(named[bounds[cuts[number]] : bounds[cuts[number + 1]]]))


def divide(costs: list[int], num_parts: int) -> list[int]:
    """Where each part begins, and the end: parts of at least one element whose largest sum is the
    least that there is.
    """

    @cache
    def best(begin: int, parts: int) -> tuple[int, tuple[int, ...]]:
        """The largest sum of the elements from `begin` on in so many parts, and where these
        begin.
        """
        if parts == 1:
            return sum(costs[begin:]), (begin,)
        found = []
        for end in range(begin + 1, len(costs) - parts + 2):
            largest, begins = best(end, parts - 1)
            found.append((max(sum(costs[begin:end]), largest), (begin, *begins)))
        return min(found)

    return [*best(0, num_parts)[1], len(costs)]


def _costs(model: nn.Sequential, facts: ModelFacts) -> list[int]:
    """Floating-point operations of each layer in the forward pass of one sample."""
    costs, features = [], torch.zeros((1, *facts.sample_shape), dtype=torch.uint8)
    model.eval()  # draws no random number, and leaves the statistics of normalisation as they are
    with torch.no_grad():
        for layer in model:
            with FlopCounterMode(display=False) as counter:
                features = layer(features)
            costs.append(counter.get_total_flops())
    model.train()
    return costs
