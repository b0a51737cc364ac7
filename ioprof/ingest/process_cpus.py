"""Adds to the processes of a run which CPUs each could use, the sizes of its libraries' thread
pools, and what the dataset of a worker kept.
"""

import json
from collections.abc import Iterable
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


def with_cpus(
    records: Iterable[ProcessRecord], folder: Path, sampled: Iterable[SampledProcess]
) -> tuple[ProcessRecord, ...]:
    """The records with what the sampler and the hooks in the spool folder `folder` recorded of
    them.
    """
    seen: dict[_Key, SampledProcess] = {(process.host, process.pid): process for process in sampled}
    cpus = {key: process.cpus for key, process in seen.items() if process.cpus}
    pools, kept = _facts_of_processes(folder)
    return tuple(
        record.replace(
            program=seen[key].command if (key := (record.host, record.pid)) in seen else None,
            cpus_allowed=cpus.get(key),
            thread_pools=pools.get((record.host, record.pid), {}),
            kept_data=kept.get((record.host, record.pid)),
        )
        for record in records
    )


def _facts_of_processes(folder: Path) -> tuple[dict[_Key, dict[str, int]], dict[_Key, KeptData]]:
    pools, kept = dict[_Key, dict[str, int]](), dict[_Key, KeptData]()
    for path in sorted(folder.glob("facts-*.jsonl")):
        for line in lines_of(path):
            if not any(key.encode() in line for key in (THREAD_POOLS, KEPT_DATA)):
                continue
            try:
                fact: dict[str, Any] = json.loads(line)
                process = fact["host"], fact["pid"]
                if KEPT_DATA in fact:
                    kept[process] = KeptData.of(fact[KEPT_DATA])
                    continue
                pools[process] = {
                    str(name): int(size)
                    for name, size in fact[THREAD_POOLS].items()
                    if int(size) >= 0
                }
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # its process was killed while it wrote
    return pools, kept
