"""Calls functions when a process of the job ends, however the interpreter is left, and not again in
a forked child.
"""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

_hooked: Final[dict[Callable[[], object], Callable[[], None]]] = {}


def call_quietly(function: Callable[[], object]) -> None:
    """Call a function of ioprof; its errors, for example that no descriptor is left, are not the
    job's: Python would print them.
    """
    with suppress(Exception):
        function()


def call_at_end(stop: Callable[[], object], in_child: Callable[[], None], priority: int) -> None:
    """Call `stop` when this process ends by itself, and `in_child` in every child that is forked
    from it, now and later.

    Children of multiprocessing end by os._exit, after its finalizers: among those `stop` has this
    `priority`, high comes first. They clear the finalizers of their parent, so each process calls
    this function again.
    """
    if stop not in _hooked:
        _hooked[stop] = partial(call_quietly, stop)
        atexit.register(_hooked[stop])
        os.register_at_fork(after_in_child=in_child)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _hooked[stop], exitpriority=priority)
