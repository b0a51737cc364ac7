"""Recordings of jobs as the jobs left them, in `tests/recordings/`, replayed through ingest and
analysis.

A recording is a spool and what was known of the run when it ended. `make recordings` makes all anew
(`make_recordings.py`). Those of one subject share an archive, `<subject>.tar.xz`, since they have
most of their strings in common: the files of one kind stand together, and times of capture files
are differences, which compress to a third.

Long ones are thinned: of the time before a second ahead of the first step, which is Python's and
torch's start, accesses to files that took less than `SHORT_NS` are left out, and nine of ten stack
samples. Paths of the machine that recorded them are replaced.
"""

import hashlib
import io
import json
import lzma
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from repository import ROOT

from ioprof.format.layout import CHUNK_HEADER_DTYPE, RECORD_DTYPE
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import KINDS, RUN_SCHEMA, SOURCES
from ioprof.format.stack_format import (
    CODE_RECORD,
    HOLDER_RECORD,
    SAMPLES_RECORD,
    STACK_FORMAT,
    STACK_RECORD,
)
from ioprof.format.wire_format import (
    CHUNK_BYTES,
    CHUNK_HEADER_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    SLOTS,
)
from ioprof.ingest import read_spool
from ioprof.report.run import Run

RECORDINGS: Final = ROOT / "tests" / "recordings"
RECORD: Final = "recorded.json"
"""In each recording: what was known of the run, the storage of its files by folder, and what the
program printed."""
_ABOUT: Final = RECORDINGS / "about.json"
SHORT_NS: Final = 5_000_000
_BEFORE_NS: Final = 1_000_000_000
_SAMPLES: Final = np.dtype([("time_ns", "<u8"), ("target", "<u4"), ("stack", "<u4")])
_HOLDERS: Final = np.dtype([*_SAMPLES.descr, ("thread", "<u4"), ("unused", "<u4")])
_FILTERS: Final = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 64 << 20}
]
_NEUTRAL: Final = {str(ROOT): "/srv/", sys.base_prefix: "/usr/local/"}
"""Folders of this machine, and how the names begin that replace them, of the same length."""

Files = dict[str, bytes]
"""The files of a spool by name."""


def replayed(subject: str, name: str, folder: Path) -> tuple[Run, str]:
    """The run of a recording, and what its program printed. Its spool is unpacked into `folder`,
    which is new."""
    files = recording(subject, name)
    return replay(files, folder)


def replay(files: Mapping[str, bytes], folder: Path) -> tuple[Run, str]:
    """The same of the files of a recording."""
    folder.mkdir()
    for file, content in files.items():
        if file != RECORD:
            (folder / file).write_bytes(content)
    known = json.loads(files[RECORD])
    trace = read_spool(folder, RunRecord.of(known["run"]))
    placed = _with_storage(trace.files, known["folders"])
    return Run.of(trace.with_facts(files=placed)), known["output"]


def _with_storage(files: pl.DataFrame, folders: list[list[str | None]]) -> pl.DataFrame:
    """The table of files with file system and device, which ingest finds on the machine of the job
    alone."""
    known = pl.DataFrame(
        folders, dict.fromkeys(("folder", "file_system", "device"), pl.String), orient="row"
    )
    placed = files.with_columns(folder=pl.col("path").str.replace("/[^/]*$", "")).drop(
        "file_system", "device"
    )
    joined = placed.join(known, on="folder", how="left", maintain_order="left")
    return joined.select(files.columns).cast(dict(files.schema))


def recording(subject: str, name: str) -> Files:
    """The files of a recording."""
    return _archive(RECORDINGS / f"{subject}.tar.xz")[name]


