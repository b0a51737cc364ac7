"""Reads the stack samples of a spool folder into a table; `ioprof.format.stack_format` specifies
the file.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from ioprof.format.run_record import Damage
from ioprof.format.schema import HOLDER, STACK_COLUMNS
from ioprof.format.stack_format import (
    CODE_RECORD,
    HOLDER_RECORD,
    NOT_READ,
    OWN_PACKAGE,
    SAMPLES_RECORD,
    STACK_FORMAT,
    STACK_RECORD,
    TEXT_RECORD,
)
from ioprof.format.trace import empty_table, table_schema
from ioprof.ingest.appended_files import read_appended
from ioprof.ingest.rings import Process
from ioprof.ingest.untrusted_values import lines_of

_RECORD: Final = struct.Struct("<II")
_CODE: Final = struct.Struct("<IiIIII")
_FRAME: Final = struct.Struct("<Ii")
_SAMPLES: Final = np.dtype([("time_ns", "<u8"), ("target", "<u4"), ("stack", "<u4")])
_HOLDERS: Final = np.dtype(
    [("time_ns", "<u8"), ("target", "<u4"), ("stack", "<u4"), ("thread", "<u4"), ("unused", "<u4")]
)
THREAD_NAMES: Final = "thread_names"
"""Key of the facts that `ioprof.instrument.hooks.thread_names` records."""
_ENCODINGS: Final = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_LATEST_NS: Final = 1 << 62
_BEFORE_THREADS: Final = "ioprof.spool.stacks/1"
"""In which all targets are main threads."""


def read_stacks(spool: Path, processes: list[Process]) -> tuple[pl.DataFrame, list[Damage]]:
    """All samples in the folder, with columns of `ioprof.format.schema.STACK_COLUMNS` and
    CLOCK_MONOTONIC times, and what is damaged.

    Ranks and roles come from `processes`. Never raises for invalid contents.
    """
    facts = {(process.host, process.pid): process.facts() for process in processes}
    tables, damaged = [empty_table(STACK_COLUMNS)], []
    names: dict[tuple[str, int, int], str] | None = None
    for path in sorted(spool.glob("stacks-*.bin")):
        file = _File()
        try:
            found = read_appended(path)
            file.read(found.state + found.rest)
            if found.is_damaged:
                file.damage = "what names the samples that were kept is damaged"
        except OSError as error:
            file.damage = f"cannot be read: {error.strerror}"
        except (ValueError, KeyError, TypeError, struct.error, RecursionError):
            file.damage = "stack samples are invalid from some place on"
        if file.damage:
            damaged.append(Damage(file=path.name, what=file.damage))
        known = {pid: found for (host, pid), found in facts.items() if host == file.host}
        who = {pid: (found.rank, found.role or "other") for pid, found in known.items()}
        tables.append(_table(file, who))
        if file.holders:
            names = _thread_names(spool) if names is None else names
            tables.append(_holders(file, who, names))
    return pl.concat(tables), damaged


def fold_stacks(_header: bytes, state: bytes, part: bytes, _folder: bytes) -> tuple[bytes, int]:
    """The records that later samples may refer to: those of all code and stacks, and of one target
    for each thread, since the kernel gives a number again only when its thread has ended
    (`appended_files.Fold`).
    """
    data, place, targets = state + part, 0, dict[tuple[int, int], bytes]()
    texts, others = dict[bytes, None](), list[bytes]()
    while place + _RECORD.size <= len(data):
        kind, length = _RECORD.unpack_from(data, place)
        end = place + _RECORD.size + length
        if end > len(data):
            break
        record, place = data[place:end], end
        if kind == TEXT_RECORD:
            if (thread := _thread_of_target(record[_RECORD.size :])) is None:
                texts[record] = None
            else:
                targets[thread] = record
        elif kind not in (SAMPLES_RECORD, HOLDER_RECORD):
            others.append(record)
    return b"".join([*texts, *targets.values(), *others]), max(0, place - len(state))


def _thread_of_target(data: bytes) -> tuple[int, int] | None:
    """Its process and thread."""
    try:
        value = json.loads(data)
        return (
            (int(value["pid"]), int(value.get("tid", value["pid"]))) if "target" in value else None
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


@dataclass
class _Code:
    filename: str
    function: str
    lines: list[int]
    """By instruction."""

    def frame(self, instruction: int) -> str:
        """A frame that executes, or is about to execute, this instruction; -1: the first."""
        line = self.lines[min(max(instruction, 0), len(self.lines) - 1)] if self.lines else 0
        return f"{self.filename}:{line}:{self.function}"


@dataclass
class _File:
    host: str = "?"
    package: str = ""
    damage: str = ""
    pids: dict[int, int] = field(default_factory=dict)
    """By target."""
    tids: dict[int, int] = field(default_factory=dict)
    """The same of the threads."""
    codes: dict[int, _Code] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    samples: list[np.ndarray[Any, np.dtype[Any]]] = field(default_factory=list)
    holders: list[np.ndarray[Any, np.dtype[Any]]] = field(default_factory=list)
    """Samples of threads that held the interpreter's lock while a target waited for it."""

    def read(self, data: bytes) -> None:
        place = 0
        while place + _RECORD.size <= len(data):
            kind, length = _RECORD.unpack_from(data, place)
            place += _RECORD.size
            if place + length > len(data):
                break  # a launcher that was killed while it wrote
            self._add(kind, data[place : place + length])
            place += length
        if place != len(data):
            self.damage = "truncated: the last second of stack samples is missing"

    def _add(self, kind: int, data: bytes) -> None:
        if kind == TEXT_RECORD:
            self._add_text(json.loads(data))
        elif kind == CODE_RECORD:
            self._add_code(data)
        elif kind == STACK_RECORD:
            frames = [
                self.codes[code].frame(instruction)
                for code, instruction in _FRAME.iter_unpack(data[4:])
            ]
            self.stacks[int.from_bytes(data[:4], "little")] = "\n".join(reversed(frames))
        elif kind == SAMPLES_RECORD:
            self.samples.append(np.frombuffer(data, _SAMPLES))
        elif kind == HOLDER_RECORD:
            self.holders.append(np.frombuffer(data, _HOLDERS))
        else:
            raise ValueError(kind)

    def _add_text(self, value: Mapping[str, Any]) -> None:
        if "target" in value:
            target, pid, tid = (
                int(value["target"]),
                int(value["pid"]),
                int(value.get("tid", value["pid"])),
            )
            if not (0 <= target < 1 << 32 and 0 <= pid < 1 << 31 and 0 <= tid < 1 << 31):
                raise ValueError(value)
            self.pids[target], self.tids[target] = pid, tid
        elif "format" in value:
            if value["format"] not in (STACK_FORMAT, _BEFORE_THREADS):
                raise ValueError(value["format"])
            self.host, self.package = str(value["host"]), str(value["package"])

    def _add_code(self, data: bytes) -> None:
        number, first_line, name_width, name_bytes, function_width, function_bytes = (
            _CODE.unpack_from(data)
        )
        names = data[_CODE.size :]
        filename = _text(names[:name_bytes], name_width)
        function = _text(names[name_bytes : name_bytes + function_bytes], function_width)
        if self.package and filename.startswith(f"{self.package}/"):
            filename = OWN_PACKAGE + filename[len(self.package) :]
        table = names[name_bytes + function_bytes :]
        self.codes[number] = _Code(filename, function, instruction_lines(table, first_line))


