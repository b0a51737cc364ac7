"""Adds to the processes of a run which CPUs each could use, and the sizes of its libraries' thread
pools.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ioprof.format.run_record import ProcessRecord
from ioprof.ingest.counters import SampledProcess
from ioprof.ingest.untrusted_values import lines_of

_Key = tuple[str | None, int | None]  # host and pid

THREAD_POOLS: Final = "thread_pools"
"""Key of the facts that `ioprof.instrument.hooks.thread_pools` records."""


def with_cpus(
    records: Iterable[ProcessRecord], folder: Path, sampled: Iterable[SampledProcess]
) -> tuple[ProcessRecord, ...]:
    """The records with what the sampler and the hooks in the spool folder `folder` recorded of
    them.
    """
    cpus: dict[_Key, str] = {
        (process.host, process.pid): process.cpus for process in sampled if process.cpus
    }
    pools = _thread_pools(folder)
    return tuple(
        record.replace(
            cpus_allowed=cpus.get((record.host, record.pid)),
            thread_pools=pools.get((record.host, record.pid), {}),
        )
        for record in records
    )


def _thread_pools(folder: Path) -> dict[_Key, dict[str, int]]:
    found: dict[_Key, dict[str, int]] = {}
    for path in sorted(folder.glob("facts-*.jsonl")):
        for line in lines_of(path):
            if THREAD_POOLS.encode() not in line:
                continue
            try:
                fact = json.loads(line)
                sizes = {
                    str(name): int(size)
                    for name, size in fact[THREAD_POOLS].items()
                    if int(size) >= 0
                }
                found[fact["host"], fact["pid"]] = sizes
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # its process was killed while it wrote
    return found
