"""summary.json: what the analysis says about a run. Reports draw it; its keys are a contract."""

import json
from typing import Any, Self

from msgspec import field

from ioprof.errors import RunError
from ioprof.format.run_record.capture_json import CollectiveSources
from ioprof.format.run_record.findings_json import Findings
from ioprof.format.run_record.job_json import DatasetRecord, EvaluationRecord
from ioprof.format.run_record.ledger_json import EpochPrediction, Ledger, Saves
from ioprof.format.run_record.reasons import (
    CpuLimit,
    JobKind,
    PartCode,
    Reason,
    StepsBy,
    WhyMissing,
    reason_in,
)
from ioprof.format.run_record.record import Record, is_too_deep, parse
from ioprof.format.run_record.replay_json import CauseGain, ReplayRecord
from ioprof.format.run_record.run_json import AttemptRecord, Failure
from ioprof.format.run_record.storage_json import Storage
from ioprof.format.run_record.summary_upgrade import of_second_schema
from ioprof.format.run_record.verdict_json import Ceilings, Sentence, Verdict
from ioprof.format.run_record.whole_job_json import WholeJob
from ioprof.format.schema import READ_SUMMARY_SCHEMAS, SUMMARY_SCHEMA


def _with_code(value: dict[str, Any]) -> dict[str, Any]:
    """Versions before 2026-11-22 wrote the sentence alone."""
    if "reason_code" not in value and isinstance(reason := value.get("reason"), str):
        return {**value, "reason_code": reason_in(reason)}
    return value


class MissingRanks(Record, frozen=True):
    """Ranks of the job of which nothing was recorded."""

    ranks: tuple[int, ...]
    num_ranks: int
    """How many ranks the job has."""
    why: WhyMissing = WhyMissing.UNKNOWN


class RunSummary(Record, frozen=True):
    """What was recorded: the setting of the run."""

    name: str = "run"
    command: str | None = None
    status: str | None = None
    device: str | None = None
    device_basis: str | None = None
    """`emulated` or `measured`."""
    loader: str | None = None
    dataset: DatasetRecord | None = None
    ranks: int | None = None
    workers: int | None = None
    """Loader processes per rank."""
    batch_size: int | None = None
    """Samples per step and rank."""
    started: str | None = None
    failures: tuple[Failure, ...] = ()
    others_cpu_ratio: float | None = None
    """Share of the CPU time of the busiest host that other programs took."""
    job: JobKind = JobKind.OTHER
    """Whose options an advice names."""
    libraries: tuple[str, ...] = ()
    """Data and training libraries that the job used and that hooks observe, with their versions."""
    loading_rank: int | None = None
    """The rank that loads the batches of all ranks. Null: each loads its own."""
    parallel: str | None = None
    """`data`, `pipeline` (the ranks are stages of the model) or `fsdp` (each has a part of the
    parameters). Null: not known."""
    stages: int | None = None
    """Of a pipeline."""
    microbatches: int | None = None
    """Of a pipeline: parts of a batch that go through the stages one after the other."""
    changed: str | None = None
    """What `ioprof prove` changed in the job, in words. Null: nothing, as in every other run."""
    imported_from: str | None = None
    """The profiler whose files were imported. Null: ioprof recorded the run."""
    missing: MissingRanks | None = None
    """Null: something was recorded of every rank, as far as is known."""
    attempts: tuple[AttemptRecord, ...] = ()
    """Of a job whose ranks were started again; empty: they were not."""

    @classmethod
    def upgrade(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Versions before 2026-11-22 did not write `job`; only the built-in job reads a dataset
        with a manifest.
        """
        if "job" in value:
            return value
        loader = value.get("loader")
        kind = (
            JobKind.TORCH
            if loader == "torch DataLoader"
            else JobKind.BUILT_IN
            if loader is not None
            else JobKind.OTHER
        )
        return {**value, "job": kind}


class CauseDetail(Record, frozen=True):
    """A named part of the time of a cause."""

    name: str
    """What it was: a file or library (`storage`, `page_cache`), a peer of a socket or pipe
    (`storage`), a rank and that rank's own cause (`straggler`; after `bubble` or `message of` where
    it waited for a message, in a pipeline or else), a user's span (`host`, `loader`), waiting for
    kernel launches (`host`), a direction of copies (`h2d`), a step of the loader's work (`loader`),
    another cause (`validation`)."""
    seconds: float
    """Summed over ranks and steps. Parts that ran at the same time in several threads count in
    each."""
    share: float
    """`seconds` over the time of all steps, 0 to 1."""
    code: PartCode | None = None
    """What it is. Null: of a run of before 2026-11-29."""
    subject: str = ""
    """Which one: a path, a thread, a place in the code."""


class CauseShare(Record, frozen=True):
    """How much of the steps' wall time one cause took, over all ranks."""

    cause: str
    seconds: float | None
    """Time charged to the cause, summed over ranks and steps. Null: could not be measured, see
    `reason`. Never 0 for "unknown"."""
    share: float | None
    """`seconds` over the sum of all causes' seconds, 0 to 1; the shares that are not null sum to
    1."""
    basis: str
    """One of `ioprof.format.schema.BASES`."""
    reason: str | None = None
    """Why `seconds` is null, or what it includes that its name does not say."""
    reason_code: Reason | None = None
    """`reason` as a code."""
    reason_facts: dict[str, Any] = field(default_factory=dict)
    """The numbers and names that `reason` has."""
    details: tuple[CauseDetail, ...] = ()
    """Named parts of `seconds`, largest first, at most five. Empty: nothing more is known."""
    workers_share: float | None = None
    """Share of the time in which batches were made, waited for or not, 0 to 1. Null: not a stage of
    making them, or no work for batches was recorded."""
    gain: CauseGain | None = None
    """Null: the run cannot be replayed, see `Summary.replay`."""

    @classmethod
    def upgrade(cls, value: dict[str, Any]) -> dict[str, Any]:
        """See `_with_code`."""
        return _with_code(value)