def _text(data: bytes, width: int) -> str:
    """A string as CPython keeps it, on one line and without what no table can hold."""
    text = data.decode(_ENCODINGS[width], "replace")
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    )


def _table(file: _File, who: dict[int, tuple[int | None, str]]) -> pl.DataFrame:
    samples = np.concatenate([np.empty(0, _SAMPLES), *file.samples])
    stacks = np.isin(samples["stack"], np.fromiter(file.stacks, np.int64, len(file.stacks)))
    targets = np.isin(samples["target"], np.fromiter(file.pids, np.int64, len(file.pids)))
    samples = samples[stacks & targets & (samples["time_ns"] < _LATEST_NS)]
    schema = table_schema(STACK_COLUMNS)
    known = pl.DataFrame(
        [
            (
                target,
                file.host,
                who.get(pid, (None, ""))[0],
                pid,
                file.tids[target],
                who.get(pid, (None, "other"))[1],
            )
            for target, pid in file.pids.items()
        ],
        schema={
            "target": pl.UInt32(),
            **{name: schema[name] for name in ("host", "rank", "pid", "tid", "role")},
        },
        orient="row",
    )
    texts = pl.DataFrame(
        {"number": list(file.stacks), "stack": list(file.stacks.values())},
        schema={"number": pl.UInt32(), "stack": schema["stack"]},
    )
    rows = pl.DataFrame(
        {
            "time_ns": samples["time_ns"].astype(np.int64),
            "target": samples["target"],
            "number": samples["stack"],
        }
    )
    joined = rows.join(known, on="target", how="inner", maintain_order="left").join(
        texts, on="number", how="inner", maintain_order="left"
    )
    return joined.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def _holders(
    file: _File, who: dict[int, tuple[int | None, str]], names: Mapping[tuple[str, int, int], str]
) -> pl.DataFrame:
    """The samples of threads that held the lock; each stack begins with a frame for the thread."""
    rows = []
    for time_ns, target, stack, thread, _ in np.concatenate(file.holders).tolist():
        if target not in file.pids or time_ns >= _LATEST_NS or thread >= 1 << 31:
            continue
        pid = file.pids[target]
        rank, role = who.get(pid, (None, "other"))
        name = names.get((file.host, pid, thread)) or f"thread {thread}"
        frames = file.stacks.get(stack, NOT_READ)
        rows.append(
            (
                time_ns,
                file.host,
                rank,
                pid,
                thread,
                role,
                f"{HOLDER}:0:{name.replace(':', ' ')}\n{frames}",
            )
        )
    return pl.DataFrame(rows, schema=table_schema(STACK_COLUMNS), orient="row")


