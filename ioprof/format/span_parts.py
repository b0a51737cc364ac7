"""Parts of a run's spans, which are read one after the other, so that memory does not depend on how
many spans there are.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import polars as pl

Query = Callable[[pl.LazyFrame], pl.LazyFrame]

FIRST_NS: Final = -(1 << 62)
LAST_NS: Final = 1 << 62
_PARTS_AHEAD: Final = 1
"""Parts that are read while another one is looked at."""
_ROWS_HELD: Final = 1_500_000
"""Spans of parts that are kept, since later stretches of time have some of them: some 100 MB."""


@dataclass(frozen=True)
class Part:
    """Some of the spans, and where they lie; a part that holds all of them has no bounds."""

    spans: pl.LazyFrame
    first_ns: int
    last_ns: int
    ranks: frozenset[int | None] | None


@dataclass(frozen=True)
class Where:
    """A stretch of time, and ranks: what spans have to be read for it."""

    ranks: frozenset[int]
    since_ns: int
    until_ns: int

    @classmethod
    def of_rank(cls, rank: int) -> "Where":
        """All of a rank's time."""
        return cls(frozenset([rank]), FIRST_NS, LAST_NS)

    def may_be_in(self, part: Part) -> bool:
        """Whether a part may have spans of these ranks that reach into that time."""
        is_then = part.first_ns < self.until_ns and part.last_ns >= self.since_ns
        return is_then and (part.ranks is None or not part.ranks.isdisjoint(self.ranks))


def bounds(spans: pl.LazyFrame) -> tuple[int, int, frozenset[int | None]]:
    """The first start, the last end, and the ranks."""
    found = spans.select(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("rank").unique().implode()
    ).collect()
    first_ns, last_ns, ranks = found.row(0)
    return (
        FIRST_NS if first_ns is None else first_ns,
        LAST_NS if last_ns is None else last_ns,
        frozenset(ranks),
    )


def bounds_of(spans: pl.DataFrame) -> tuple[int, int, frozenset[int | None]]:
    """The same of a table, without a query, which would wait for the threads of polars."""
    starts, ends, ranks = spans["start_ns"], spans["end_ns"], frozenset(spans["rank"].unique())
    if starts.null_count() == len(starts) or ends.null_count() == len(ends):
        return bounds(spans.lazy())
    return int(starts.min()), int(ends.max()), ranks  # type: ignore[arg-type]


def collected(parts: Sequence[Part], query: Query) -> Iterator[pl.DataFrame]:
    """What a query finds in each of the parts. The next part is read on a thread while one is
    looked at.
    """
    if len(parts) == 1:
        yield query(parts[0].spans).collect()
        return
    with ThreadPoolExecutor(_PARTS_AHEAD) as threads:
        waiting = deque[Future[pl.DataFrame]]()
        for part in parts:
            waiting.append(threads.submit(lambda spans: query(spans).collect(), part.spans))
            if len(waiting) > _PARTS_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Nearby:
    """What a query that looks at single spans finds in one or more parts, asked for in the order of
    time.

    A part that reaches over several stretches of time is read once, as long as what is held of such
    parts has at most `_ROWS_HELD` rows.
    """

    def __init__(self, parts: Sequence[Part], query: Query) -> None:
        self._parts, self._query = parts, query
        self._nothing = query(parts[0].spans.head(0)).collect()
        self._held: dict[int, pl.DataFrame] = {}

    def between(self, since_ns: int, until_ns: int) -> pl.DataFrame:
        """The spans that lie in a stretch of time, if only in part, or begin at its start.

        A stretch follows the one that was asked for last.
        """
        begins, ends = pl.col("start_ns"), pl.col("end_ns")
        reaches = (
            (begins < until_ns) & (ends >= since_ns) & ((ends > since_ns) | (begins >= since_ns))
        )
        found = [self._nothing]
        for number, part in enumerate(self._parts):
            rows = self._held.pop(number, None)
            if part.last_ns < since_ns or part.first_ns >= until_ns:
                continue
            rows = self._query(part.spans).collect() if rows is None else rows
            found.append(rows.filter(reaches))
            if (
                part.last_ns >= until_ns
                and sum(map(len, self._held.values())) + len(rows) <= _ROWS_HELD
            ):
                self._held[number] = rows
        return pl.concat(found)
