"""What a worker sends with a batch: the storages of its tensors.

`multiprocessing` copies the whole storage of a tensor into shared memory, also where the tensor is
a view of a small part. What is there already, such as the tensors of a dataset in memory after they
were sent once, is not copied again.
"""

import sys
from contextlib import suppress
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.format.schema import SENT
from ioprof.instrument.span import emit

_FIRST: Final = 4
"""Batch of a worker's thread that is looked at first. Those before may move what they hold to
shared memory for good."""
_MOST_VISITED: Final = 4096
"""Objects of a batch that are looked at."""


def record_sent(batch: object, number: int, place: int) -> None:
    """Record what a batch sends, which is the thread's batch of that place: of the 4th, 8th, 16th
    ..., since it takes time.
    """
    if place < _FIRST or place & (place - 1):
        return
    parts, whole = measured(batch)
    now_ns = monotonic_ns()
    emit("deliver", now_ns, now_ns, SENT, batch=number, bytes=whole, offset=parts)


def measured(batch: object) -> tuple[int, int]:
    """Bytes of the tensors of a batch that are not in shared memory, and of their storages, each of
    which counts once.

    In lists, tuples and dictionaries, nested or not; what other objects hold is not known.
    """
    torch: Any = sys.modules.get("torch")
    waiting: list[Any] = [batch]
    parts, storages = 0, dict[int, int]()
    for _ in range(_MOST_VISITED if torch else 0):
        if not waiting:
            break
        each = waiting.pop()
        if type(each) is torch.Tensor:
            with suppress(RuntimeError):  # of a layout, or on a device, that has no such storage
                storage = each.untyped_storage()
                if each.device.type == "cpu" and not storage.is_shared():
                    parts += each.numel() * each.element_size()
                    storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(each, dict):  # by methods of the built-in types: no code of the job runs
            waiting.extend(dict.values(each))
        elif isinstance(each, list):
            waiting.extend(list.__iter__(each))
        elif isinstance(each, tuple):
            waiting.extend(tuple.__iter__(each))
    return parts, sum(storages.values())
