"""Calls functions when a process of the job ends, however the interpreter is left, and not again in a forked child."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Final

_hooked: Final[set[Callable[[], object]]] = set()


def call_at_end(stop: Callable[[], object], in_child: Callable[[], None], priority: int) -> None:
    """Call `stop` when this process ends by itself, and `in_child` in every child that is forked from it, now and later.

    Children of multiprocessing end by os._exit, after its finalizers: among those `stop` has this `priority`, high comes first.
    They clear the finalizers of their parent, so each process calls this function again.
    """
    if stop not in _hooked:
        _hooked.add(stop)
        atexit.register(stop)
        os.register_at_fork(after_in_child=in_child)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, stop, exitpriority=priority)
