"""What all readers of a spool do with a value that anybody may have written: take it if it can be, and say so if it cannot."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor

LATEST_NS: Final = 1 << 62
"""No clock goes that far (the year 2116), and the sum of two such times is still an int64."""


def anchor_of(header: Any) -> Anchor | None:
    """The reading of the wall clock in a file's header (`anchor_before_ns` and so on); None where it makes no sense."""
    anchor = Anchor(*(int(header[f"anchor_{name}_ns"]) for name in ("before", "wall", "after")))
    return anchor if 0 <= anchor.before_ns <= anchor.after_ns <= anchor.wall_ns < LATEST_NS else None


def nullable(values: npt.NDArray[Any]) -> pl.Series:
    """Null where negative."""
    series = pl.Series(values)
    return series.set(series < 0, None)


def number_of(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Process and thread numbers; -1 where there can be none."""
    possible: npt.NDArray[Any] = np.where((values > 0) & (values < 1 << 31), values, -1)
    return possible


def text(data: bytes) -> str:
    """Paths need not be UTF-8, tables must; bytes that are not become backslash escapes."""
    return data.decode("utf-8", "backslashreplace")


def damage_facts(file: str, damage: Mapping[str, int]) -> list[dict[str, str]]:
    """What was found wrong with a file and how often, for `run["capture"]["damaged"]`."""
    return [{"file": file, "what": what if count == 1 else f"{what} ({count} times)"} for what, count in damage.items() if count]