def _thread_names(spool: Path) -> dict[tuple[str, int, int], str]:
    """By host, process and the kernel's number of the thread."""
    found: dict[tuple[str, int, int], str] = {}
    for path in sorted(spool.glob("facts-*.jsonl")):
        for line in lines_of(path):
            if THREAD_NAMES.encode() not in line:
                continue
            try:
                fact = json.loads(line)
                for number, name in fact[THREAD_NAMES].items():
                    found[str(fact["host"]), int(fact["pid"]), int(number)] = "".join(
                        filter(str.isprintable, str(name))
                    )
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # its process was killed while it wrote
    return found


# -------------------------------------------------------------------------------------- line tables

_HEAD: Final = 0x80
"""A byte with this bit begins an entry."""
_NO_COLUMNS, _LONG, _NO_LOCATION = 13, 14, 15
_LINE_DELTA: Final = np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0])
"""Lines from the entry before, by the entry's code; those with a number add that."""
_MOST_BYTES: Final = 6
"""Of a number: 36 bits, more than any line has."""


def instruction_lines(table: bytes, first_line: int) -> list[int]:
    """The line of each instruction of a code object, by its line table; one without a line has that
    of the one before it.

    CPython's Objects/locations.md: an entry begins with a byte whose bit 7 is set; bits 3 to 6 say
    what follows, bits 0 to 2 for how many instructions it is, less one. `CodeType.co_positions`
    gives the same within the process. A job that imports torch has some 300,000 instructions.
    """
    data = np.frombuffer(table, np.uint8)
    heads = np.flatnonzero(data & _HEAD)
    codes = data[heads] >> 3 & 15
    next_bytes = np.append(data, np.uint8(_HEAD))[heads + 1].astype(np.int64)
    has_number = ((codes == _NO_COLUMNS) | (codes == _LONG)) & (next_bytes < _HEAD)
    halves = next_bytes >> 1
    deltas = np.where(has_number, np.where(next_bytes & 1, -halves, halves), _LINE_DELTA[codes])
    # of more than one byte
    for place in np.flatnonzero(has_number & (next_bytes & 64 != 0)).tolist():
        start = heads[place] + 1
        deltas[place] = _signed_varint(table[start : start + _MOST_BYTES])
    lines = first_line + np.cumsum(deltas)
    located = np.maximum.accumulate(np.where(codes == _NO_LOCATION, -1, np.arange(len(heads))))
    shown = np.where(located < 0, first_line, lines[located])
    return np.repeat(shown, (data[heads] & 7) + 1).tolist()


def _signed_varint(data: bytes) -> int:
    """The number that the bytes begin with: six bits per byte, lowest first, with its sign in its
    lowest bit.
    """
    value, shift = 0, 0
    for byte in data:
        if byte & _HEAD:
            break  # of the next entry
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1
