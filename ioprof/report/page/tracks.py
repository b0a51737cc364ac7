"""The lanes of the page's timeline: which spans each has, and in which order they stand."""

from dataclasses import dataclass, field
from typing import Final

import polars as pl

from ioprof.format.trace import Trace
from ioprof.report.lanes import LEAVES, MAIN_KINDS, MAIN_LANES, THREADS, by_thread, worker_numbers
from ioprof.report.page.classes import class_number
from ioprof.report.views import chosen_ranks

MOST_RANKS: Final = 8
"""Ranks with lanes; of more, the slowest, the fastest and some between."""
MOST_MAKERS: Final = 32
"""Processes of one rank that make batches and have a lane of their own."""
_ORDER: Final = ("compute", "copies", "exchange", "wait", "other")
_LANES: Final = {**MAIN_KINDS, "sync": "wait"}
_OTHER_KINDS: Final = ("checkpoint", "validate", "user", "gc", "sampler", "phase", "stage")
_KEYS: Final = ("rank", "pid", "by_thread", "kind", "source")
_Key = tuple[int | None, bool, str, str | None]
"""Process id, whether another thread than the main one of a rank made it, kind and source."""


@dataclass(frozen=True)
class Track:
    """A lane that has spans of its own."""

    name: str
    rank: int | None
    is_maker: bool
    """Whether its spans make batches; such lanes are shown together until they are unfolded."""
    pid: int | None = None
    """The process that makes batches."""
    is_thread: bool = False
    """Whether another thread of a rank's process than its main one makes them."""


@dataclass
class Tracks:
    """The lanes of a run, and which spans lie in which."""

    ranks: list[int | None]
    """Those that have lanes; null stands for processes that are no rank."""
    tracks: list[Track] = field(default_factory=list)
    rows: list[tuple[int | None, int | None, bool, str, str | None, int, int]] = field(
        default_factory=list
    )
    left_out: int = 0
    """Processes without a lane."""

    @property
    def table(self) -> pl.DataFrame:
        """Columns `rank pid by_thread kind source track class`: the lane and class of spans that
        have one.
        """
        keys = {
            "rank": pl.Int32,
            "pid": pl.Int32,
            "by_thread": pl.Boolean,
            "kind": pl.String,
            "source": pl.String,
        }
        return pl.DataFrame(
            self.rows, schema={**keys, "track": pl.Int64, "class": pl.Int64}, orient="row"
        )

    def add(self, track: Track, keys: list[_Key]) -> None:
        """One more lane, of the spans with these keys."""
        if not keys:
            return
        self.rows += [(track.rank, *key, len(self.tracks), class_number(*key[2:])) for key in keys]
        self.tracks.append(track)


def tracks_of(trace: Trace, steps: pl.DataFrame) -> Tracks:
    """The lanes of a run, rank by rank."""
    kind = pl.col("kind", "source").cast(pl.String)
    keys = trace.sums.select("rank", "pid", kind, by_thread=by_thread(trace)).unique(
        maintain_order=True
    )
    known: list[int | None] = (
        list(chosen_ranks(steps, MOST_RANKS)) if len(steps) else list(trace.ranks[:MOST_RANKS])
    )
    found = Tracks(known or [None])
    numbers = worker_numbers(trace)
    for rank in found.ranks:
        mine = keys.filter(pl.col("rank").eq_missing(rank)).select(_KEYS[1:]).rows()
        _add_rank(found, rank, mine, numbers)
    return found


def _add_rank(found: Tracks, rank: int | None, keys: list[_Key], numbers: dict[int, int]) -> None:
    lanes: dict[str, list[_Key]] = {name: [] for name in _ORDER}
    makers: dict[tuple[int | None, bool], list[_Key]] = {}
    for key in keys:
        pid, is_thread, kind, _ = key
        if kind in (*LEAVES, "fetch", "request") or (pid in numbers and kind in _OTHER_KINDS):
            makers.setdefault((pid, is_thread), []).append(key)
        elif kind in _LANES:
            lanes[_LANES[kind]].append(key)
        elif kind in _OTHER_KINDS:
            lanes["other"].append(key)
    main = {pid for name in MAIN_LANES for pid, *_ in lanes[name]}
    for name in _ORDER:
        found.add(Track(name, rank, is_maker=False), lanes[name])
    ordered = sorted(
        makers,
        key=lambda maker: (
            numbers.get(maker[0] or -1, -1 if maker[0] in main else 1 << 30),
            maker[0] or -1,
            maker[1],
        ),
    )
    for pid, is_thread in ordered[:MOST_MAKERS]:
        number = numbers.get(pid) if pid is not None else None
        of_rank = THREADS if is_thread else "main process" if pid in main else f"process {pid}"
        name = f"worker {number}" if number is not None else of_rank
        found.add(Track(name, rank, True, pid, is_thread), makers[pid, is_thread])
    found.left_out += len(ordered[MOST_MAKERS:])


def placed(spans: pl.LazyFrame, table: pl.DataFrame) -> pl.LazyFrame:
    """The spans that have a lane, with the columns `track` and `class`."""
    keys = table.lazy().with_columns(
        pl.col("kind").cast(spans.collect_schema()["kind"]),
        pl.col("source").cast(spans.collect_schema()["source"]),
    )
    return spans.join(keys, on=list(_KEYS), how="inner", nulls_equal=True)
