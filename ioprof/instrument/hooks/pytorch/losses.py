"""How much of the time before the backward pass, or before the optimizer's step, is spent in
functions and operators of tensors.

A loss that is no module has no call that the hooks could observe. So some of these times are looked
at in detail: torch calls a mode for whatever it computes with tensors
(`torch.overrides.TorchFunctionMode`), which costs some 2 us per call, and the mode counts how long
that takes. Before the backward pass only what a gradient is wanted of counts: the rest, such as a
search for negatives among stored outputs, is no loss, though it uses tensors. Only times that are
long (`compute.SMALL_SHARE`) are counted here: the second to fourth of them are observed, then one
of `SELDOM`. Where the thread did not wait, in a function of torch (for torch's other threads) or
between them, its CPU time counts: another program may have the core for longer than a loss takes.
Where torch's compiler is in use none is observed: compiled code would be compiled again for the
mode.
"""

import resource
import sys
from typing import Any, Final

from ioprof.clock import monotonic_ns, thread_cpu_ns

LEAST_RATIO: Final = 0.75
"""Part of the time that must be spent in torch, from which on all of it counts as computation."""
SELDOM: Final = 256
"""Of so many times one is observed, when the first ones were."""
_FIRST: Final = 3
_MOST_RESULTS: Final = 4
_CALL_NS: Final = 2_000
"""What the mode adds to a call besides what it counts itself."""


class TensorWatch:
    """What is known of these times in one training loop, on the CPU."""

    def __init__(self, *, of_gradients: bool) -> None:
        self._of_gradients = of_gradients
        """Whether only results that a gradient is wanted of count."""
        self.wanted = False
        """The next such time is to be observed."""
        self._count = 0
        self._torch_ns = self._whole_ns = 0
        self._mode: Any = None
        self._began_ns = self._began_cpu_ns = self._began_waits = 0

    @property
    def is_computation(self) -> bool:
        """Whether such times were mostly spent in torch, as far as they were observed."""
        return self._torch_ns > 0 and self._torch_ns >= LEAST_RATIO * self._whole_ns

    @property
    def is_on(self) -> bool:
        """Whether one is being observed."""
        return self._mode is not None

    def begin(self) -> None:
        """Such a time begins, and is wanted."""
        self.wanted = False
        if _may_observe():
            self._mode = _mode_class()(self._of_gradients)
            self._mode.__enter__()
            self._began_waits = _num_waits()
            self._began_cpu_ns = thread_cpu_ns()
            # and not before: the class of the mode may just have been made
            self._began_ns = monotonic_ns()

    def end(self, now_ns: int | None) -> None:
        """It ends, since the backward pass or the step begins; None: something else does, and what
        was seen does not count.

        `Tensor.backward` is itself called by the mode, which can be taken away only when that has
        ended: at the next such call.
        """
        mode = self._mode
        if now_ns is not None and not mode.is_over:
            if _num_waits() == self._began_waits + mode.waits:
                other_ns = thread_cpu_ns() - self._began_cpu_ns - mode.cpu_ns
            else:
                other_ns = now_ns - self._began_ns - mode.elapsed_ns
            self._torch_ns = self._torch_ns // 2 + mode.torch_ns
            self._whole_ns = (
                self._whole_ns // 2 + mode.torch_ns + max(other_ns - mode.calls * _CALL_NS, 0)
            )
        mode.is_over = True
        if _is_innermost(mode):  # and not within a mode of the user's, which has not ended yet
            self._mode = None
            mode.__exit__(None, None, None)

    def count(self, times: int = 1) -> int:
        """So many of such times were long. Returns how many more may be before that is told."""
        self._count += times
        self.wanted = self._count <= _FIRST or self._count % SELDOM == 0
        return 0 if self._count < _FIRST else SELDOM - self._count % SELDOM - 1


def _may_observe() -> bool:
    """Not where no gradient is wanted, where another mode is active, or where torch's compiler has
    compiled anything.
    """
    try:
        dynamo = sys.modules.get("torch._dynamo.utils")
        has_compiled = dynamo is not None and bool(dynamo.counters.get("frames"))
        is_free = _torch().overrides._get_current_function_mode() is None  # noqa: SLF001
        return bool(is_free and not has_compiled and _torch().is_grad_enabled())
    except (AttributeError, KeyError):  # another version of torch
        return False


def _num_waits() -> int:
    """How often this thread has waited: slept, or for a lock or another thread (voluntary context
    switches, man 2 getrusage).
    """
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _torch() -> Any:
    """It is there when a module was called."""
    return sys.modules["torch"]


def _is_innermost(mode: Any) -> bool:
    return _torch().overrides._get_current_function_mode() is mode  # noqa: SLF001


def _wants_gradient(result: Any) -> bool:
    """Of a tensor, or of the first ones of several."""
    if isinstance(result, tuple | list):
        return any(_wants_gradient(each) for each in result[:_MOST_RESULTS])
    return getattr(result, "requires_grad", False) is True


_classes: list[Any] = []


def _mode_class() -> Any:
    """Made when it is first needed: torch is not there yet when this module is imported."""
    if not _classes:

        class CountingMode(_torch().overrides.TorchFunctionMode):  # type: ignore[misc]
            """Counts the time of all that torch computes."""

            def __init__(self, of_gradients: bool) -> None:
                super().__init__()
                self.of_gradients = of_gradients
                self.torch_ns = self.elapsed_ns = self.cpu_ns = self.waits = self.calls = 0
                self.is_over = False

            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                start_waits, start_ns, start_cpu_ns = _num_waits(), monotonic_ns(), thread_cpu_ns()
                result = function(*args, **(kwargs or {}))
                self.calls += 1
                if not self.of_gradients or _wants_gradient(result):
                    cpu_ns, elapsed_ns = thread_cpu_ns() - start_cpu_ns, monotonic_ns() - start_ns
                    waits = _num_waits() - start_waits
                    self.cpu_ns += cpu_ns
                    self.elapsed_ns += elapsed_ns
                    self.waits += waits
                    self.torch_ns += elapsed_ns if waits else cpu_ns
                return result

        _classes.append(CountingMode)
    return _classes[0]
