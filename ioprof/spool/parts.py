"""The parts of one run, each recorded on a host of its own (or by a task of its own): one Trace on one clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from ioprof.clock import Anchor
from ioprof.errors import RunError
from ioprof.spool.one_clock import OneClock
from ioprof.spool.ties import Clock
from ioprof.trace import Trace

_OF_THE_RUN: Final = ("name", "command", "started", "config", "device", "dataset")
"""What `Trace.merge` wants to be the same in all parts."""
_OWN: Final = ("command", "started", "status", "exit_code", "part")
"""What `run["parts"]` keeps of each part, beside what differs from the run's."""
_COMPARED: Final = ("config", "versions", "environment")
_STATUSES: Final = ("complete", "interrupted", "failed")
_MOST_PARTS: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class _Named:
    """A part, and the name of its clock."""

    name: str
    trace: Trace

    @property
    def run(self) -> dict[str, Any]:
        return self.trace.run

    @property
    def clocks(self) -> dict[str, Any]:
        return _object(self.run.get("clocks"))

    @property
    def zero_ns(self) -> int:
        return _integer(self.clocks.get("zero_monotonic_ns")) or 0

    @property
    def hosts(self) -> list[dict[str, Any]]:
        return _objects(self.run.get("hosts"))

    def clock(self) -> Clock:
        """Its clock: that of its first host."""
        anchors = [anchor for entry in _objects(self.clocks.get("anchors")) if (anchor := _anchor(entry))]
        kernel, error = self.clocks.get("kernel"), self.clocks.get("wall_error_ns")
        return Clock(
            self.name,
            anchors[0] if anchors else None,
            kernel if isinstance(kernel, str) else None,
            _whole(self.clocks.get("monotonic_shift_ns")) or 0,
            _whole(error),
        )

    def spans(self) -> pl.DataFrame:
        """Its spans, with the times of its clock."""
        return self.trace.spans.with_columns(pl.col("start_ns", "end_ns") + self.zero_ns)


def merge_parts(parts: Sequence[Trace], name: str) -> Trace:
    """The run `name` that these are the parts of; `run["parts"]` keeps what each says of itself, `run["clocks"]["ties"]` how their
    clocks were tied. Raises `RunError` for what cannot be parts of one run.
    """
    named = _named(sorted(parts, key=_order))
    _check(named)
    tables = {part.name: part.spans() for part in named}
    clock = OneClock([part.clock() for part in named], tables.items())
    whole = _facts(named, name, clock)
    shared = {key: whole.get(key) for key in _OF_THE_RUN}
    merged = []
    for part in named:
        own = {**shared, "clocks": {"zero_monotonic_ns": clock.zero_ns}}
        counters = clock.of(part.name, _own_counters(part, named).with_columns(pl.col("time_ns") + part.zero_ns), "time_ns")
        facts = whole if part is named[0] else own
        merged.append(replace(part.trace, run=facts, spans=clock.of(part.name, tables[part.name]), counters=counters))
    return Trace.merge(merged)


# ------------------------------------------------------------------------------------------------ which parts there are


def _order(part: Trace) -> tuple[int, int, str]:
    """The part of the lowest rank comes first: its clock is the run's, and of two words its own counts."""
    ranks, number = sorted(_ranks(part)), _object(part.run.get("part")).get("number")
    return ranks[0] if ranks else 1 << 31, number if isinstance(number, int) else 1 << 31, str(part.run.get("started"))


def _ranks(part: Trace) -> set[int]:
    processes = [process for process in _objects(part.run.get("processes")) if process.get("role") == "rank"]
    return {rank for process in processes if (rank := _whole(process.get("rank"))) is not None}


def _named(parts: Sequence[Trace]) -> list[_Named]:
    """The parts by the names of their hosts. Where other machines bear the same name ("localhost"), theirs gets a number."""
    found: list[_Named] = []
    machines: dict[str, list[Any]] = {}
    for number, part in enumerate(parts):
        hosts = _objects(part.run.get("hosts"))
        own = str(hosts[0].get("name")) if hosts else f"part {number}"
        kernel = _object(part.run.get("clocks")).get("kernel")
        known = machines.setdefault(own, [])
        known += [kernel] if kernel not in known else []
        place = known.index(kernel)
        part = _renamed(part, own, f"{own} ({place + 1})") if place else part
        name = own if not place else f"{own} ({place + 1})"
        found.append(_Named(f"{name}, task {number}" if name in {other.name for other in found} else name, part))
    return found


