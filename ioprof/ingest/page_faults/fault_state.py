"""What the rest of a perf file needs of the part that was dropped (`appended_files.py`): processes
with their mappings, what was counted, faults that began readahead not long before, and records that
belong to faults which had not ended.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec

from ioprof.ingest.page_faults.mappings import Mappings, Process

ENDED_NS: Final = 10_000_000_000
"""How long all is known of a process after its last record."""
MOST_ENDED: Final = 1024
"""Processes without the capture library that are still named later."""

_MOST: Final = (1 << 62) - 1
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Place = Annotated[int, msgspec.Meta(ge=-3, lt=1 << 62)]


class _Process(msgspec.Struct, array_like=True):
    """One process; `mappings` is a place in `FaultState.mappings`, null where nothing more can
    happen in it.
    """

    pid: _Number
    first_ns: _Number
    parent_pid: _Number | None
    name: str
    executable: str | None
    last_ns: _Number
    faults: _Number
    threads: _Number
    was_executed: bool
    captured: bool
    mappings: _Number | None


class FaultCounts(msgspec.Struct):
    """Of all that was dropped."""

    lost: _Number = 0
    faults: _Number = 0
    anonymous: _Number = 0
    unmapped: _Number = 0
    unblocked: _Number = 0
    unwatched: _Number = 0
    own: _Number = 0
    minor: _Number = 0
    in_files: _Number = 0
    """Major faults in files, for `minor_watched_ratio`."""
    watched: _Number = 0
    """Those of them at whose time minor faults were recorded."""

    def plus(self, other: "FaultCounts") -> "FaultCounts":
        """The sums of both."""
        return FaultCounts(
            *(
                min(_MOST, getattr(self, name) + getattr(other, name))
                for name in self.__struct_fields__
            )
        )


class _Begun(msgspec.Struct, array_like=True):
    path: _Number
    start_ns: _Number
    place: _Number


class FaultState(msgspec.Struct):
    """The state; times are CLOCK_MONOTONIC of the job, strings are bytes as Latin-1."""

    counts: FaultCounts = msgspec.field(default_factory=FaultCounts)
    paths: list[str] = msgspec.field(default_factory=list)
    mappings: list[list[tuple[_Number, _Number, _Number, _Place]]] = msgspec.field(
        default_factory=list
    )
    processes: list[_Process] = msgspec.field(default_factory=list)
    begun: list[_Begun] = msgspec.field(default_factory=list)
    damage: dict[str, _Number] = msgspec.field(default_factory=dict)
    records: bytes = b""
    """As the recorder wrote them."""

    def known_processes(self) -> tuple[list[Process], set[int]]:
        """The processes in the order of their first records, and which of these may have more
        records, by place.
        """
        tables = [Mappings(list(each)) for each in self.mappings]
        found, current = [], set[int]()
        for place, each in enumerate(self.processes):
            process = Process(each.pid, each.first_ns, each.parent_pid, each.name.encode("latin-1"))
            process.executable = (
                None if each.executable is None else each.executable.encode("latin-1")
            )
            process.last_ns, process.faults, process.threads = (
                each.last_ns,
                each.faults,
                each.threads,
            )
            process.was_executed, process.captured = each.was_executed, each.captured
            if each.mappings is not None:
                process.mappings = tables[each.mappings].fork()
                current.add(place)
            found.append(process)
        return found, current

    def known_begun(self) -> dict[int, list[tuple[int, int]]]:
        """By path, when faults began that wait, and for which place."""
        found: dict[int, list[tuple[int, int]]] = {}
        for each in self.begun:
            found.setdefault(each.path, []).append((each.start_ns, each.place))
        return found


def read_state(data: bytes, damage: Counter[str]) -> FaultState:
    """The state in these bytes; an empty one, and an entry in `damage`, if they are no state."""
    if not data:
        return FaultState()
    try:
        found = msgspec.json.decode(data, type=FaultState)
        texts = [
            *found.paths,
            *(each.name for each in found.processes),
            *(each.executable or "" for each in found.processes),
        ]
        for text in texts:
            text.encode("latin-1")
        known, tables = len(found.paths), len(found.mappings)
        is_whole = all(each[3] < known for table in found.mappings for each in table) and all(
            each.mappings is None or each.mappings < tables for each in found.processes
        )
        if is_whole and all(each.path < known for each in found.begun):
            return found
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    damage["what is known of the part before the window is damaged"] += 1
    return FaultState()


def make_state(
    counts: FaultCounts,
    paths: Sequence[bytes],
    processes: Sequence[tuple[Process, bool]],
    begun: Mapping[int, deque[tuple[int, int]]],
    damage: Mapping[str, int],
    records: bytes,
    last_ns: int,
) -> bytes:
    """The state after the record at `last_ns`. Each process stands with whether it has its process
    id now.
    """
    state = FaultState(
        counts=counts,
        damage={what: count for what, count in damage.items() if count},
        records=records,
    )
    numbers: dict[int, int] = {}
    places: dict[int, int] = {}

    def number(file: int) -> int:
        if file >= 0 and file not in numbers:
            numbers[file] = len(state.paths)
            state.paths.append(paths[file].decode("latin-1"))
        return numbers[file] if file >= 0 else file

    def mappings_of(process: Process) -> int:
        ranges = process.mappings.ranges
        if id(ranges) not in places:
            places[id(ranges)] = len(state.mappings)
            rows = [
                (first, end, offset, number(file))
                for first, end, offset, file in ranges
                if max(end, offset) < 1 << 62
            ]
            state.mappings.append(rows)
        return places[id(ranges)]

    lasting = [
        (each, now)
        for each, now in processes
        if now and (each.threads or last_ns - each.last_ns < ENDED_NS)
    ]
    kept = {id(each) for each, _ in lasting}
    unseen = [each for each, _ in processes if id(each) not in kept and not each.captured]
    kept |= {id(each) for each in unseen[-MOST_ENDED:]}
    current = {id(each) for each, _ in lasting}
    for each in (process for process, _ in processes if id(process) in kept):
        executable = None if each.executable is None else each.executable.decode("latin-1")
        facts = (each.pid, each.first_ns, each.parent_pid, each.name.decode("latin-1"), executable)
        counted = (each.last_ns, each.faults, each.threads, each.was_executed, each.captured)
        state.processes.append(
            _Process(*facts, *counted, mappings_of(each) if id(each) in current else None)
        )
    for file, recent in begun.items():
        state.begun += [
            _Begun(number(file), since, max(0, place))
            for since, place in recent
            if last_ns - since < ENDED_NS and place <= _MOST
        ]
    return msgspec.json.encode(state)
