"""How something that runs in the job ends with its process: however the interpreter is left, and not twice in a forked child."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Final

_hooked: Final[set[Callable[[], object]]] = set()


def call_at_end(stop: Callable[[], object], in_child: Callable[[], None], priority: int) -> None:
    """Call `stop` when this process ends by itself, and `in_child` in every child that is forked from it, now and later.

    Children of multiprocessing end by os._exit, after its finalizers: among those `stop` has this `priority`, high comes first.
    Whoever is such a child has loaded multiprocessing, so this is to be called again in each process that has something to end.
    """
    if stop not in _hooked:
        _hooked.add(stop)
        atexit.register(stop)
        os.register_at_fork(after_in_child=in_child)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, stop, exitpriority=priority)