def _renamed(part: Trace, old: str, new: str) -> Trace:
    def renamed(entries: Any, key: str) -> list[Any]:
        return [{**entry, key: new} if entry.get(key) == old else entry for entry in _objects(entries)]

    def column(table: pl.DataFrame) -> pl.DataFrame:
        return table.with_columns(pl.col("host").cast(pl.String).replace(old, new).cast(table.schema["host"]))

    run = {
        **part.run,
        "hosts": renamed(part.run.get("hosts"), "name"),
        "processes": renamed(part.run.get("processes"), "host"),
        "clocks": {**_object(part.run.get("clocks")), "anchors": renamed(_object(part.run.get("clocks")).get("anchors"), "host")},
    }
    return replace(part, run=run, spans=column(part.spans), counters=column(part.counters))


def _check(parts: list[_Named]) -> None:
    if not parts:
        raise RunError("there is nothing to gather; give the run folders of all hosts: ioprof gather PART PART --out RUN")
    jobs = {str(job): part.name for part in parts if (job := _object(part.run.get("part")).get("job"))}
    if len(jobs) > 1:
        shown = ", ".join(f"{name} is of {job}" for job, name in jobs.items())
        raise RunError(f"these are parts of different runs: {shown}; give those of one: ioprof gather PART PART --out RUN")
    holders: dict[int, str] = {}
    for part in parts:
        for rank in sorted(_ranks(part.trace)):
            if rank in holders:
                what = f"rank {rank} is in both {holders[rank]} and {part.name}"
                raise RunError(
                    f"these are runs of their own, not parts of one: {what}; see them side by side: ioprof compare RUN RUN"
                )
            holders[rank] = part.name


def missing_parts(parts: Iterable[Trace]) -> list[int]:
    """Numbers of the parts that the launcher started and that are not among these; none where the parts have no numbers."""
    told = [_object(part.run.get("part")) for part in parts]
    expected = max((of for part in told if (of := _whole(part.get("of"))) is not None), default=0)
    numbers = {number for part in told if (number := _whole(part.get("number"))) is not None}
    return sorted(set(range(min(expected, _MOST_PARTS))) - numbers)


# ------------------------------------------------------------------------------------------------ facts


def _facts(parts: list[_Named], name: str, clock: OneClock) -> dict[str, Any]:
    """What is known of the whole run."""
    first = _first_known([part.run for part in parts])
    config = _first_known([_object(part.run.get("config")) for part in parts])
    ranks = {rank for part in parts for rank in _ranks(part.trace)}
    told = [_whole(_object(part.run.get("config")).get("ranks")) or 0 for part in parts]
    codes = [code for part in parts if isinstance(code := part.run.get("exit_code"), int)]
    return {
        **{key: value for key, value in first.items() if key != "part"},
        "name": name,
        "status": max((str(part.run.get("status")) for part in parts), key=_badness),
        "failures": [_with_host(failure, part.name) for part in parts for failure in _list(part.run.get("failures"))],
        "started": min(str(part.run.get("started")) for part in parts),
        "exit_code": next((code for code in codes if code), 0 if codes else None),
        "hosts": _hosts(parts),
        "config": {**config, "ranks": max(len(ranks), *told)},
        "clocks": _clocks(parts, clock),
        "processes": [
            _moved(process, part, clock, "first_ns", "last_ns") for part in parts for process in _objects(part.run.get("processes"))
        ],
        "capture": _capture(parts, clock),
        "parts": [_own_facts(part, first) for part in parts],
    }


def _clocks(parts: list[_Named], clock: OneClock) -> dict[str, Any]:
    """How far any two of the run's times may be apart: as far as their parts', and what is not known within each of these."""
    if len(parts) == 1:
        return {**parts[0].clocks, **clock.facts()}
    facts = clock.facts()
    bounds = [facts["uncertainty_ns"], *sorted(_whole(part.clocks.get("uncertainty_ns")) or 0 for part in parts)[-2:]]
    is_known = all(part.clocks.get("uncertainty_ns") is not None for part in parts) and bounds[0] is not None
    return {**facts, "uncertainty_ns": sum(bounds) if is_known else None}


