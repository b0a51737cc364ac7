"""torch itself, for hooks that ask whether its compiler traces their code instead of running it.

The compiler knows the value of `is_compiling()` while it traces, reads this function through, and
drops the branches that do not apply.
"""

import sys
from types import ModuleType
from typing import Any, Final

of_torch: Any = sys.modules["torch"]
"""It may be incomplete when this module is loaded: the hooks are installed while torch is
imported."""

_FIRST_PUBLIC: Final = (2, 3)
"""The first version of torch that has `torch.compiler.is_compiling`."""


def _version() -> tuple[int, ...]:
    """Major and minor; that of the newest torch, where it cannot be parsed."""
    text = str(getattr(sys.modules.get("torch.version"), "__version__", ""))
    numbers = text.split(".")[:2]
    return (
        tuple(map(int, numbers))
        if len(numbers) == len(_FIRST_PUBLIC) and all(map(str.isdecimal, numbers))
        else _FIRST_PUBLIC
    )


def observe(module: ModuleType, _state: object) -> None:
    """From when `torch.compiler` is there, torch's own function is `is_traced`."""
    global is_traced
    is_traced = getattr(module, "is_dynamo_compiling", is_traced)


if _version() >= _FIRST_PUBLIC:

    def is_compiling() -> bool:
        """Whether torch's compiler traces this call."""
        result: bool = of_torch.compiler.is_compiling()
        return result

    def is_traced() -> bool:
        """Whether the compiler reads it and does not run it: a shorter question, for each step."""
        result: bool = of_torch.compiler.is_dynamo_compiling()
        return result

elif hasattr(sys.modules.get("torch._utils"), "is_compiling"):

    def is_compiling() -> bool:
        """The same, where torch 2.0 to 2.2 has it."""
        result: bool = of_torch._utils.is_compiling()  # noqa: SLF001
        return result

    is_traced = is_compiling

else:

    def is_compiling() -> bool:
        """No: torch 1 has no compiler."""
        return False

    is_traced = is_compiling