class Overlap(Record, frozen=True):
    """How much of an activity ran while the accelerator computed."""

    total_s: float | None
    """Time during which at least one such span was open, summed over ranks. Null: none was
    recorded, see `reason`."""
    hidden_s: float | None
    """The part of it during which the same rank's accelerator computed."""
    hidden_ratio: float | None
    """`hidden_s` / `total_s`. High: the activity costs nothing. Low: the accelerator was idle
    meanwhile."""
    basis: str
    reason: str | None = None
    reason_code: Reason | None = None
    """`reason` as a code."""

    @property
    def exposed_s(self) -> float | None:
        """The part of `total_s` during which the accelerator did not compute."""
        return None if self.total_s is None else self.total_s - (self.hidden_s or 0.0)

    @classmethod
    def upgrade(cls, value: dict[str, Any]) -> dict[str, Any]:
        """See `_with_code`."""
        return _with_code(value)


class Throughput(Record, frozen=True, omit_defaults=True):
    """Samples per second of the whole job, all ranks together."""

    samples_per_s: float | None
    """All samples over the time from the first step's start to the last step's end."""
    steady_samples_per_s: float | None
    """The same without the warm-up steps (see `Steps.warmup`) and without the last, which waits for
    all that is queued on the device; with them, where `read_at_start_ratio` is known. Null: too few
    steps."""
    device_samples_per_s: float | None
    """What the devices alone would reach: the emulated device's own rate. Null: not known."""
    basis: str
    read_at_start_ratio: float | None = None
    """Share of the bytes from storage that the batches of the warm-up read, where the later ones
    found in memory most of what they needed: without the warm-up, the rate would be one that
    storage did not deliver. Null: it is not so."""
    tokens_per_s: float | None = None
    """Of the jobs of text: tokens that are no padding, at the steady rate or else at that of all
    steps, by the mean of those batches that were looked at. Padding counts where it is not
    known."""
    padding_ratio: float | None = None
    """Share of the positions that are padding. High: what is computed for them is lost. Null: not
    known."""
    excess_ratio: float | None = None
    """Share of the positions beyond the longest sample of their batch; a part of `padding_ratio`.
    Null: not known."""
    batches_looked_at: int | None = None


