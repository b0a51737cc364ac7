"""The tokens of a batch of text, and how many of its positions are padding: by its mask, by the
lengths of the sequences that are packed in it, or by the value that its rows end in.
"""

import sys
from collections import UserDict
from contextlib import suppress
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.format.schema import LONGEST, TOKENS
from ioprof.instrument.span import emit

_FIRST: Final = 8
_EVERY: Final = 16
"""The first batches of a thread are looked at, and then one of so many: the sum of a mask of 16,000
positions takes 10 us."""
_INPUTS: Final = ("input_ids", "tokens", "decoder_input_ids")
_MASK: Final = "attention_mask"
_NARROW: Final = 16
"""Columns of a batch without a mask below which nothing is said of its rows' ends."""
_MOSTLY_OTHERS: Final = 0.95
"""Part of the positions before the padding that have other values than it."""
_LENGTHS: Final = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens")


def record_tokens(batch: object, number: int, place: int) -> None:
    """Record what a batch has, which is the thread's batch of that place."""
    if place > _FIRST and place % _EVERY:
        return
    with suppress(Exception):  # tensors of the job's own, which must not fail for this
        if (found := tokens(batch)) is not None:
            now_ns, (real, positions, wanted) = monotonic_ns(), found
            emit("deliver", now_ns, now_ns, TOKENS, batch=number, bytes=real, offset=positions)
            if wanted is not None:
                emit("deliver", now_ns, now_ns, LONGEST, batch=number, bytes=wanted)


def tokens(batch: object) -> tuple[int, int, int | None] | None:
    """Tokens that are no padding (-1: not known), positions, and how many these were if its rows
    were as wide as its longest sample (null: not known). None: it is no batch of text.
    """
    if isinstance(batch, UserDict):  # transformers' BatchEncoding
        batch = batch.data
    if isinstance(batch, dict):
        ids: Any = next((dict.get(batch, name) for name in _INPUTS if name in batch), None)
        if not _is_text(ids):
            return None
        return _without_padding(batch, ids), ids.numel(), _as_wide_as_longest(batch)
    if not isinstance(batch, list | tuple):
        return None
    if (found := _padded(batch)) is not None:
        ids, ends = found
        wanted = ids.numel() - len(ids) * int(ends.min())
        return ids.numel() - int(ends.sum()), ids.numel(), wanted
    # inputs and targets, each a row of tokens for every sample
    if len(batch) == 2 and all(map(_is_text, batch)):
        inputs, targets = batch
        if tuple(inputs.shape) == tuple(targets.shape) and inputs.dim() == 2:
            return -1, inputs.numel(), None
    return None


def _as_wide_as_longest(batch: dict[Any, Any]) -> int | None:
    """By the mask; a column in which each sample has padding is wanted by none."""
    mask: Any = dict.get(batch, _MASK)
    if not _is_text(mask) or mask.dim() != 2:
        return None
    return int(len(mask) * sys.modules["torch"].count_nonzero(mask.any(0)))


def _is_text(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return (
        torch is not None
        and type(value) is torch.Tensor
        and value.dtype in (torch.int64, torch.int32, torch.uint16)
        and value.dim() in (1, 2)
        and value.device.type == "cpu"
        and value.shape[-1] > 1
    )


def _padded(batch: Any) -> tuple[Any, Any] | None:
    """Of a batch without a mask: the first of its tensors whose rows are padded, and how many
    positions at the end of each row are. Most rows end in the same value, after as many others as
    each has, among which it is rare: rows of labels, classes, counts or bits are not so.
    """
    for ids in batch:
        if not _is_text(ids) or ids.dim() != 2 or ids.shape[1] < _NARROW or len(ids) < 2:
            continue
        width, last = ids.shape[1], ids[:, -1]
        value = last.mode().values
        others = ids != value
        own = others.sum(1)
        ends = others.flip(1).byte().argmax(1).where(own > 0, width)
        ending = ends[last == value]
        if (
            2 * len(ending) > len(ids)
            and ending.min() < ending.max()
            and 2 * ending.max() > _NARROW
            and own.sum() >= _MOSTLY_OTHERS * (ids.numel() - ends.sum())
        ):
            return ids, ends
    return None


def _without_padding(batch: dict[Any, Any], ids: Any) -> int:
    torch: Any = sys.modules["torch"]
    if ids.is_nested:
        return int(ids.numel())
    mask: Any = dict.get(batch, _MASK)
    if type(mask) is torch.Tensor and mask.shape == ids.shape:
        return int(torch.count_nonzero(mask))
    for name in _LENGTHS:
        lengths: Any = dict.get(batch, name)
        if type(lengths) is torch.Tensor and lengths.dim() == 1 and len(lengths):
            return min(int(lengths[-1]), int(ids.numel()))
    return -1
