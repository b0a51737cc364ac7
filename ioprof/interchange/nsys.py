"""Databases of Nsight Systems, as `nsys export --type sqlite` writes them: kernels, copies,
collectives and steps.

Kernels and copies become what the same activities of a Kineto trace become. Steps are NVTX ranges
with a name that ends in `step 7`, `iteration 7` or the like. Calls of the operating system are left
out: the database does not have the bytes of a read.
"""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import polars as pl

from ioprof.clock import Anchor
from ioprof.errors import CommandError
from ioprof.ingest.kineto import Window
from ioprof.ingest.kineto.events import SCHEMA
from ioprof.ingest.kineto.foreign import OPTIMIZER_RANGE, OVERLAPS, WAIT_RANGE
from ioprof.ingest.kineto.plausible import clip_overlaps
from ioprof.interchange.gpu_process import of_process
from ioprof.interchange.imported import Imported

CLOCK: Final = "time since the start of the profile of each process, as Nsight Systems wrote it"
_KERNELS, _COPIES, _SETS, _RANGES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "NVTX_EVENTS",
)
_WAYS: Final = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 10: "PtoP"}
"""Kinds of copies of CUPTI (`CUpti_ActivityMemcpyKind`)."""
_MEMORY: Final = {0: "Pageable", 1: "Pinned", 2: "Device"}
"""Kinds of memory as Nsight Systems numbers them (`ENUM_CUDA_MEM_KIND`)."""
_STEP: Final = re.compile(
    r"(?i)(?:^|[^a-z])(?:profilerstep|train_?step|step|iteration|iter|batch)[ #:_=]*(\d{1,12})$"
)
_MAGIC: Final = b"SQLite format 3\0"
_MOST_ROWS: Final = 50_000_000
_BASE_NS: Final = 1 << 60
_NAME_CHARS: Final = 800


def read_nsys(paths: Sequence[Path]) -> list[Imported]:
    """The databases of one job: each process with activities of a GPU is a rank, in the order of
    files and process ids.
    """
    found: list[Imported] = []
    for path in paths:
        try:
            with closing(_open(path)) as database:
                own = list(_Database(path, database).processes(len(found)))
                if not own:
                    raise CommandError(f"{path}: has no kernel or copy with possible values")
                found += own
        except (
            sqlite3.Error,
            UnicodeError,
            OverflowError,
        ) as error:  # a damaged schema may be no text
            why = " ".join(str(error).split())[:200]
            raise CommandError(
                f"{path}: not a database of Nsight Systems, or damaged ({why})"
            ) from None
    return found


def _open(path: Path) -> sqlite3.Connection:
    """The database, read-only. `CommandError` for a report that was not exported.

    Views and triggers of an unknown file are not run: only tables are read, see `_Database`.
    """
    with path.open("rb") as file:
        is_database = file.read(len(_MAGIC)) == _MAGIC
    if not is_database:
        raise CommandError(
            f"{path}: not a database; make one of a report of Nsight Systems with:"
            " nsys export --type sqlite REPORT.nsys-rep"
        )
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    database.execute("PRAGMA trusted_schema=OFF")
    database.execute("PRAGMA cell_size_check=ON")
    database.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
    return database