class RankTime(Record, frozen=True):
    """The steps of one rank. A cause's seconds are null where it was not measured."""

    rank: int
    steps: int
    wall_s: float
    """Wall time of its steps."""
    compute_s: float | None = None
    exchange_s: float | None = None
    straggler_s: float | None = None
    h2d_s: float | None = None
    storage_s: float | None = None
    page_cache_s: float | None = None
    decode_s: float | None = None
    transform_s: float | None = None
    collate_s: float | None = None
    delivery_s: float | None = None
    loader_s: float | None = None
    validation_s: float | None = None
    checkpoint_s: float | None = None
    gc_s: float | None = None
    host_s: float | None = None

    def seconds(self, cause: str) -> float | None:
        """Time charged to a cause."""
        found: float | None = getattr(self, f"{cause}_s")
        return found


class Steps(Record, frozen=True):
    """The steps of all ranks, and what their time was charged to."""

    count: int
    """Steps of the rank that completed most."""
    warmup: int
    """Leading steps of each rank that the steady rate leaves out: start-up of workers and the first
    fill of their queues."""
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    causes: tuple[CauseShare, ...]
    """All causes in the order of `ioprof.format.schema.CAUSES`."""
    per_rank: tuple[RankTime, ...]
    found_by: StepsBy | None = None
    """By what the steps were found, of a job whose profiler did not mark them: then they are
    derived. Null: they were marked."""
    period_kernels: int | None = None
    """Kernels and copies of a step that was found by its period."""
    straggler_wait_s: dict[str, dict[str, float]] = field(default_factory=dict, name="behind_peers")
    """The time of the cause `straggler`, in seconds summed over the ranks that waited: number of
    the straggler to what made it late, e.g. `{"1": {"decode": 0.8}}`: what it spent more time on
    than the rank that waited since the two met last, or, where that is not known, what it did
    meanwhile. High: look at that rank, not at the network. Empty: no rank waited for another."""


class Demand(Record, frozen=True):
    """What storage must deliver so that the accelerators never wait for it. Null: see `reason`."""

    bytes_per_s: float | None
    """Of the device or the servers: what they delivered per sample in this run, readahead included,
    if the kernel counted that and most came from there; else what the job asked for
    (`is_delivered`)."""
    reads_per_s: float | None
    """Those in the same time: see `mean_bytes_per_s`. Null where `bytes_per_s` is not: most bytes
    were sent by other processes."""
    at_samples_per_s: float | None
    """The rate for which that holds: the devices' own, or the rate reached while computing; see
    `by_loop`."""
    basis: str
    is_delivered: bool = False
    """Whether `bytes_per_s` counts what was delivered, not what was asked for."""
    is_least: bool = False
    """Whether maps were read, of which what was in memory already is not known: then it is at least
    so much."""
    num_reads: int | None = None
    """Reads on which it rests. Null: an older summary."""
    got_bytes_per_s: float | None = None
    """What storage delivered while the steps ran, by the same count. Near `bytes_per_s`: no faster
    storage is needed."""
    num_devices: int | None = None
    """Devices whose demand this is."""
    devices_fed: float | None = None
    """Such devices that `got_bytes_per_s` would feed: at least so many, as long as the job did not
    wait for storage."""
    cores: float | None = None
    """Cores that make batches at that rate, by the workers' time but for waits for storage. Null:
    most of it has no name."""
    mean_bytes_per_s: float | None = None
    """The mean, where `bytes_per_s` is what the tenth of the batches needs that takes most. Null:
    all need about as much."""
    tenths_bytes_per_s: tuple[float, ...] | None = None
    """What each tenth of the batches needs, in order: readahead by early ones serves later ones.
    Null: as `mean_bytes_per_s`."""
    by_loop: bool = False
    """Whether a loop, without its waits for batches, takes longer for a step than its device: the
    rate is then the loop's."""
    reason: Reason | None = None


