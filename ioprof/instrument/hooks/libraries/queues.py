"""Observes `queue.Queue`: what threads put there for the training loop, and the loop's waits for it
("queue").

An item is known by its identity from `put` to `get`, so queues in order, by priority and last in
first out are alike. A queue from which the loop never takes is forgotten after `MAX_ITEMS` items;
from then on it costs one check. `queue.SimpleQueue` and multiprocessing's queues are not observed.
"""

from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.handover import is_loop, maker_of, may_make, take
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.products import Product
from ioprof.instrument.hooks.state import HookState

MAX_ITEMS: Final = 256

_ITEMS: Final = "_ioprof_items"


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `queue`."""
    state.wrap(module.Queue, "put", _observe_put)
    state.wrap(module.Queue, "get", _observe_get)


def _observe_put(original: Function, state: HookState) -> Function:
    def put(self: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
        items: dict[int, Product] | None = vars(self).get(_ITEMS, _NEW)
        if items is None:  # no queue of the loop
            return original(self, item, *args, **kwargs)
        thread = state.per_thread.current
        if item is None or not may_make(state, thread):
            return original(self, item, *args, **kwargs)
        maker = maker_of(thread)
        now_ns = monotonic_ns()
        if maker.begin_ns:
            if items is _NEW:
                items = vars(self)[_ITEMS] = {}
            if len(items) >= MAX_ITEMS:
                vars(self)[_ITEMS] = None
            else:
                product = items[id(item)] = maker.begin(maker.begin_ns, state.take_number)
                maker.end(product, now_ns)
        try:
            return original(self, item, *args, **kwargs)
        finally:
            maker.begin_ns = monotonic_ns()

    return put


def _observe_get(original: Function, state: HookState) -> Function:
    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not thread.trains:
            item = original(self, *args, **kwargs)
            if thread.maker is not None and thread.maker.begin_ns:
                thread.maker.begin_ns = monotonic_ns()
            return item
        if not is_loop(state, thread):
            return original(self, *args, **kwargs)
        start_ns = monotonic_ns()
        product = None
        try:
            item = original(self, *args, **kwargs)
            items = vars(self).get(_ITEMS)
            if items is not None:
                product = items.pop(id(item), None)
            return item
        finally:
            take(state, thread, product, start_ns, monotonic_ns(), "queue")

    return get


_NEW: Final[dict[int, Product]] = {}
"""Stands for the items of a queue that has none yet; it stays empty."""
