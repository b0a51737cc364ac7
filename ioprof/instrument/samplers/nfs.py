"""Counters of the NFS mounts from /proc/self/mountstats (nfs_show_stats of the kernel, format 1.1).

device server:/export mounted on /data with fstype nfs4 statvers=1.1
        bytes:  READ WRITTEN DIRECT_READ DIRECT_WRITTEN FROM_SERVER TO_SERVER READ_PAGES WRITTEN_PAGES
        per-op statistics
                READ: OPERATIONS SENT TIMEOUTS BYTES_SENT BYTES_RECEIVED QUEUE_MS ROUND_TRIP_MS TOTAL_MS [ERRORS]
"""  # noqa: E501

import re
from collections.abc import Iterator
from typing import Final

from ioprof.instrument.samplers.readings import HOST, Readings, read_bytes

_MOUNT: Final = re.compile(rb"device \S* mounted on (\S+) with fstype nfs4? statvers=1\.\d+")
_OPERATION: Final = re.compile(rb"([A-Z_0-9]+):((?: \d{1,20}){8,9})")
_BYTES: Final = re.compile(rb"bytes:((?:\s+\d{1,20}){8})")
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
_READS: Final = (b"READ", b"READ_PLUS")  # the latter since NFS 4.2
_COUNTED: Final = (
    "requests",
    "retransmissions",
    "read_requests",
    "read_round_trip_time",
    "read_request_time",
)


class NfsCounters:
    """Reads all NFS mounts. If there is none at construction, it never reads."""

    def __init__(self, proc: str = "/proc") -> None:
        self._path = f"{proc}/self/mountstats"
        self.notes: list[str] = []
        """What could not be read, one sentence each."""
        try:
            self.is_present = bool(re.search(rb" - nfs4? ", read_bytes(f"{proc}/self/mountinfo")))
        except OSError:
            self.is_present = False
        """Whether there is an NFS mount."""

    def read(self) -> Readings:
        """The current values."""
        if not self.is_present:
            return {}
        try:
            data = read_bytes(self._path)
        except OSError as error:
            self.is_present = False
            self.notes.append(f"{self._path} is not sampled: {error.strerror or error}")
            return {}
        values: dict[str, float] = {}
        for mount, text in _mounts(data):
            values |= {f"nfs.{mount}.{name}": value for name, value in values_in(text).items()}
        return {HOST: values} if values else {}


def values_in(data: bytes) -> dict[str, float]:
    """The values of one mount; empty if the text has an unexpected format."""
    lines = [line.strip() for line in data.splitlines()]
    counts = next((found for line in lines if (found := _BYTES.fullmatch(line))), None)
    if counts is None:
        return {}
    numbers = [int(word) for word in counts[1].split()]
    values = {
        "read_bytes": float(numbers[0] + numbers[2]),
        "fetched_bytes": float(numbers[4]),
        **dict.fromkeys(_COUNTED, 0.0),
    }
    for line in lines:
        if found := _OPERATION.fullmatch(line):
            _add(values, found[1], [int(word) for word in found[2].split()])
    return values


def _add(values: dict[str, float], name: bytes, numbers: list[int]) -> None:
    values["requests"] += numbers[0]
    values["retransmissions"] += max(numbers[1] - numbers[0], 0)
    if name in _READS:
        values["read_requests"] += numbers[0]
        values["read_round_trip_time"] += numbers[6] / 1e3
        values["read_request_time"] += numbers[7] / 1e3


def _mounts(data: bytes) -> Iterator[tuple[str, bytes]]:
    for part in re.split(rb"^(?=device )", data, flags=re.MULTILINE):
        line, _, rest = part.partition(b"\n")
        if found := _MOUNT.fullmatch(line.strip()):
            point = _ESCAPED.sub(lambda escape: bytes([int(escape[1], 8) & 0xFF]), found[1])
            yield point.decode("utf-8", "backslashreplace"), rest
