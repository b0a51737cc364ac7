"""How far the simulator was from published results: `validation.toml`, which
`benchmarks/simulator.py` writes. It has errors, and none of the published results.
"""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from statistics import median
from typing import Final

CALIBRATES, VALIDATES = "calibrates", "validates"
USE: Final = "use"
"""Of accelerators, in points; the other quantities are ratios."""


@dataclass(frozen=True)
class Comparison:
    """A published result, or a run, beside what the simulator says."""

    row: str
    """Organisation or run, system, workload, accelerators."""
    quantity: str
    """`use`, `samples/s`, `accelerators held`, `first epoch`, `step`."""
    role: str
    """`CALIBRATES`: a value of the system was fitted to it. `VALIDATES`: none was."""
    error: float
    """Predicted over published, less 1; of `use` the difference."""
    bound: float
    """What is asked of the error."""
    why: str = ""
    """Of an error above the bound: what the model lacks."""


@dataclass(frozen=True)
class Summed:
    """The validating comparisons of one quantity."""

    quantity: str
    count: int
    within: int
    """Of them, within the bound."""
    median: float
    """Of the absolute errors."""
    worst: float


@lru_cache(maxsize=1)
def comparisons() -> tuple[Comparison, ...]:
    """All of them."""
    text = files("ioprof.model.simulator").joinpath("validation.toml").read_text()
    return tuple(Comparison(**row) for row in tomllib.loads(text)["comparison"])


def summed() -> tuple[Summed, ...]:
    """By quantity, of those that no value was fitted to."""
    found = [each for each in comparisons() if each.role == VALIDATES]
    return tuple(
        Summed(
            quantity,
            len(errors),
            sum(abs(each.error) <= each.bound for each in errors),
            median(abs(each.error) for each in errors),
            max(abs(each.error) for each in errors),
        )
        for quantity in dict.fromkeys(each.quantity for each in found)
        if (errors := [each for each in found if each.quantity == quantity])
    )