def slug(name: str) -> str:
    """The name of a case as that of a recording."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:90]


def subjects() -> list[str]:
    """Those that have recordings."""
    return sorted(path.name.partition(".")[0] for path in RECORDINGS.glob("*.tar.xz"))


def formats() -> dict[str, Any]:
    """What the recordings depend on, of the recorder and ingest of today."""
    return {
        "capture": FORMAT_VERSION,
        "stacks": STACK_FORMAT,
        "run": RUN_SCHEMA,
        "kinds": list(KINDS),
        "sources": list(SOURCES),
    }


def recorded_formats() -> dict[str, Any]:
    """The same of the recordings."""
    found: dict[str, Any] = json.loads(_ABOUT.read_text())["formats"]
    return found


def recorder_has_changed() -> bool:
    """Whether what runs in a job's processes, or beside them, is another than that which made the
    recordings."""
    return not _ABOUT.exists() or json.loads(_ABOUT.read_text())["recorder"] != _recorder()


def write_about() -> None:
    """Note which recorder made the recordings."""
    _ABOUT.write_text(json.dumps({"formats": formats(), "recorder": _recorder()}, indent=1) + "\n")


def _recorder() -> str:
    """A digest of its sources."""
    digest = hashlib.sha256()
    for folder in ("instrument", "native", "stacks"):
        for path in sorted((ROOT / "ioprof" / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h", ".S"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def names(subject: str) -> list[str]:
    """Of the recordings of a subject."""
    path = RECORDINGS / f"{subject}.tar.xz"
    return sorted(_archive(path)) if path.exists() else []


@lru_cache(maxsize=2)
def _archive(path: Path) -> dict[str, Files]:
    found: dict[str, Files] = {}
    data = lzma.decompress(path.read_bytes(), lzma.FORMAT_XZ)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            kind, name, own = member.name.split("/")
            found.setdefault(name, {})[own] = (
                _with_times(file.read()) if kind == "ring" else file.read()
            )
    return found


def write_archive(subject: str, recordings: Mapping[str, Files]) -> int:
    """Store the recordings of a subject; returns how many bytes that takes."""
    entries = [
        (path.suffix.removeprefix(".") or "none", name, path.name, content)
        for name, files in recordings.items()
        for path, content in ((Path(each), neutral(content)) for each, content in files.items())
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for kind, name, file, content in sorted(entries):
            stored = _with_differences(content) if kind == "ring" else content
            member = tarfile.TarInfo(f"{kind}/{name}/{file}")
            member.size = len(stored)
            archive.addfile(member, io.BytesIO(stored))
    RECORDINGS.mkdir(exist_ok=True)
    path = RECORDINGS / f"{subject}.tar.xz"
    path.write_bytes(lzma.compress(buffer.getvalue(), lzma.FORMAT_XZ, filters=_FILTERS))
    return path.stat().st_size


def neutral(content: bytes) -> bytes:
    """The same without the folders of this machine."""
    for folder, begin in _NEUTRAL.items():
        content = content.replace(
            folder.encode(), begin.ljust(len(folder), "x").encode()[: len(folder)]
        )
    return content


def spool_files(spool: Path) -> Files:
    """The files of a spool that ingest reads."""
    return {path.name: path.read_bytes() for path in sorted(spool.iterdir()) if path.is_file()}


# Capture files: chunks of records (native/FORMAT.md).


def _chunks(ring: bytearray) -> Iterator[tuple[Any, np.ndarray[Any, Any]]]:
    """The header of each chunk, and its complete slots; both can be written to."""
    for place in range(HEADER_BYTES, len(ring) - CHUNK_BYTES + 1, CHUNK_BYTES):
        header = np.frombuffer(ring, CHUNK_HEADER_DTYPE, 1, place)
        count = min(int(header["state"][0]) & 0xFFFFFFFF, SLOTS)
        yield header, np.frombuffer(ring, RECORD_DTYPE, count, place + CHUNK_HEADER_BYTES)


def _are_spans(slots: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which slots are spans: the others are strings, their bytes, and owner records."""
    spans = slots["kind"] != 0
    place = 0
    while place < len(slots):
        slot = slots[place]
        if slot["kind"] == 0 and slot["file"] >= 0 and slot["bytes"] >= 0:
            length = -(-int(slot["bytes"]) // RECORD_DTYPE.itemsize)
            spans[place + 1 : place + 1 + length] = False
            place += length
        place += 1
    return spans


def _with_differences(ring: bytes) -> bytes:
    """Starts of spans as differences from those before, and ends as durations: most of their bytes
    are zero then."""
    changed = bytearray(ring)
    for _, slots in _chunks(changed):
        where = np.flatnonzero(_are_spans(slots))
        starts = slots["start_ns"][where]
        slots["end_ns"][where] -= starts
        slots["start_ns"][where] = np.diff(starts, prepend=0)
    return bytes(changed)


def _with_times(ring: bytes) -> bytes:
    """The capture file of what `_with_differences` made."""
    changed = bytearray(ring)
    for _, slots in _chunks(changed):
        where = np.flatnonzero(_are_spans(slots))
        starts = np.cumsum(slots["start_ns"][where])
        slots["start_ns"][where] = starts
        slots["end_ns"][where] += starts
    return bytes(changed)


def thinned(files: Files) -> Files:
    """The recording without most of what happened before its first step."""
    rings = {name: bytearray(content) for name, content in files.items() if name.endswith(".ring")}
    first = np.concatenate(
        [_starts(slots, "step") for ring in rings.values() for _, slots in _chunks(ring)]
    )
    if not len(first):
        return files
    until_ns = int(first.min()) - _BEFORE_NS
    for ring in rings.values():
        _thin_ring(ring, until_ns)
    stacks = {
        name: _thin_stacks(content, until_ns)
        for name, content in files.items()
        if name.startswith("stacks-")
    }
    return files | {name: bytes(ring) for name, ring in rings.items()} | stacks


def _starts(slots: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    starts: np.ndarray[Any, Any] = slots["start_ns"][
        _are_spans(slots) & (slots["kind"] == _number(kind))
    ]
    return starts


def _number(kind: str) -> int:
    return KINDS.index(kind) + 1


def _thin_ring(ring: bytearray, until_ns: int) -> None:
    """Without short accesses before that time, and without the strings that nothing else needs."""
    used: set[int] = set()
    kept = []
    for header, slots in _chunks(ring):
        spans = _are_spans(slots)
        access = spans & np.isin(slots["kind"], [_number("open"), _number("read")])
        left_out = (
            access & (slots["end_ns"] < until_ns) & (slots["end_ns"] - slots["start_ns"] < SHORT_NS)
        )
        kept.append((header, slots, spans, ~left_out))
        used |= set(slots["file"][spans & ~left_out].tolist()) | set(
            slots["name"][spans & ~left_out].tolist()
        )
    for header, slots, spans, keep in kept:
        for place in np.flatnonzero(
            ~spans & (slots["kind"] == 0) & (slots["file"] >= 0) & (slots["start_ns"] == 0)
        ):
            if (
                keep[place]
                and not spans[place]
                and int(slots["file"][place]) not in used
                and slots["bytes"][place] >= 0
            ):
                length = -(-int(slots["bytes"][place]) // RECORD_DTYPE.itemsize)
                keep[place : place + 1 + length] = False
        left = slots[keep].copy()
        slots[:] = np.zeros(1, RECORD_DTYPE)[0]
        slots[: len(left)] = left
        header["state"] = (header["state"] & ~np.uint64(0xFFFFFFFF)) | np.uint64(len(left))


# Stack samples (ioprof/format/stack_format.py).


def _thin_stacks(data: bytes, until_ns: int) -> bytes:
    """With a tenth of the samples before that time, and without the stacks and codes that no sample
    needs then."""
    records = list(_stack_records(data))
    used: set[int] = set()
    kept: list[tuple[int, bytes]] = []
    number = 0
    for kind, content in records:
        if kind in (SAMPLES_RECORD, HOLDER_RECORD):
            samples = np.frombuffer(content, _SAMPLES if kind == SAMPLES_RECORD else _HOLDERS)
            places = number + np.arange(len(samples))
            number += len(samples)
            samples = samples[(samples["time_ns"] >= until_ns) | (places % 10 == 0)]
            used |= set(samples["stack"].tolist())
            content = samples.tobytes()
        kept.append((kind, content))
    codes: set[int] = set()
    for kind, content in kept:
        if kind == STACK_RECORD and int.from_bytes(content[:4], "little") in used:
            codes |= set(np.frombuffer(content[4:], "<u4")[::2].tolist())
    needed = {CODE_RECORD: codes, STACK_RECORD: used}
    left = b""
    for kind, content in kept:
        if content and (
            kind not in needed or int.from_bytes(content[:4], "little") in needed[kind]
        ):
            left += np.array([kind, len(content)], "<u4").tobytes() + content
    return left


def _stack_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 8 <= len(data):
        kind, length = np.frombuffer(data, "<u4", 2, place).tolist()
        yield kind, data[place + 8 : place + 8 + length]
        place += 8 + length
