"""What a path delivers at a dataset's own record sizes: cold, by concurrency, through the page cache and past it.

    material = WholeFiles(paths, np.random.default_rng())      # or Ranges(paths, sizes, random)
    found = probe(material, Allowance(seconds=30, bytes=2 << 30), Plan(clients=(1, 2, 4)))
    found.best("random").operations_per_s

    sizes, ranges, whole_files   what is read             budget, probing   which levels, and how much each may take
    clients, threads             who reads, and times it   measure, result   what the numbers of a level are

The loop is closed: a client begins its next read when the last one has ended, so nothing is said of what happens to requests that
arrive on their own. Other nodes, and what they do to a shared storage at another hour, are not in the numbers.
"""

from ioprof.storage.probe.budget import Allowance
from ioprof.storage.probe.clients import ENGINE, MAX_CLIENTS
from ioprof.storage.probe.material import Material
from ioprof.storage.probe.probing import Plan, clients_up_to, probe
from ioprof.storage.probe.ranges import Ranges
from ioprof.storage.probe.result import SCHEMA, Harness, Latency, Level, Missing, Probe
from ioprof.storage.probe.sizes import MAX_RECORD_BYTES, RecordSizes
from ioprof.storage.probe.whole_files import WholeFiles

__all__ = [
    "ENGINE",
    "MAX_CLIENTS",
    "MAX_RECORD_BYTES",
    "SCHEMA",
    "Allowance",
    "Harness",
    "Latency",
    "Level",
    "Material",
    "Missing",
    "Plan",
    "Probe",
    "Ranges",
    "RecordSizes",
    "WholeFiles",
    "clients_up_to",
    "probe",
]
