"""Copies the spool of a job that goes on, which is read afterwards as that of a job that has
ended.
"""

import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from ioprof import clock
from ioprof.files import data_parts
from ioprof.format.layout import CHUNK_HEADER_DTYPE, FILE_HEADER_DTYPE
from ioprof.format.wire_format import CHUNK_BYTES, CHUNK_HEADER_BYTES, HEADER_BYTES
from ioprof.ingest.kept_state import KEPT, LOCK, KeptState, locked

_TRIES: Final = 100
"""To copy a chunk that is flushed meanwhile; a flush comes after a thousand spans."""
_MOST_CHUNKS: Final = 1 << 18
_PIECE_BYTES: Final = 1 << 20


def copy_spool(spool: Path, folder: Path, host: str) -> None:
    """Copy a spool of this host as it is now, without its holes: each file as it is at one moment.
    Raises OSError.
    """
    with locked(spool, wait=True):
        state = KeptState.load(spool) or KeptState(
            host=host, wall_offset_ns=clock.anchor().offset_ns, keep_ns=None
        )
        state.end_ns, state.ended = clock.monotonic_ns(), False
        state.save(folder)
        for path in sorted(spool.iterdir()):
            if (
                path.name in (KEPT, LOCK)
                or path.name.startswith(".")
                or not path.is_file()
                or path.is_symlink()
            ):
                continue
            if path.suffix == ".ring":
                _copy_capture_file(path, folder / path.name)
            else:
                _copy_parts(path, folder / path.name)


def _copy_parts(source: Path, target: Path) -> None:
    """Copy a file as long as it is now, and leave its holes."""
    with open(source, "rb", buffering=0) as reading, open(target, "wb", buffering=0) as writing:
        descriptor = reading.fileno()
        size = os.fstat(descriptor).st_size
        for start, end in data_parts(descriptor, 0, 1):
            while start < end and (
                piece := os.pread(descriptor, min(_PIECE_BYTES, end - start), start)
            ):
                start += os.pwrite(writing.fileno(), piece, start)
        os.ftruncate(writing.fileno(), size)


def _copy_capture_file(source: Path, target: Path) -> None:
    """Active chunks first: what one flushes after it was copied is in the copy already, and its
    flushed copy is left out.
    """
    with open(source, "rb", buffering=0) as reading, open(target, "wb", buffering=0) as writing:
        descriptor = reading.fileno()
        places = _places(descriptor)
        headers = {
            place: _header(os.pread(descriptor, CHUNK_HEADER_BYTES, _offset(place)))
            for place in places
        }
        flushes = {}
        for place, header in headers.items():
            if int(header["origin"]) == place + 1:
                chunk = _stable_chunk(descriptor, place)
                flushes[place + 1] = int(_header(chunk)["state"]) >> 32
                os.pwrite(writing.fileno(), chunk, _offset(place))
        for place in _places(descriptor):
            chunk = os.pread(descriptor, CHUNK_BYTES, _offset(place))
            header = _header(chunk)
            origin = int(header["origin"])
            is_copy = 0 < origin != place + 1 and int(header["state"]) >> 32 < flushes.get(
                origin, 0
            )
            if is_copy or origin == 0:
                os.pwrite(writing.fileno(), chunk, _offset(place))
        size = os.fstat(descriptor).st_size
        os.ftruncate(writing.fileno(), max(size, os.fstat(writing.fileno()).st_size))
        num_chunks = max(0, (os.fstat(writing.fileno()).st_size - HEADER_BYTES) // CHUNK_BYTES)
        os.pwrite(writing.fileno(), _closed(os.pread(descriptor, HEADER_BYTES, 0), num_chunks), 0)


def _closed(data: bytes, num_chunks: int) -> bytes:
    """The header of a file of so many chunks; what a process that lives recorded so far is
    whole.
    """
    if len(data) < FILE_HEADER_DTYPE.itemsize:
        return data
    header = np.frombuffer(data[: FILE_HEADER_DTYPE.itemsize], FILE_HEADER_DTYPE).copy()
    if not header["closed"][0] and Path(f"/proc/{int(header['pid'][0])}").exists():
        header["closed"] = 1
        header["chunks"] = min(int(header["chunks"][0]), num_chunks)
    return header.tobytes() + data[FILE_HEADER_DTYPE.itemsize :]


def _places(descriptor: int) -> list[int]:
    """The chunks that are in the file now and are no holes."""
    found = []
    for start, end in data_parts(descriptor, HEADER_BYTES, CHUNK_BYTES):
        first = (start - HEADER_BYTES) // CHUNK_BYTES
        found += list(range(first, min(_MOST_CHUNKS, first - (start - end) // CHUNK_BYTES)))
    return found


def _stable_chunk(descriptor: int, place: int) -> bytes:
    """An active chunk, complete up to the count in its header."""
    for _ in range(_TRIES):
        head = os.pread(descriptor, CHUNK_HEADER_BYTES, _offset(place))
        chunk = os.pread(descriptor, CHUNK_BYTES, _offset(place))
        after = os.pread(descriptor, CHUNK_HEADER_BYTES, _offset(place))
        if int(_header(head)["state"]) >> 32 == int(_header(after)["state"]) >> 32:
            return head + chunk[len(head) :]
    empty = np.frombuffer(head.ljust(CHUNK_HEADER_BYTES, b"\0"), CHUNK_HEADER_DTYPE).copy()
    empty["state"] = int(empty["state"][0]) >> 32 << 32
    return empty.tobytes()


def _header(data: bytes) -> Any:
    return np.frombuffer(
        data[:CHUNK_HEADER_BYTES].ljust(CHUNK_HEADER_BYTES, b"\0"), CHUNK_HEADER_DTYPE
    )[0]


def _offset(place: int) -> int:
    return HEADER_BYTES + place * CHUNK_BYTES
