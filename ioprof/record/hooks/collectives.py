"""Observes torch's collectives as a script calls them: `comm` spans, named for the operation, that reach from the call to its end.

The end of an asynchronous one is the end of the wait for it. The second and later ones of a name within a step, and those of a
group that is not the whole job, are told apart by their names, so that the analysis can find the same one on other ranks.
Collectives on a GPU only launch here, and are seen as kernels. Those that C++ starts pass by: DDP's, see `gradients`.
"""

import sys
import weakref
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.record.hooks import compute
from ioprof.record.hooks.compiler import of_torch
from ioprof.record.hooks.patches import Function, patches
from ioprof.record.hooks.session import session
from ioprof.record.hooks.steps import steps
from ioprof.record.span import emit

OPERATIONS: Final = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_single", "all_gather_into_tensor", "_all_gather_base",
    "all_gather_coalesced", "all_gather_object", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor",
    "_reduce_scatter_base", "all_to_all", "all_to_all_single", "broadcast", "broadcast_object_list", "reduce", "gather", "scatter",
    "gather_object", "scatter_object_list", "barrier", "monitored_barrier",
)  # fmt: skip
"""Functions of `torch.distributed` in which the ranks of a group wait for one another."""

_NAMES_PER_STEP: Final = 1000


class _Names:
    """Tells collectives of one name and step apart."""

    def __init__(self) -> None:
        self._step = -1
        self._counts: dict[str, int] = {}
        self.nested = False

    def next(self, name: str) -> str:
        if self._step != steps.number:
            self._step, self._counts = steps.number, {}
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name if count == 1 or count > _NAMES_PER_STEP else f"{name} {count}"


_names = _Names()
_under_way: "weakref.WeakKeyDictionary[Any, tuple[int, str, int, int]]" = weakref.WeakKeyDictionary()


def observe(module: ModuleType) -> None:
    """Observe `torch.distributed.distributed_c10d`."""
    public = sys.modules.get("torch.distributed")
    for name in ("init_process_group", *OPERATIONS):
        original = vars(module).get(name)
        patches.wrap(module, name, _joining if name == "init_process_group" else _operation(name))
        # Imported long ago, the package has names of its own for the same functions.
        if original is not None and public is not None and vars(public).get(name) is original:
            patches.put(public, name, vars(module)[name])
    patches.wrap(module.Work, "wait", _waiting)


def _anew() -> None:
    global _names
    _names = _Names()
    _under_way.clear()


session.renew(_anew)


def _joining(original: Function) -> Function:
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if session.is_on:
            module: Any = sys.modules["torch.distributed.distributed_c10d"]
            session.wake()
            session.who.joined(module.get_rank())
            session.tell(ranks=module.get_world_size(), backend=str(module.get_backend()))

    return init_process_group


def _operation(name: str) -> Any:
    def observer(original: Function) -> Function:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if of_torch.compiler.is_compiling() or _names.nested or not session.is_on or _is_on_device(args, kwargs):
                return original(*args, **kwargs)
            session.wake()
            label, size = _names.next(_label(name, args, kwargs)), _num_bytes(args, kwargs)
            step = steps.number if steps.begun else -1
            _names.nested = True
            start_ns = monotonic_ns()
            try:
                work = original(*args, **kwargs)
            finally:
                _names.nested = False
            if hasattr(work, "wait"):
                _under_way[work] = (start_ns, label, step, size)
            else:
                _done(start_ns, label, step, size)
            return work

        return collective

    return observer


def _waiting(original: Function) -> Function:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = _under_way.pop(self, None)
        if known is None:
            return original(self, *args, **kwargs)
        begin_ns = monotonic_ns()
        result = original(self, *args, **kwargs)
        _done(*known, waited_ns=begin_ns)
        return result

    return wait


def _done(start_ns: int, label: str, step: int, size: int, waited_ns: int | None = None) -> None:
    end_ns = monotonic_ns()
    emit("comm", start_ns, end_ns, label, bytes=size, step=step)
    compute.communicated(start_ns if waited_ns is None else waited_ns, end_ns)


def _label(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    group = kwargs.get("group")
    if group is None:
        kind: Any = sys.modules["torch.distributed.distributed_c10d"].ProcessGroup
        group = next((value for value in args if isinstance(value, kind)), None)
    world = sys.modules["torch.distributed.distributed_c10d"].GroupMember.WORLD
    name = name.strip("_")
    return name if group is None or group is world else f"{name} in group {getattr(group, 'group_name', '?')}"


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    kind: Any = of_torch.Tensor
    found = []
    for value in (*args, *kwargs.values()):
        found += [entry for entry in (value if isinstance(value, list | tuple) else (value,)) if isinstance(entry, kind)]
    return found


def _is_on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(not compute.is_on_cpu(tensor) for tensor in _tensors(args, kwargs)[:1])


def _num_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Of all tensors of the call; -1 where it has none."""
    tensors = _tensors(args, kwargs)
    return sum(int(tensor.nbytes) for tensor in tensors) if tensors else -1
