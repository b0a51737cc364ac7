"""Observes calls of torch's modules: the outermost is a forward pass, see `compute`.

`torch.nn.Module.__call__` is replaced by an observer of the extension, which shows the compiler,
`inspect` and `pickle` the original. torch's own global hooks are not used: with them every module
of a model takes a path through `_call_impl` that costs microseconds, and `torch.compile` warns of
them.

Not every module computes a forward pass: transforms of images are modules too. One does if it has
parameters, or if its arguments require gradients, as those of a loss do.
"""

from types import ModuleType

from ioprof.instrument.hooks.observers import calling
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import require


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `torch.nn.modules.module`."""
    require(module, "Module")
    require(module.Module, "__call__", "_call_impl")
    original = vars(module.Module).get("__call__")
    state.patches.wrap(module.Module, "__call__", calling)
    # its other name, by which it is pickled
    if vars(module.Module).get("_wrapped_call_impl") is original:
        state.patches.put(module.Module, "_wrapped_call_impl", vars(module.Module)["__call__"])
