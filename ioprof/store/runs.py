"""The database of a store: for each run its run.json, summary and steps, so that it can be compared
when its folder is gone; and names for runs that others are compared with.

It is one file, `runs.sqlite`, which several processes may write to: each change is a transaction.
"""

import io
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from ioprof.analysis.regression import PastRun
from ioprof.errors import CommandError, RunError
from ioprof.format.run_record import RunRecord, Summary
from ioprof.format.schema import FILE_COLUMNS, SPAN_COLUMNS
from ioprof.format.trace import Trace, empty_table
from ioprof.report.run import Run

FILE: Final = "runs.sqlite"
BASELINE: Final = "baseline:"
"""Before the name of a baseline, where a run is expected."""
_VERSION: Final = 1
_WAIT_S: Final = 30
"""For other processes that write to the store."""
_TABLES: Final = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,          -- runs of the same job are one history
    name TEXT NOT NULL,
    folder TEXT NOT NULL,       -- where the run was when it was added
    started TEXT NOT NULL,      -- UTC, ISO 8601
    status TEXT,
    commit_id TEXT,
    seconds REAL,               -- per sample, else per step; null: neither is known
    unit TEXT,                  -- what `seconds` is of: sample or step
    bound_by TEXT,
    run BLOB NOT NULL,          -- run.json, deflated
    summary BLOB NOT NULL,      -- summary.json, deflated
    steps BLOB NOT NULL,        -- steps.parquet
    UNIQUE (job, name, started)
);
CREATE TABLE baselines (
    name TEXT PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs (id)
);
CREATE INDEX by_job ON runs (job, started);
"""


class Store:
    """The store in a folder, which is made if it is not there and `make` allows it."""

    def __init__(self, folder: Path, *, make: bool = False) -> None:
        self.path: Final = folder / FILE
        if make:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CommandError(
                    f"--store {folder}: cannot be made ({error.strerror}); choose another folder"
                ) from None
        elif not self.path.is_file():
            raise CommandError(
                f"--store {folder}: no store of runs; make one with:"
                f" ioprof history add RUN --store {folder}"
            )

    def add(self, run: Run, job: str | None = None, baseline: str | None = None) -> int:
        """Add a run, and return its number; one that is there already is replaced by itself.

        `job` names the history that it belongs to (default: its command). `baseline` gives the run
        that name, which it takes from another run.
        """
        record, summary = run.trace.run, run.summary
        seconds, unit = time_of(summary)
        row = (
            job or record.command or summary.run.name,
            summary.run.name,
            str(Path(run.folder).resolve()) if run.folder else "",
            record.started or "",
            record.status,
            record.source.commit if record.source else None,
            seconds,
            unit,
            summary.verdict.bound_by,
            zlib.compress(record.to_json().encode()),
            zlib.compress(summary.to_json().encode()),
            _parquet(run.steps),
        )
        with self._open() as database:
            (number,) = database.execute(
                "INSERT INTO runs (job, name, folder, started, status, commit_id, seconds, unit,"
                " bound_by, run, summary, steps) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (job, name, started) DO UPDATE SET folder = excluded.folder,"
                " status = excluded.status, seconds = excluded.seconds, unit = excluded.unit,"
                " bound_by = excluded.bound_by, run = excluded.run, summary = excluded.summary,"
                " steps = excluded.steps RETURNING id",
                row,
            ).fetchone()
            if baseline is not None:
                _check_name(baseline)
                database.execute(
                    "INSERT INTO baselines VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET"
                    " run = excluded.run",
                    (baseline, number),
                )
        return int(number)

    def runs(self, job: str | None = None) -> list[PastRun]:
        """The runs of all jobs, or of those whose name contains `job`, oldest first."""
        with self._open() as database:
            rows = database.execute(
                "SELECT id, job, name, folder, started, status, commit_id, seconds, unit, bound_by"
                " FROM runs WHERE instr(job, ?) ORDER BY job, started, id",
                (job or "",),
            ).fetchall()
        return [PastRun(*row) for row in rows]

    def baselines(self) -> dict[str, int]:
        """Name to the number of its run."""
        with self._open() as database:
            return dict(database.execute("SELECT name, run FROM baselines ORDER BY name"))

    def baseline(self, name: str) -> Run:
        """The run of that name. `CommandError` if there is none."""
        known = self.baselines()
        if name not in known:
            raise CommandError(
                f"{BASELINE}{name}: no such baseline in {self.path.parent}; there are"
                f" {', '.join(known) or 'none'}; name one with: ioprof history add RUN"
                f" --store {self.path.parent} --baseline {name}"
            )
        return self.load(known[name])

    def load(self, number: int) -> Run:
        """A run with its summary and steps; its trace has no spans."""
        with self._open() as database:
            row = database.execute(
                "SELECT run, summary, steps FROM runs WHERE id = ?", (number,)
            ).fetchone()
        if row is None:
            raise CommandError(f"run {number}: not in {self.path.parent}")
        try:
            record = RunRecord.from_json(zlib.decompress(row[0]))
            summary = Summary.from_json(zlib.decompress(row[1]))
            steps = pl.read_parquet(io.BytesIO(row[2]))
        except (ValueError, zlib.error, pl.exceptions.PolarsError) as error:
            raise RunError(
                f"{self.path}: run {number} is damaged ({error}); add it again from its folder"
            ) from None
        empty = Trace(record, empty_table(SPAN_COLUMNS), empty_table(FILE_COLUMNS))
        return Run(empty, steps, summary)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction, committed where the block does not raise."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT_S)) as database, database:
                self._prepare(database)
                yield database
        except sqlite3.Error as error:
            raise RunError(f"{self.path}: cannot be used as a store of runs ({error})") from None

    def _prepare(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.execute("BEGIN IMMEDIATE")
            if database.execute("PRAGMA user_version").fetchone() == (0,):
                for statement in _TABLES.split(";\n"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise RunError(
                f"{self.path}: a store of version {version}, and this ioprof knows {_VERSION}"
            )


def time_of(summary: Summary) -> tuple[float | None, str | None]:
    """Seconds per sample of the whole job in steady state, else per step; what they are of."""
    rate, step_s = summary.throughput.steady_samples_per_s, summary.steps.mean_s
    if rate:
        return 1 / rate, "sample"
    return (step_s, "step") if step_s else (None, None)


def _check_name(name: str) -> None:
    if not name.isprintable() or not name.strip() or len(name) > 100:
        raise CommandError(f"--baseline {name!r}: give a name of up to 100 printable characters")


def _parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()