class _Database:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path, self._database = path, database
        self._damage: Counter[str] = Counter()
        found = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        self._tables = {str(name) for (name,) in found}
        if not self._tables & {_KERNELS, _COPIES}:
            raise CommandError(
                f"{path}: has no kernels or copies; profile with: nsys profile --trace=cuda,nvtx"
            )
        self._strings = dict(self._rows("StringIds", "id", "value"))

    def processes(self, first_rank: int) -> Iterator[Imported]:
        """One for each process that used a GPU."""
        wall = pl.concat([self._kernels(), self._copies(), self._sets()])
        ranges, device = self._ranges(), self._device()
        for place, (pid,) in enumerate(wall.select("process").unique().sort("process").rows()):
            own, num_cut = clip_overlaps(wall.filter(pl.col("process").eq_missing(pid)))
            damage = self._damage if not place else Counter[str]()
            damage[OVERLAPS] += num_cut
            window = Window(
                self._path,
                pid=pid,
                rank=first_rank + place,
                number=0,
                anchors=[Anchor(0, 0, 0)],
                damage=damage,
            )
            of_pid = ranges.filter(pl.col("pid").eq_missing(pid))
            yield of_process(window, own.drop("process"), of_pid, "Nsight Systems", device)

    def _device(self) -> str | None:
        """The name of the first GPU."""
        names = (name for (name,) in self._rows("TARGET_INFO_GPU", "name") if isinstance(name, str))
        return next(names, None)

    def _rows(
        self, table: str, *columns: str, optional: Sequence[str] = ()
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, without those that lack one of the columns; nothing where the table or a
        needed column is not there.
        """
        if table not in self._tables:
            return
        known = {row[1] for row in self._database.execute(f'PRAGMA table_info("{table}")')}
        if not set(columns) <= known:
            self._damage[f"the table {table} has not the columns that are needed"] += 1
            return
        wanted = [
            *(f'"{name}"' for name in columns),
            *(f'"{name}"' if name in known else "NULL" for name in optional),
        ]
        for place, row in enumerate(
            self._database.execute(f'SELECT {", ".join(wanted)} FROM "{table}"')  # noqa: S608
        ):
            if place >= _MOST_ROWS:
                raise CommandError(
                    f"{self._path}: {table} has more than {_MOST_ROWS:,} rows; export a part of the"
                    " profile"
                )
            if None in row[: len(columns)]:
                self._damage["a row without a required value"] += 1
                continue
            yield row

    def _kernels(self) -> pl.DataFrame:
        needed = ("start", "end", "deviceId", "streamId", "shortName")
        rows = (
            (
                start,
                end,
                "kernel",
                self._strings.get(demangled) or self._strings.get(name, "kernel"),
                device,
                stream,
                None,
                process,
            )
            for start, end, device, stream, name, demangled, process in self._rows(
                _KERNELS, *needed, optional=("demangledName", "globalPid")
            )
        )
        return self._wall(rows)

    def _copies(self) -> pl.DataFrame:
        needed = ("start", "end", "deviceId", "streamId", "bytes", "copyKind")
        rows = (
            (
                start,
                end,
                "gpu_memcpy",
                _copy_name(kind, source, target),
                device,
                stream,
                size,
                process,
            )
            for start, end, device, stream, size, kind, source, target, process in self._rows(
                _COPIES, *needed, optional=("srcKind", "dstKind", "globalPid")
            )
        )
        return self._wall(rows)

    def _sets(self) -> pl.DataFrame:
        needed = ("start", "end", "deviceId", "streamId", "bytes")
        rows = (
            (start, end, "gpu_memset", "Memset", device, stream, size, process)
            for start, end, device, stream, size, process in self._rows(
                _SETS, *needed, optional=("globalPid",)
            )
        )
        return self._wall(rows)

    def _wall(self, rows: Iterator[tuple[Any, ...]]) -> pl.DataFrame:
        """Activities as `spans_of` takes them, and the `process`."""
        kept = []
        for start, end, category, name, device, stream, size, process in rows:
            numbers = (start, end, device, stream, 0 if size is None else size)
            if (
                not all(isinstance(each, int) and 0 <= each < 1 << 61 for each in numbers)
                or end < start
            ):
                self._damage["an activity with impossible values"] += 1
                continue
            # names of Kineto's files are as they are in JSON
            escaped = json.dumps(str(name)[:_NAME_CHARS])[1:-1]
            kept.append(
                (
                    category,
                    escaped,
                    device,
                    stream,
                    size,
                    start + _BASE_NS,
                    end - start,
                    _pid(process),
                )
            )
        columns = ("cat", "name", "device", "stream", "bytes", "wall_ns", "dur_ns", "process")
        types = {"cat": pl.String(), "name": pl.String()}
        table = pl.DataFrame(
            kept, schema={each: types.get(each, pl.Int64()) for each in columns}, orient="row"
        )
        missing = [
            pl.lit(None).cast(SCHEMA[each]).alias(each)
            for each in ("correlation", "collective", "elements", "dtype", "group")
        ]
        return table.with_columns(*missing, launch_ns=pl.lit(None, pl.Int64)).with_columns(
            pl.col("cat", "name").cast(pl.Categorical)
        )

    def _ranges(self) -> pl.DataFrame:
        """The NVTX ranges that mark steps, calls of optimizers and waits for batches, as
        `of_process` takes them. Those of `emit_nvtx` end in `, op_id = 7`.
        """
        rows = []
        for start, end, text, number, process in self._rows(
            _RANGES, "start", optional=("end", "text", "textId", "globalTid")
        ):
            name = text if isinstance(text, str) else self._strings.get(number)
            if not isinstance(name, str):
                continue
            found = _STEP.search(name[-_NAME_CHARS:])
            if not found and not name.startswith((WAIT_RANGE, OPTIMIZER_RANGE)):
                continue
            if isinstance(start, int) and isinstance(end, int) and 0 <= start <= end < 1 << 61:
                step = int(found[1]) if found else None
                rows.append(
                    (
                        name[:_NAME_CHARS],
                        start + _BASE_NS,
                        end + _BASE_NS,
                        _pid(process),
                        _tid(process),
                        step,
                    )
                )
        schema = {
            "name": pl.String(),
            "start_ns": pl.Int64(),
            "end_ns": pl.Int64(),
            "pid": pl.Int64(),
            "tid": pl.Int64(),
            "step": pl.Int64(),
        }
        return pl.DataFrame(rows, schema=schema, orient="row").sort("start_ns")


def _copy_name(kind: Any, source: Any, target: Any) -> str:
    """As Kineto names a copy: `Memcpy HtoD (Pageable -> Device)`."""
    way = _WAYS.get(kind, "unknown")
    return f"Memcpy {way} ({_MEMORY.get(source, 'Unknown')} -> {_MEMORY.get(target, 'Unknown')})"


def _pid(number: Any) -> int | None:
    """Of a globalPid or globalTid: bits 24 to 47 are the process (Nsight Systems' documentation of
    its SQLite schema).
    """
    return (number >> 24) & 0xFFFFFF if isinstance(number, int) and number > 0 else None


def _tid(number: Any) -> int | None:
    return number & 0xFFFFFF if isinstance(number, int) and number > 0 else None
