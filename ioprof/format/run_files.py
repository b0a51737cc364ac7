"""The files of a run folder: run.json has the checksums of the others and of itself, and they are
compared before a number is made.

A file that was recorded (`TABLES`) and is not as it was written ends the reading with one line.
What the analysis wrote (`DERIVED`) is made again of those. The checksums are CRC-32 as ISA-L
computes it, at the speed of memory: they tell damage, not forgery; what a stranger may have made is
bounded before it is read (`parquet_footer`). report.html has none, since nothing is read from it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ioprof.errors import RunError
from ioprof.files import open_regular_file, read_regular_file, write_atomically
from ioprof.format.inflate import crc32
from ioprof.format.parquet_footer import num_rows
from ioprof.format.run_record import RunRecord, StoredFile
from ioprof.format.run_record.run_json import RUN_FILE

SPANS: Final = "spans.parquet"
FILES: Final = "files.parquet"
COUNTERS: Final = "counters.parquet"
STACKS: Final = "stacks.parquet"
"""Runs without samples of stacks, and those of versions before it was written, have none."""
BLOCKS: Final = "blocks.parquet"
"""Runs in which no thread was blocked, and those of versions before it was written, have none."""
STEPS: Final = "steps.parquet"
SUMMARY: Final = "summary.json"
TABLES: Final = (SPANS, FILES, COUNTERS, STACKS, BLOCKS)
OPTIONAL: Final = (STACKS, BLOCKS)
DERIVED: Final = (STEPS, SUMMARY)
_PIECE_BYTES: Final = 1 << 20
_ROW_BYTES: Final = 32
"""In memory a row of any table takes more. Spans are read in pieces; the other tables are loaded as
a whole."""


def stored_file(path: Path) -> StoredFile:
    """Size and checksum of a file as it is now. OSError as of `open_regular_file`."""
    checksum, size, piece = 0, 0, bytearray(_PIECE_BYTES)
    with open_regular_file(path) as file:
        while count := file.readinto(piece):
            checksum = crc32(memoryview(piece)[:count], checksum)
            size += count
    return StoredFile(bytes=size, crc32=f"{checksum:08x}")


def read_run(folder: Path) -> RunRecord:
    """run.json of a folder; `RunError` says what is wrong with it and what to type."""
    path = folder / RUN_FILE
    if not folder.is_dir():
        raise RunError(f"{folder}: no such run folder{_instead_of_file(folder)}")
    try:
        run = RunRecord.from_json(read_regular_file(path))
    except FileNotFoundError:
        raise RunError(
            f"{folder}: not an ioprof run (no run.json){_instead_of_folder(folder)}"
        ) from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise RunError(
            f"{path}: {error}; record the run again with: ioprof run --out FOLDER"
        ) from None
    if wrong := next((problem for problem in run.problems if problem.essential), None):
        raise RunError(
            f"{path}: {wrong}; the file is not as ioprof wrote it: record the run again with:"
            " ioprof run --out FOLDER"
        )
    return run


_RECORD: Final = "record one with: ioprof record --out RUN -- COMMAND"


def _instead_of_file(path: Path) -> str:
    """What to type where `path` is no folder, as the end of a sentence."""
    if (path.parent / RUN_FILE).is_file():
        return f"; that file is of a run: ioprof report {path.parent}"
    if path.suffix == ".py" and path.is_file():
        return f"; to record a script: ioprof record -- python {path}"
    return f"; {_RECORD}"


def _instead_of_folder(folder: Path) -> str:
    """That where it is a folder without a run."""
    try:
        runs = sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))
    except OSError:
        runs = []
    return f"; a run in it: ioprof report {runs[-1]}" if runs else f"; {_RECORD}"


def write_run(folder: Path, run: RunRecord, changed: Iterable[str] = ()) -> None:
    """Write run.json anew, whole or not at all, with checksums of the files in `changed`; of the
    others it keeps those that it has.

    It is called after these files were written. A file whose checksum is noted is not written again
    without `Trace.save`.
    """
    files = {**read_run(folder).files, **{name: stored_file(folder / name) for name in changed}}
    write_atomically(folder / RUN_FILE, run.to_checked_json(files) + "\n")


def check_files(folder: Path, known: Mapping[str, StoredFile]) -> tuple[str, ...]:
    """Compare the files of a run with what run.json says of them; those in `DERIVED` that are
    damaged.

    `RunError` names the tables that are missing or damaged, and those that are whole.
    """
    wrong = {
        name: what
        for name in _tables(folder, known)
        if (what := _fault(folder / name, known.get(name)))
    }
    if not wrong:
        return tuple(
            name
            for name in DERIVED
            if name in known and (folder / name).exists() and not is_whole(folder, name, known)
        )
    (name, what), *others = wrong.items()
    also = "".join(f"; {other}: {fault}" for other, fault in others)
    whole = [each for each in known if each in TABLES and each not in wrong]
    left = f"; {', '.join(whole)} {'are' if len(whole) > 1 else 'is'} whole" if whole else ""
    missing = "missing; the run folder was not copied whole"
    raise RunError(
        f"{folder / name}: {missing if what == 'missing' else what}{also}{left}; copy the run again"
        " from where it is whole"
    )


def damage_text(name: str) -> str:
    """What it means that a file in `Kept.damaged` is not as it was written."""
    if name == RUN_FILE:
        return (
            "run.json is not as ioprof wrote it, by damage or by hand; what it says of the job may"
            " be wrong"
        )
    return f"{name} is damaged; it was not used, and what it says was computed anew"


def is_whole(folder: Path, name: str, known: Mapping[str, StoredFile]) -> bool:
    """Whether a file is there as it was written."""
    try:
        return name in known and stored_file(folder / name) == known[name]
    except OSError:
        return False


def _tables(folder: Path, known: Mapping[str, StoredFile]) -> Iterator[str]:
    """The tables that the run has, or should have; those that are not its own are left alone."""
    yield from (name for name in TABLES if name not in OPTIONAL or has_table(folder, name, known))


def has_table(folder: Path, name: str, known: Mapping[str, StoredFile]) -> bool:
    """Whether a table that a run need not have belongs to it, as far as it says what does."""
    return name in known if known else (folder / name).exists()


def _fault(path: Path, known: StoredFile | None) -> str | None:
    """What is wrong with a table, as seen without loading it."""
    try:
        if known is not None:
            found = stored_file(path)
            if found.bytes != known.bytes:
                return (
                    f"damaged (it has {found.bytes:,} bytes, and had {known.bytes or 0:,} when it"
                    " was written)"
                )
            if found.crc32 != known.crc32:
                return (
                    "damaged (its bytes are not those that were written: their checksum differs"
                    " from that in run.json)"
                )
        rows, memory_bytes = (
            num_rows(path),
            os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        )
        if path.name != SPANS and rows * _ROW_BYTES > memory_bytes:
            return (
                f"cannot be loaded (its {rows:,} rows take more than the {memory_bytes >> 30} GiB"
                " of memory of this machine)"
            )
    except FileNotFoundError:
        return "missing"
    except ValueError as error:
        return f"damaged ({error})"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return None