class Capture(Record, frozen=True):
    """How complete the recording is, and what it cost."""

    events: int
    lost: int
    """Spans that found no room. Steps that ended after the first of a rank or worker are left
    out."""
    coverage_ratio: float | None
    """Bytes seen over bytes that the kernel counted for the same processes. Null: see
    `not_seen`."""
    ns_per_event: float | None
    """Cost of one span, measured on this machine after the first job that was recorded since it
    booted."""
    overhead_ratio: float | None
    """Spans × `ns_per_event` + calls that the capture library saw × `ns_per_call`, over the summed
    time of ranks and workers. A lower bound of what recording cost: what is timed alone stays in
    the processor's caches, and the observers' own Python is not counted. Null: see
    `overhead_reason`."""
    not_seen: tuple[str, ...]
    """One sentence for each thing that the run did and the recording cannot show; made of
    `gaps`."""
    folder: str | None = None
    """In which the capture files were written. Null: an older recording, or an import."""
    ns_per_call: float | None = None
    """What the capture library added to one call that reads or opens, measured likewise. Null: it
    was not loaded, or see `overhead_reason`."""
    overhead_ratio_most: float | None = None
    """An upper estimate, with the cost of a single span and call after other work, whose data is
    then in the caches: the share of the process that has the largest one, as if the job waited for
    it alone; or, if more, what recording computes in the job and beside it over the CPU time of the
    job, for the share of time in which no core was idle."""
    overhead_reason: Reason | None = None
    """Why `overhead_ratio` is null, as a code."""
    import_damage: tuple[str, ...] = ()
    """What was wrong with imported files, and what of them was left out, one sentence each; they
    are in `not_seen` too."""
    native: bool | None = None
    """Whether spans were written by the native library; without it each costs 20 to 40 times as
    much."""
    storage_bytes_kernel: int | None = None
    """Bytes that the kernel fetched from block devices for the processes of the job (`read_bytes`
    of /proc/PID/io), readahead and metadata included. Null: not counted, as in older recordings."""
    storage_bytes_calls: int | None = None
    """Of those, bytes fetched during read calls, readahead included."""
    storage_bytes_faults: int | None = None
    """Of those, bytes fetched by recorded page faults of mapped files."""
    storage_bytes_seen: int | None = None
    """The sum of the two: it is known when they were fetched."""
    storage_coverage_ratio: float | None = None
    """`storage_bytes_seen` over `storage_bytes_kernel`. Low: see `mapped_bytes_untimed`. Null:
    nothing was fetched, or unknown."""
    mapped_bytes_untimed: int | None = None
    """The difference: bytes that came by mapped files, without a recorded fault that says when. A
    small part is metadata. High: time spent waiting for them counts as loader, host or compute."""
    uring_bytes_untimed: int | None = None
    """The same of processes with a ring of io_uring that was not followed, and of what they read
    apart from imports. Null: an older recording."""
    uring_processes: tuple[str, ...] = ()
    """These processes, as they are named in `not_seen`."""
    mapped_bytes_imports: int | None = None
    """Of `mapped_bytes_untimed`, bytes of shared libraries: they came while modules were imported.
    Null: not known."""
    negligible: tuple[str, ...] = ()
    """Sentences like those in `not_seen`, of reads whose bytes are too few to matter. Reports leave
    them out."""
    gaps: tuple[Sentence, ...] = ()
    """What `not_seen` says, as codes and facts."""
    negligible_gaps: tuple[Sentence, ...] = ()
    """The same of `negligible`."""


