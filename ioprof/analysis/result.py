"""What the analysis says about a run: plain data that reports draw and `summary.json` holds. Keys are a contract."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ioprof.schema import SUMMARY_SCHEMA


@dataclass(frozen=True)
class CauseShare:
    """How much of the steps' wall time one cause took, over all ranks."""

    cause: str
    seconds: float | None
    """Time charged to the cause, summed over ranks and steps. Null: could not be measured, see `reason`. Never 0 for "unknown"."""
    share: float | None
    """`seconds` over the sum of all causes' seconds, 0 to 1; the shares that are not null sum to 1."""
    basis: str
    """One of `ioprof.schema.BASES`."""
    reason: str | None = None
    """Why `seconds` is null, or what it includes that its name does not say."""


@dataclass(frozen=True)
class Overlap:
    """How much of an activity ran while the accelerator computed."""

    total_s: float | None
    """Time during which at least one such span was open, summed over ranks. Null: none was recorded, see `reason`."""
    hidden_s: float | None
    """The part of it during which the same rank's accelerator computed."""
    hidden_ratio: float | None
    """`hidden_s` / `total_s`. High: the activity costs nothing. Low: the accelerator stood still meanwhile."""
    basis: str
    reason: str | None = None


@dataclass(frozen=True)
class Throughput:
    """Samples per second of the whole job, all ranks together."""

    samples_per_s: float | None
    """All samples over the time from the first step's start to the last step's end."""
    steady_samples_per_s: float | None
    """The same without the warm-up steps (see `Steps.warmup`) and without the last, which waits for all that is queued on the
    device. Null: too few steps."""
    device_samples_per_s: float | None
    """What the devices alone would reach: the emulated device's own rate, or null where it is not known."""
    basis: str


@dataclass(frozen=True)
class Steps:
    """The steps of all ranks, and what their time was charged to."""

    count: int
    """Steps per rank, of the rank that made most."""
    warmup: int
    """Leading steps of each rank that the steady rate leaves out: start-up of workers and the first fill of their queues."""
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    causes: tuple[CauseShare, ...]
    """All causes in the order of `ioprof.schema.CAUSES`."""
    per_rank: tuple[dict[str, Any], ...]
    """For each rank: `rank`, `steps`, `wall_s`, and `<cause>_s` for each cause (null where not measured)."""
    behind_peers: dict[str, dict[str, float]] = field(default_factory=dict)
    """The part of `communication` that was waiting for slower ranks, in seconds summed over the ranks that waited: number of the
    late rank to what that rank was doing meanwhile, e.g. `{"1": {"decode": 0.8}}`. `compute` there: it had more to compute, or
    began later. High: look at that rank, not at the network. Empty: no rank waited for another."""


@dataclass(frozen=True)
class Delivery:
    """What a device, or the servers of a file system, delivered to one host while the job ran."""

    device: str
    """As in files.parquet: the block devices, e.g. `nvme0n1`, or the name of the file system or export."""
    host: str
    file_system: str
    mount_point: str
    kind: str
    """`local`, `shared` or `unknown`."""
    asked_bytes: int
    """What the job's reads there were for, page-cache hits included."""
    delivered_bytes: int | None
    """What came from the device or the servers, readahead and other programs included. Null: see `reason`. Above `asked_bytes`: it
    read more than the job wanted. Below: the page cache had the rest."""
    is_at_most: bool
    """Whether `delivered_bytes` is an upper bound: requests were counted by classes of size."""
    reason: str | None


@dataclass(frozen=True)
class Stalls:
    """How long tasks of a host, of any program, were held up by I/O while the job ran (PSI; mostly blind to Lustre)."""

    host: str
    some_s: float | None
    """Time in which at least one task was. High: somebody waits for storage."""
    full_s: float | None
    """Time in which no task could run for that. High: storage is what the host waits for."""
    wall_s: float
    """The time in which that was counted."""


@dataclass(frozen=True)
class Storage:
    """What was read to make batches, and where the bytes came from; all that was read, in a run without batches."""

    accesses: int
    bytes: int
    bytes_from_storage: int
    bytes_from_cache: int
    bytes_unknown: int
    read_p50_s: float | None
    read_p95_s: float | None
    read_p99_s: float | None
    slowest: tuple[dict[str, Any], ...]
    """Up to 10 reads: `path`, `seconds`, `bytes`, `source`, `rank`, `step`, `batch`, slowest first."""
    other_accesses: int = 0
    """Reads that made no batch: libraries, starting up, checkpoints."""
    other_bytes: int = 0
    devices: tuple[Delivery, ...] = ()
    """What the job read from, that which it asked most of first; empty for a run that did not record it."""
    stalls: tuple[Stalls, ...] = ()
    """Per host; empty for a run that did not record it."""


@dataclass(frozen=True)
class Demand:
    """What storage must deliver so that the accelerators never wait for it."""

    bytes_per_s: float | None
    reads_per_s: float | None
    at_samples_per_s: float | None
    """The rate for which that holds: the devices' own, or the rate reached while computing."""
    basis: str


@dataclass(frozen=True)
class Capture:
    """How complete the recording is, and what it cost."""

    events: int
    lost: int
    """Spans that found no room."""
    coverage_ratio: float | None
    """Bytes seen over bytes that the kernel counted for the same processes. Null: see `not_seen`."""
    ns_per_event: float | None
    """Cost of one span, measured on this machine when the run began."""
    overhead_ratio: float | None
    """Spans × `ns_per_event` + calls that the capture library saw × `ns_per_call`, over the ranks' and workers' summed time: a
    lower bound of what recording cost, as what is timed alone stays in the processor's caches, and a job's work drives it out; the
    observers' own Python is not in it. Null: a cost was not measured."""
    not_seen: tuple[str, ...]
    """One sentence for each thing that the run did and the recording cannot show."""
    ns_per_call: float | None = None
    """What the capture library added to one call that reads or opens, measured likewise. Null: it was not there."""


@dataclass(frozen=True)
class Clocks:
    """How the hosts' clocks were brought together."""

    method: str
    uncertainty_ns: int | None


@dataclass(frozen=True)
class Advice:
    """One thing to change. Predicted gains come from replay only; null until a run is replayed."""

    action: str
    predicted_speedup: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The answer: what the job waited for most, in a word and in a sentence."""

    bound_by: str | None
    """`compute` if the accelerators idled for less than 10 % of the time; else the greatest cause after it, where all that holds up
    a batch counts as one and is named for the stage that takes most of the workers' time. Waiting for a slower rank counts as what
    that rank did meanwhile, or as what had made it late (`Steps.behind_peers`). Null: no step."""
    text: str
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True)
class Summary:
    """What the report says, for people and for machines."""

    run: dict[str, Any]
    """`name`, `command`, `status`, `device`, `device_basis`, `loader`, `dataset`, `ranks`, `workers`, `batch_size`, `started`,
    `failures`, `others_cpu_ratio` (share of the busiest host's CPU time that other programs took); null where not recorded."""
    throughput: Throughput
    steps: Steps
    overlap: dict[str, Overlap]
    """Keys `h2d`, `storage`, `decode`, `communication`."""
    storage: Storage
    demand: Demand
    capture: Capture
    clocks: Clocks
    verdict: Verdict
    schema: str = field(default=SUMMARY_SCHEMA)

    def to_json(self) -> str:
        """The text of summary.json; the same summary gives the same text."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)
