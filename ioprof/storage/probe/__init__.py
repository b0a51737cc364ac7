"""Measures the read throughput and latency of a path at a dataset's record sizes: cold, by
concurrency, buffered and direct.

    targets = WholeFiles(paths, np.random.default_rng())      # or Ranges(paths, sizes, random)
    found = probe(targets, Allowance(seconds=30, bytes=2 << 30), Plan(clients=(1, 2, 4)))
    found.best("random").operations_per_s

    sizes, ranges, whole_files   what is read               budget, probing   the levels, and the budget of each
    clients, threads             the readers, with times    measure, result   the numbers of a level

The loop is closed: a client starts its next read when the last one has ended, so the results say
nothing about requests that arrive independently (an open loop). Nor do they include the load of
other nodes on a shared storage at other times.
"""  # noqa: E501

from ioprof.storage.probe.budget import Allowance
from ioprof.storage.probe.clients import MAX_CLIENTS
from ioprof.storage.probe.probing import Plan, clients_up_to, probe
from ioprof.storage.probe.ranges import Ranges
from ioprof.storage.probe.result import SCHEMA, Harness, Latency, Level, Missing, Probe
from ioprof.storage.probe.sizes import MAX_RECORD_BYTES, RecordSizes
from ioprof.storage.probe.targets import ReadTargets
from ioprof.storage.probe.whole_files import WholeFiles

__all__ = [
    "MAX_CLIENTS",
    "MAX_RECORD_BYTES",
    "SCHEMA",
    "Allowance",
    "Harness",
    "Latency",
    "Level",
    "Missing",
    "Plan",
    "Probe",
    "Ranges",
    "ReadTargets",
    "RecordSizes",
    "WholeFiles",
    "clients_up_to",
    "probe",
]
