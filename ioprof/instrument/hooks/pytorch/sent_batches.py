"""What a batch has, and what a worker sends with it: the storages of its tensors.

`multiprocessing` copies the whole storage of a tensor into shared memory, also where the tensor is
a view of a small part. What is there already, such as the tensors of a dataset in memory after they
were sent once, is not copied again.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.format.schema import RETURNED, SENT
from ioprof.instrument.span import emit

_FIRST: Final = 4
"""Batch of a thread that is looked at first. Those before may move what they hold to shared memory
for good."""
_MOST_VISITED: Final = 4096
"""Objects of a batch that are looked at."""
_NUMBERS: Final = (int, float, bool, type(None))
_NUMBER_BYTES: Final = 8


def record_batch(batch: object, number: int, place: int, *, is_sent: bool) -> None:
    """Record what a batch has, which is the thread's batch of that place, and what it sends: of the
    4th, 8th, 16th ..., since it takes time.
    """
    if place < _FIRST or place & (place - 1):
        return
    now_ns, returned = monotonic_ns(), content_bytes(batch)
    if returned:
        emit("deliver", now_ns, now_ns, RETURNED, batch=number, bytes=returned)
    if is_sent:
        parts, whole = measured(batch)
        emit("deliver", now_ns, now_ns, SENT, batch=number, bytes=whole, offset=parts)


def measured(batch: object) -> tuple[int, int]:
    """Bytes of the tensors of a batch that are not in shared memory, and of their storages, each of
    which counts once.

    In lists, tuples and dictionaries, nested or not; what other objects hold is not known.
    """
    torch: Any = sys.modules.get("torch")
    parts, storages = 0, dict[int, int]()
    for each in _parts_of(batch) if torch else ():
        if type(each) is torch.Tensor:
            with suppress(RuntimeError):  # of a layout, or on a device, that has no such storage
                storage = each.untyped_storage()
                if each.device.type == "cpu" and not storage.is_shared():
                    parts += each.numel() * each.element_size()
                    storages[storage.data_ptr()] = storage.nbytes()
    return parts, sum(storages.values())


def content_bytes(batch: object) -> int | None:
    """Bytes of the tensors, arrays, texts and numbers of a batch; None: it has other objects."""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    total = 0
    for each in _parts_of(batch):
        if torch and type(each) is torch.Tensor and each.layout is torch.strided:
            total += each.numel() * each.element_size()
        elif numpy and type(each) is numpy.ndarray and not each.dtype.hasobject:
            total += each.nbytes
        elif type(each) in (str, bytes, bytearray):
            total += len(each)
        elif type(each) in _NUMBERS:
            total += _NUMBER_BYTES
        else:
            return None
    return total


def _parts_of(batch: object) -> Iterator[Any]:
    """What is in a batch's lists, tuples and dictionaries; where there is much, the rest as one
    list at the end.
    """
    waiting: list[Any] = [batch]
    for _ in range(_MOST_VISITED):
        if not waiting:
            return
        each = waiting.pop()
        if isinstance(each, dict):  # by methods of the built-in types: no code of the job runs
            waiting.extend(dict.values(each))
        elif isinstance(each, list):
            waiting.extend(list.__iter__(each))
        elif isinstance(each, tuple):
            waiting.extend(tuple.__iter__(each))
        else:
            yield each
    if waiting:
        yield waiting
