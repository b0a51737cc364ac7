"""A number with its range and where it is from, as the files of systems and workloads have it.

    bytes_per_s = { value = 110e9, source = "stated by the submitter, MLPerf Storage v1.0" }
    open_s = { value = 0.5e-3, low = 0.2e-3, high = 2e-3, assumed = "no measurement was found" }

`source` says who stated the value, `measured` who measured it, `calibrated` which published result
it was fitted to, and `assumed` why there is none of these; an assumption has its own range.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ioprof.errors import CommandError

SPREADS: Final[dict[str, tuple[float, float]]] = {
    "source": (0.9, 1.1),
    "measured": (0.95, 1.05),
    "calibrated": (0.95, 1.05),
}
"""What a value may be instead, as factors, if its file gives no range. `source`: storage of MLPerf
Storage v1.0 that was saturated delivered 0.95 to 1.10 of what its maker states. `measured` and
`calibrated`: epochs of one run of that benchmark differ by up to 5 %."""
ASSUMED: Final = "assumed"
BASES: Final = (*SPREADS, ASSUMED)


@dataclass(frozen=True)
class Value:
    """A number and its range."""

    value: float
    low: float
    high: float
    basis: str
    """One of `BASES`."""
    source: str
    """Where it is from, or why it is assumed."""

    def at(self, end: str, *, is_cost: bool) -> float:
        """The value, or its `worse` or `better` end: for a cost the larger one is worse."""
        if end == "value":
            return self.value
        return self.high if (end == "worse") == is_cost else self.low


def parse_value(where: str, given: Any) -> Value:
    """A `Value` of a table in a file; CommandError, which names `where` it is, for none."""
    bases = [name for name in BASES if isinstance(given, Mapping) and name in given]
    if len(bases) != 1 or not isinstance(given.get("value"), int | float):
        raise CommandError(
            f"{where}: give {{ value = 1.0, source = ... }}, with one of {', '.join(BASES)}"
        )
    basis, value = bases[0], float(given["value"])
    if basis == ASSUMED and not {"low", "high"} <= given.keys():
        raise CommandError(f"{where}: an assumed value needs a range: low = ..., high = ...")
    factors = SPREADS.get(basis, (1.0, 1.0))
    low = float(given.get("low", value * factors[0]))
    high = float(given.get("high", value * factors[1]))
    if not 0 <= low <= value <= high:
        raise CommandError(f"{where}: {value:g} does not lie in its range, {low:g} to {high:g}")
    return Value(value, low, high, basis, str(given[basis]))