class CpuEvidence(Record, frozen=True):
    """Whether ranks and workers got the CPU time that they could use, on the host where they got
    least. Null: not known.
    """

    host: str | None = None
    limits: tuple[CpuLimit, ...] = ()
    """What kept them from it; empty: nothing. More workers then only share what there is."""
    cores: int | None = None
    """CPU cores of the host, whoever may use them."""
    rank_cores: int | None = None
    """Cores that at least one of the ranks may use. Fewer than `cores`: an affinity or a cpuset."""
    rank_cpus: str | None = None
    """Their numbers, e.g. `0-3,8`, if all ranks may use the same."""
    worker_cores: int | None = None
    worker_cpus: str | None = None
    quota_cores: float | None = None
    """CPU time per elapsed time that the job's control group may use. Null: no quota."""
    quota_group: str | None = None
    throttled_ratio: float | None = None
    """Share of the quota's periods in which it was used up. High: the quota is the bound."""
    rank_run_delay_ratio: float | None = None
    """Share of the time in which threads of ranks could run that they waited for a core. High: too
    few cores."""
    worker_run_delay_ratio: float | None = None
    rank_waiting_threads: float | None = None
    """Threads of a rank that waited for a core, on average."""
    worker_running_threads: float | None = None
    """Threads of a worker that ran, on average. Low: it waits most of the time, for anything but a
    core."""
    worker_waiting_threads: float | None = None
    runnable_threads: float | None = None
    """Threads of all ranks and workers that ran or could have run, on average. Above the cores:
    they compete."""
    most_runnable_threads: float | None = None
    """The same of the process that had most."""
    most_threads: int | None = None
    """Threads of the process that had most, sleeping ones included."""
    thread_pool: str | None = None
    """The library with the largest thread pool."""
    thread_pool_threads: int | None = None
    beside_processes: int | None = None
    """Other processes of the job that computed: neither ranks nor workers of a loader."""
    beside_programs: tuple[str, ...] = ()
    """The names of their programs, that with most CPU time first."""
    beside_cores: float | None = None
    """Cores that these used, all together, on average."""
    beside_threads: float | None = None
    """Threads of one of them that ran or could have run, on average."""
    job_cores: float | None = None
    """Cores that ranks and workers used, all together, on average."""
    involuntary_switches_per_s: float | None = None
    """Involuntary context switches of main threads. High: more runnable threads than cores."""
    idle_ratio: float | None = None
    """Share of the host's CPU time that was idle. Near 0: no core is free for more workers."""
    others_ratio: float | None = None
    """Share of the host's CPU time that programs other than the job took. High: another recording
    may find idle cores."""
    steal_ratio: float | None = None
    """Share of the host's CPU time that the hypervisor gave to other guests."""


class Clocks(Record, frozen=True):
    """How the hosts' clocks were brought together."""

    method: str
    uncertainty_ns: int | None


class CodeShare(Record, frozen=True):
    """A line of Python, and how much of the steps' time it took in one of the causes that no span
    explains further.

    From samples of stacks: with n samples of N in the cause, the share is uncertain by about the
    square root of n over N.
    """

    cause: str
    """`host`: the rank's thread was in no span; `loader` or `transform`: the worker that the rank
    waited for was there; `start`: the rank's thread before its first step; `workers`: any worker
    that made a batch, whether a step waited for it or not."""
    file: str
    """Of the innermost frame that is neither the standard library's, nor an installed package's,
    nor ioprof's; of the innermost frame, where there is no such frame."""
    line: int
    function: str
    """Its qualified name."""
    samples: int
    seconds: float
    """Time charged to the cause, times the share of its samples; summed over ranks."""
    share: float | None
    """`seconds` over the time of all steps, 0 to 1. Null for `start` and `workers`, which are no
    parts of a step."""
    uncertainty_s: float
    """Standard error of `seconds`."""
    library: str | None = None
    """The innermost function of a library that the line was calling in most of the samples, as
    `function (file)`. Null: none."""
    is_own: bool = True
    """Whether the frame is the user's; false: all frames were those of libraries."""
    group: str | None = None
    """The function with which most of this time could be left out, as `function (file)`: the
    outermost one of the user's below the loop, or below what a worker or a thread runs. Null:
    none, or not known."""
    waits: float | None = None
    """Part of the samples in which their thread was blocked, such as in a sleep, on a lock or for a
    socket, 0 to 1; in the rest it computed, or read. Null: not known."""
    others: float | None = None
    """Part of the samples, 0 to 1, in which another thread or process was at the line, for
    which the job's own thread waited; in `waits` they count as waiting. Null: not known."""
    asks: float | None = None
    """Part of the samples, 0 to 1, in which the thread was blocked until another process of the
    job answered it by a pipe or a socket; in `waits` they count as waiting. Null: not known."""
    basis: str = "derived"

    @property
    def is_of_others(self) -> bool:
        """Whether another thread or process was at the line in most of the samples."""
        return (self.others or 0.0) > 0.5


