"""Adds to the processes of a run which CPUs each could use, the sizes of its libraries' thread
pools, what hooks took there, and what the dataset of a worker kept.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from ioprof.format.run_record import KeptData, ProcessRecord
from ioprof.ingest.counters import SampledProcess
from ioprof.ingest.untrusted_values import lines_of

_Key = tuple[str | None, int | None]  # host and pid

THREAD_POOLS: Final = "thread_pools"
"""Key of the facts that `ioprof.instrument.hooks.thread_pools` records."""
KEPT_DATA: Final = "kept_data"
"""The same of `ioprof.instrument.hooks.pytorch.kept_data`."""
HOOKS_NS: Final = "hooks_ns"
"""The same of what hooks of training steps took."""


def with_cpus(
    records: Iterable[ProcessRecord], folder: Path, sampled: Iterable[SampledProcess]
) -> tuple[ProcessRecord, ...]:
    """The records with what the sampler and the hooks in the spool folder `folder` recorded of
    them.
    """
    seen: dict[_Key, SampledProcess] = {(process.host, process.pid): process for process in sampled}
    cpus = {key: process.cpus for key, process in seen.items() if process.cpus}
    facts = _facts_of_processes(folder)
    return tuple(
        record.replace(
            program=seen[key].command if (key := (record.host, record.pid)) in seen else None,
            cpus_allowed=cpus.get(key),
            **facts.get((record.host, record.pid), {}),
        )
        for record in records
    )


def _facts_of_processes(folder: Path) -> dict[_Key, dict[str, Any]]:
    """By process, the fields of its record that its facts give."""
    found: defaultdict[_Key, dict[str, Any]] = defaultdict(dict)
    for path in sorted(folder.glob("facts-*.jsonl")):
        for line in lines_of(path):
            if not any(key.encode() in line for key in _FIELDS):
                continue
            try:
                fact: dict[str, Any] = json.loads(line)
                for key, value_of in _FIELDS.items():
                    if key in fact:
                        found[fact["host"], fact["pid"]][key] = value_of(fact[key])
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # its process was killed while it wrote
    return found


def _sizes(value: Any) -> dict[str, int]:
    return {str(name): int(size) for name, size in value.items() if int(size) >= 0}


def _time_ns(value: Any) -> int:
    return max(int(value), 0)


_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    THREAD_POOLS: _sizes,
    KEPT_DATA: KeptData.of,
    HOOKS_NS: _time_ns,
}
"""Key of a fact, which is also the field of the record, to what makes its value."""
