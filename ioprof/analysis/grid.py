"""A study over several settings: a number for each combination of their values, with how it came to
be.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError

QUANTITIES: Final = {
    "total_s": "time of the whole training",
    "samples_per_s": "samples/s",
    "use": "use of the accelerators",
}
"""What the table of a study may have, and what that is."""
GRID_FILE: Final = "study.json"
COMPUTE: Final = "compute"
"""The part of a step that hides others."""


@dataclass(frozen=True)
class Axis:
    """A setting that is varied."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Something that goes on in a step of a rank, beside other parts."""

    name: str
    """`compute`, `copies` to the device, `exchange`, ...; of a simulation also the resources of the
    system, of a run its causes."""
    seconds: float | None
    """How long of a step, mean; null: what computation hides of it is not known."""
    exposed_s: float
    """What computation does not hide of it. The exposed parts sum to the step."""


@dataclass(frozen=True)
class Cell:
    """One combination."""

    place: tuple[str, ...]
    """A value of each axis, in their order."""
    value: float
    low: float | None
    """Null: it was measured once."""
    high: float | None
    basis: str
    """`measured`, `emulated` (the device is a clock, all else is measured) or `predicted`."""
    bound_by: str
    """What takes most of the time beside the computation, or all of it."""
    share: float
    """Of the time, that it takes."""
    samples_per_s: float | None
    """Of all ranks."""
    ranks: int
    parts: tuple[Part, ...] = ()
    """Of a step."""
    needs_bytes_per_s: float | None = None
    """What all ranks must be given so that no device waits."""
    feeds: float | None = None
    """A device so many times as fast would still not wait, by the part that then binds: below 1 it
    waits already. Null: not simulated."""
    binds: str = ""
    """That part."""
    run: str = ""
    """Its folder; empty: nothing was run."""
    key: str = ""
    """Digest of all that it depends on, by which a later call knows it again."""

    def most_beside_compute(self) -> tuple[str, float]:
        """The part but computation of which most is exposed, and its share of a step; of a cell
        without parts, what bounds it.
        """
        beside = [part for part in self.parts if part.name != COMPUTE]
        if not beside:
            return self.bound_by, self.share
        most = max(beside, key=lambda part: part.exposed_s)
        return most.name, most.exposed_s / sum(part.exposed_s for part in self.parts)


@dataclass(frozen=True)
class MadeDataset:
    """A dataset that was converted for a study."""

    name: str
    images: int
    bytes: int
    seconds: float
    """Measured: of the conversion."""


@dataclass(frozen=True)
class Bend:
    """Between which columns of a row the throughput per rank falls most."""

    row: tuple[str, ...]
    """Values of the other axes."""
    before: str
    after: str
    """Values of the last axis."""
    efficiency_before: float
    efficiency_after: float
    """Samples/s per rank, over those in the first column."""
    bound_by: str
    share: float
    """What takes most of the time after it, and how much."""


@dataclass(frozen=True)
class Limit:
    """How fast a device everything else feeds, in one row."""

    row: tuple[str, ...]
    first: str
    """Value of the last axis, whose device is meant."""
    needs_bytes_per_s: float
    feeds: float
    """See `Cell`."""
    binds: str
    starves: str
    """The first value whose devices wait; empty: none does."""


@dataclass(frozen=True)
class Grid:
    """A study."""

    name: str
    about: str
    source: str
    date: str
    quantity: str
    """One of `QUANTITIES`."""
    axes: tuple[Axis, ...]
    """The last one are the columns of a table, the one before it its rows."""
    cells: tuple[Cell, ...]
    datasets: tuple[MadeDataset, ...] = ()
    basis_notes: tuple[str, ...] = ()
    """What is stated, what assumed, and what is not modelled."""

    @classmethod
    def load(cls, path: Path | str) -> "Grid":
        """The study of a study.json; CommandError for what is none."""
        try:
            table = json.loads(Path(path).read_text())
            return cls(
                **table
                | {
                    "axes": tuple(
                        Axis(each["name"], tuple(each["values"])) for each in table["axes"]
                    ),
                    "cells": tuple(
                        Cell(
                            **each
                            | {
                                "place": tuple(each["place"]),
                                "parts": tuple(Part(**part) for part in each.get("parts", ())),
                            }
                        )
                        for each in table["cells"]
                    ),
                    "datasets": tuple(MadeDataset(**each) for each in table["datasets"]),
                    "basis_notes": tuple(table["basis_notes"]),
                }
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{path}: is no study over several settings ({error})") from error

    def to_json(self) -> str:
        """All of it."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)

    def cell(self, *place: str) -> Cell | None:
        """That of these values; None: it was not made."""
        return next((each for each in self.cells if each.place == place), None)

    def rows(self) -> Iterator[tuple[tuple[str, ...], list[Cell | None]]]:
        """For each combination of the other axes, the cells along the last one."""
        *others, columns = self.axes
        for place in product(*(axis.values for axis in others)):
            yield place, [self.cell(*place, value) for value in columns.values]

    def bends(self) -> Iterator[Bend]:
        """Of each row with several numbers of ranks, the neighbouring columns between which the
        throughput per rank falls most; none where it does not fall.
        """
        for place, found in self.rows():
            cells = [each for each in found if each is not None and each.samples_per_s]
            if len({each.ranks for each in cells}) < 2:
                continue
            per_rank = [float(each.samples_per_s or 0) / each.ranks for each in cells]
            ratios = [after / before for before, after in pairwise(per_rank)]
            least = min(range(len(ratios)), key=ratios.__getitem__)
            if ratios[least] >= 1:
                continue
            before, after = cells[least], cells[least + 1]
            bound_by, share = after.most_beside_compute()
            yield Bend(
                place,
                before.place[-1],
                after.place[-1],
                per_rank[least] / per_rank[0],
                per_rank[least + 1] / per_rank[0],
                bound_by,
                share,
            )

    def limits(self) -> Iterator[Limit]:
        """Of each row of simulated devices; none where the last axis varies something else than the
        devices and what they need.
        """
        for place, found in self.rows():
            cells = [each for each in found if each is not None and each.feeds is not None]
            needs = {each.needs_bytes_per_s for each in cells}
            if len(needs) < 2 or len({each.ranks for each in cells}) > 1:
                continue
            first = cells[0]
            starved = next((each for each in cells if float(each.feeds or 0) < 1), None)
            yield Limit(
                place,
                first.place[-1],
                first.needs_bytes_per_s or 0.0,
                first.feeds or 0.0,
                first.binds,
                starved.place[-1] if starved else "",
            )
