"""Observes torch's messages between two ranks (`isend`, `irecv`, `send`, `recv`), as the stages of
a pipeline exchange them.

A message has spans of kind `comm` with one name on both ranks, such as `message 0>1 2`: the second
from rank 0 to rank 1 within the step. Their `offset` is the sender. The sender has one for the call
that hands the message over, and one for its wait, if it waits; the receiver has one for its wait,
since it computes on after the call. Messages from any rank, and those on a GPU, are not seen.
"""

import sys
from functools import partial
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks import observers
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.pytorch import compute
from ioprof.instrument.hooks.pytorch.compiler import is_compiling
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require
from ioprof.instrument.span import emit

_PEER: Final = {
    "isend": ("dst", "group_dst"),
    "irecv": ("src", "group_src"),
    "send": ("dst", "group_dst"),
    "recv": ("src", "group_src"),
}
"""The functions, and the names of their arguments for the other rank: among all, and in its
group."""
_SENDS: Final = ("isend", "send")
_LAUNCHES: Final = ("isend", "irecv")


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.distributed.distributed_c10d`."""
    require(module, *_PEER, "get_rank", "get_global_rank", "Work")
    for name in _PEER:
        state.wrap_exported(module, "torch.distributed", name, partial(_observe, name))


def _observe(name: str, original: Function, state: HookState) -> Function:
    def exchange(*args: Any, **kwargs: Any) -> Any:
        found = _message(name, args, kwargs, state)
        if found is None:
            return original(*args, **kwargs)
        loop = state.per_thread.current.loop
        loop.in_collective = True
        start_ns = monotonic_ns()
        try:
            result = original(*args, **kwargs)
        finally:
            loop.in_collective = False
        if name in _LAUNCHES:
            _launched(name, result, state, found, start_ns)
        else:
            if name in _SENDS:  # handed over in an instant, and then waited for
                emit(
                    "comm",
                    start_ns,
                    start_ns,
                    found[0],
                    bytes=found[1],
                    step=found[2],
                    offset=found[3],
                )
            _emit(state, *found, start_ns)
        return result

    return exchange


def _launched(
    name: str, work: object, state: HookState, found: tuple[str, int, int, int], start_ns: int
) -> None:
    if work is None:  # this rank is not in the group
        return
    record = partial(_emit, state, *found)
    if name in _SENDS:
        record(start_ns)
    observers.expect(work, record)


def _emit(state: HookState, label: str, size: int, step: int, sender: int, start_ns: int) -> None:
    end_ns = monotonic_ns()
    emit("comm", start_ns, end_ns, label, bytes=size, step=step, offset=sender)
    state.per_thread.current.loop.add_gap(start_ns, end_ns)


def _message(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], state: HookState
) -> tuple[str, int, int, int] | None:
    """Name, bytes, step and sender of a message; None: it is not recorded."""
    if is_compiling() or not state.is_on or state.per_thread.current.loop.in_collective:
        return None
    tensor = args[0] if args else kwargs.get("tensor")
    if not compute.is_on_cpu(tensor):
        return None
    module: Any = sys.modules["torch.distributed.distributed_c10d"]
    of_all, of_group = _PEER[name]
    peer = args[1] if len(args) > 1 else kwargs.get(of_all)
    group = args[2] if len(args) > 2 else kwargs.get("group")
    in_group = args[4] if len(args) > 4 else kwargs.get(of_group)
    if peer is None and in_group is not None:
        peer = in_group if group is None else module.get_global_rank(group, in_group)
    if peer is None:
        return None
    own = module.get_rank()
    sender, receiver = (own, peer) if name in _SENDS else (peer, own)
    state.start_deferred()
    steps = state.steps
    tag = args[3] if len(args) > 3 else kwargs.get("tag", 0)
    label = f"message {sender}>{receiver}" + (f" tag {tag}" if tag else "")
    step = steps.number if steps.begun else -1
    return observers.numbered(label, steps.number), int(tensor.nbytes), step, sender  # type: ignore[union-attr]