class DeviceTime(Record, frozen=True):
    """What the devices of an imported run did from the first to the last of their activities whose
    launch is in the files, summed over ranks; the four parts sum to `total_s`.
    """

    total_s: float
    compute_s: float
    """Kernels of computation, and copies within a device."""
    exchange_s: float
    """Kernels of communication, while nothing was computed."""
    copies_s: float
    """Copies from and to the host, while there was neither."""
    idle_s: float


class Summary(Record, frozen=True):
    """What the report says, for people and for machines."""

    run: RunSummary
    throughput: Throughput
    steps: Steps
    overlap: dict[str, Overlap]
    """Keys `h2d`, `storage`, `decode`, `communication`, and `d2h` where copies to the host were
    recorded, which are in `h2d` in older runs."""
    storage: Storage
    demand: Demand
    capture: Capture
    clocks: Clocks
    verdict: Verdict
    schema: str = SUMMARY_SCHEMA
    ledger: Ledger = Ledger()
    unexplained_ratio: float | None = None
    """Of the steps' time, what `host` or `loader` has and no detail or own line names. High: use
    `ioprof.span`. Null: no step."""
    cpu: CpuEvidence | None = None
    """Null: the processes of the job were not sampled."""
    ceilings: Ceilings | None = None
    """Null: the work for batches was not recorded."""
    unexplained: tuple[CodeShare, ...] = ()
    """Lines of Python that took the time of `host`, `loader` and `transform`, the largest of each
    first. Empty: none is known."""
    collectives: CollectiveSources | None = None
    findings: Findings = Findings()
    prediction: EpochPrediction | None = None
    """Null: the run did not ask for one (`--predict-epochs`), or shows too little of it."""
    saves: Saves | None = None
    """Null: no rank wrote a checkpoint, as far as is known."""
    evaluations: tuple[EvaluationRecord, ...] = ()
    """Of the model by the built-in job, in order of time: accuracy and loss."""
    replay: ReplayRecord | None = None
    """Null: no replay was made, as by versions before 2026-11-23."""
    device_time: DeviceTime | None = None
    """Null: the run was not imported, or no activity of a device was in the files."""
    whole_job: WholeJob | None = None
    """Null: all figures are of the whole job. Else all others are of its last part alone, and what
    is known of the rest is here."""

    def to_json(self) -> str:
        """The text of summary.json; the same summary gives the same text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The summary in the text of a summary.json; `RunError` says what is wrong with it."""
        try:
            value = parse(text)
        except (ValueError, RecursionError) as error:
            raise RunError(f"summary.json: cannot be read ({error})") from None
        if (
            not isinstance(value, dict)
            or value.get("schema") not in READ_SUMMARY_SCHEMAS
            or is_too_deep(value)
        ):
            raise RunError(
                "summary.json: not a summary that this version of ioprof reads"
                f" ({', '.join(READ_SUMMARY_SCHEMAS)})"
            )
        try:
            found = cls.of(of_second_schema(value))
            wrong = str(found.problems[0]) if found.problems else None
        except ValueError as error:
            wrong = str(error)
        if wrong:
            raise RunError(f"summary.json: {wrong}; make it again with: ioprof report RUN --json")
        return found