def _own_facts(part: _Named, first: dict[str, Any]) -> dict[str, Any]:
    capture = _object(part.run.get("capture"))
    differs = {
        key: {name: value for name, value in _object(part.run.get(key)).items() if _object(first.get(key)).get(name) != value}
        for key in _COMPARED
    }
    watched = {key: capture.get(key) for key in ("faults", "samplers")}
    return {
        "name": part.name,
        **{key: part.run.get(key) for key in _OWN},
        **{key: value for key, value in differs.items() if value},
        **watched,
    }


def _badness(status: str) -> int:
    return _STATUSES.index(status) if status in _STATUSES else len(_STATUSES)


def _with_host(failure: Any, name: str) -> dict[str, Any]:
    entry = _object(failure)
    return {**entry, "what": f"{entry.get('what', failure)} (on {name})"}


def _hosts(parts: list[_Named]) -> list[dict[str, Any]]:
    """Every host once; of two tasks' words for the share that others took, the greater."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for host in part.hosts:
            known = found.setdefault(str(host.get("name")), host)
            for key in ("cpus", "others_cpu_ratio"):
                values = [value for value in (known.get(key), host.get(key)) if isinstance(value, int | float)]
                known = {**known, **({key: max(values)} if values else {})}
            found[str(host.get("name"))] = known
    return list(found.values())


def _capture(parts: list[_Named], clock: OneClock) -> dict[str, Any]:
    """What was captured: as little as of any part, at the greatest cost of any."""
    captures = [_object(part.run.get("capture")) for part in parts]
    whole = _first_known(captures)
    for key in ("native", "library", "hooks", "reads"):
        whole[key] = all(capture.get(key) for capture in captures)
    for key in ("ns_per_span", "ns_per_call"):
        costs = [cost for capture in captures if isinstance(cost := capture.get(key), int | float)]
        whole[key] = max(costs, default=None)
    for key in ("fault_records", "unseen_processes", "unobserved", "damaged"):
        whole[key] = [entry for capture in captures for entry in _list(capture.get(key))]
    whole["faults"] = _faults(parts)
    sampled = [_object(capture.get("sampled")) for capture in captures]
    notes = list(dict.fromkeys(str(note) for entry in sampled for note in _list(entry.get("notes"))))
    whole["sampled"] = {
        "notes": notes,
        **{key: sum(_whole(entry.get(key)) or 0 for entry in sampled) for key in ("damaged", "lost")},
    }
    if any("gpu" in capture for capture in captures):
        whole["gpu"] = _gpu(parts, clock)
    return whole


def _faults(parts: list[_Named]) -> dict[str, Any]:
    """Of the first part where page faults could not be recorded, if there is one."""
    found = [(part.name, _object(_object(part.run.get("capture")).get("faults"))) for part in parts]
    refused = next(((name, faults) for name, faults in found if faults.get("reason")), None)
    return found[0][1] if refused is None else {**refused[1], "reason": f"{refused[1]['reason']} (on {refused[0]})"}


def _gpu(parts: list[_Named], clock: OneClock) -> dict[str, Any]:
    found = [(part, _object(_object(part.run.get("capture")).get("gpu"))) for part in parts]
    windows = [_moved(window, part, clock, "start_ns", "end_ns") for part, gpu in found for window in _objects(gpu.get("windows"))]
    return {"windows": windows, "notes": [note for _, gpu in found for note in _list(gpu.get("notes"))]}


def _moved(entry: dict[str, Any], part: _Named, clock: OneClock, *keys: str) -> dict[str, Any]:
    """A fact whose times are the part's, with those of the run."""
    times = {key: clock.at(part.name, part.zero_ns + time) for key in keys if (time := _integer(entry.get(key))) is not None}
    return {**entry, **times}


def _own_counters(part: _Named, parts: list[_Named]) -> pl.DataFrame:
    """Its sampled series; those of the host itself only if no part before it is of that host."""
    before = {str(host.get("name")) for other in parts[: parts.index(part)] for host in other.hosts}
    told = {str(host.get("name")) for host in part.hosts} & before
    is_told = pl.col("pid").is_null() & pl.col("host").cast(pl.String).is_in(list(told))
    return part.trace.counters.filter(~is_told)


def _first_known(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Each key by the first that knows it."""
    keys = dict.fromkeys(key for each in facts for key in each)
    return {key: next((each[key] for each in facts if each.get(key) is not None), None) for key in keys}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]


def _integer(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 62 else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _anchor(entry: dict[str, Any]) -> Anchor | None:
    times = [_whole(entry.get(f"{name}_ns")) for name in ("before", "wall", "after")]
    return None if None in times else Anchor(*times)  # type: ignore[arg-type]
