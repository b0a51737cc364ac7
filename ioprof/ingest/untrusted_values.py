"""Validation of values in spool files, which may be corrupt: invalid values become null or are
counted as damage.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.clock import Anchor
from ioprof.files import open_regular_file, read_regular_file
from ioprof.format.run_record import Damage
from ioprof.masking import SUSPICION, masked_text

LATEST_NS: Final = 1 << 62
"""Upper limit of valid times (the year 2116). The sum of two such times still fits into an
int64."""


def anchor_of(header: Any) -> Anchor | None:
    """The wall clock reading in a file header (`anchor_before_ns` and so on); None if it is
    invalid.
    """
    anchor = Anchor(*(int(header[f"anchor_{name}_ns"]) for name in ("before", "wall", "after")))
    return (
        anchor if 0 <= anchor.before_ns <= anchor.after_ns <= anchor.wall_ns < LATEST_NS else None
    )


def nullable(values: npt.NDArray[Any]) -> pl.Series:
    """Series of the values with negative ones as null."""
    series = pl.Series(values)
    return series.set(series < 0, None)


def valid_ids(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Process or thread ids; -1 for values that cannot be one."""
    possible: npt.NDArray[Any] = np.where((values > 0) & (values < 1 << 31), values, -1)
    return possible


def text(data: bytes) -> str:
    """Decode bytes as UTF-8. Paths may contain other bytes; those become backslash escapes."""
    return data.decode("utf-8", "backslashreplace")


def texts(strings: Iterable[bytes]) -> pl.Series:
    """The strings of capture files, decoded: paths, URLs and names. Secrets in them are masked,
    such as those of a signed URL.
    """
    return masked_series(pl.Series([text(each) for each in strings], dtype=pl.String))


def masked_series(series: pl.Series) -> pl.Series:
    """The texts, with secrets masked. Of millions of paths hardly one is suspicious, which polars
    finds in a tenth of a second.
    """
    places = series.str.contains(SUSPICION).arg_true()
    return (
        series.clone().scatter(places, [masked_text(each) for each in series[places]])
        if len(places)
        else series
    )


def valid_text(value: str) -> str:
    r"""The text with half surrogate pairs, which JSON can hold as `\ud800` but UTF-8 and polars
    cannot, as backslash escapes.
    """
    return value.encode("utf-8", "backslashreplace").decode()


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file in a spool; none if it cannot be read, or is a pipe, a device or a
    folder: see `unreadable`.
    """
    try:
        return read_regular_file(path).splitlines()
    except OSError:
        return []


def unreadable(paths: Iterable[Path]) -> Iterator[Damage]:
    """What hinders reading those of the files of which `lines_of` has nothing."""
    for path in paths:
        try:
            with open_regular_file(path):
                pass
        except OSError as error:
            yield Damage(file=path.name, what=f"cannot be read: {error.strerror}")


def damage_facts(file: str, damage: Mapping[str, int]) -> list[Damage]:
    """Entries for `CaptureRecord.damaged`: each kind of damage in a file and its count."""
    found = ((what, count) for what, count in damage.items() if count)
    return [
        Damage(file=file, what=what if count == 1 else f"{what} ({count} times)")
        for what, count in found
    ]
