"""run.json: what is known of a run besides its spans, files and counters.

Every field may be missing: null means "not recorded". Times are nanoseconds since the run's zero
unless a field says otherwise.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self
from zlib import crc32

import msgspec
from msgspec import field

from ioprof.format.run_record.capture_json import CaptureRecord, FaultRecording, Sampling
from ioprof.format.run_record.job_json import (
    ConfigRecord,
    DatasetRecord,
    DeviceRecord,
    DistinctBytes,
    LearningRecord,
    LoadingRecord,
    MemoryLimitRecord,
    NetworkRecord,
    PageCacheRecord,
    StageRecord,
)
from ioprof.format.run_record.loader_json import LoaderRecord
from ioprof.format.run_record.reasons import FailureCode, JobKind, failure_code, signal_in
from ioprof.format.run_record.record import (
    ESSENTIAL,
    MOST_LEVELS,
    Count,
    Integer,
    Record,
    Time,
    is_too_deep,
    parse,
)
from ioprof.format.run_record.whole_job_json import WholeJob
from ioprof.format.schema import READ_RUN_SCHEMAS, RUN_SCHEMA

_UNBOUNDED_NS = 1 << 62


class Failure(Record, frozen=True):
    """What went wrong in one process of the job."""

    rank: Integer | None = None
    """The rank that failed; null: the job as a whole."""
    what: str = "failed"
    """What happened, as the end of a sentence that begins with the rank, e.g.
    `was killed by SIGKILL`."""
    code: FailureCode | None = None
    """What happened, as a code."""
    signal: str | None = None
    """Of a process that was killed, or that lost a loader worker: the signal, e.g. `SIGKILL`."""
    time_ns: Time | None = None
    """When it ended. Null: not known."""
    pid: Integer | None = None
    """The process that failed. Null: not known."""

    @classmethod
    def of_other(cls, value: object) -> dict[str, Any] | None:
        """Other programs may write a text."""
        return {"what": value} if isinstance(value, str) else None

    @classmethod
    def upgrade(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Versions before 2026-11-22 wrote the sentence alone."""
        if "code" not in value and isinstance(what := value.get("what"), str):
            return {**value, "code": failure_code(what), "signal": signal_in(what)}
        return value

    @classmethod
    def from_text(cls, rank: int | None, what: str) -> Self:
        """A failure of which only the message of the process is known."""
        return cls(rank=rank, what=what, code=failure_code(what), signal=signal_in(what))


class HostRecord(Record, frozen=True):
    """A host that took part."""

    name: str | None = None
    cpus: Annotated[Count | None, ESSENTIAL] = None
    """CPU cores that the recording process may use."""
    online_cpus: Count | None = None
    """CPU cores of the host, whoever may use them."""
    memory_bytes: Annotated[Count | None, ESSENTIAL] = None
    kernel: str | None = None
    """Release of the operating system kernel."""
    gpus: tuple[str, ...] = ()
    """Names of its NVIDIA GPUs."""
    others_cpu_ratio: Annotated[float | None, ESSENTIAL] = None
    """Share of the host's CPU time that programs other than the job took while it ran, 0 to 1.
    High: rates depend on them. Null: see `others_cpu_reason`."""
    others_cpu_reason: str | None = None
    killed_for_memory: Count | None = None
    """Processes of the host, of this job or of others, that the kernel killed for lack of memory
    while the job ran (`oom_kill` of /proc/vmstat). Null: the kernel does not count them."""


class ClockAnchor(Record, frozen=True):
    """One reading of a host's wall clock between two readings of its monotonic clock."""

    host: str | None = None
    before_ns: Time | None = None
    """CLOCK_MONOTONIC of the host."""
    wall_ns: Time | None = None
    """CLOCK_REALTIME of the host, since 1970."""
    after_ns: Time | None = None
    """CLOCK_MONOTONIC of the host."""
    offset_ns: Time | None = None
    """Wall clock less monotonic clock."""
    uncertainty_ns: Count | None = None


class ClockTie(Record, frozen=True):
    """How one host's clock was aligned with the run's."""

    clock: str | None = None
    """The host."""
    to: str | None = None
    """The host whose clock is the run's."""
    offset_ns: Time | None = None
    """What is added to its times, at `reference_ns`."""
    reference_ns: Time | None = None
    drift_ppm: float | None = None
    """By how much the offset grows, in millionths of the time since `reference_ns`."""
    uncertainty_ns: Count | None = None
    method: str | None = None
    collectives: Count | None = None
    """Collectives on which the alignment rests."""
    messages: Count | None = None
    """Messages between the hosts on which it rests."""


class ClockMessages(Record, frozen=True):
    """Messages that rank 0 exchanged with another clock while the job ran."""

    by: str | None = None
    """The host of rank 0."""
    host: str | None = None
    """The host of the other clock, and the facts by which that is known."""
    kernel: str | None = None
    monotonic_shift_ns: Time | None = None
    sent_ns: tuple[Time, ...] = ()
    """Of each message when it was sent, CLOCK_MONOTONIC of rank 0's host."""
    read_ns: tuple[Time, ...] = ()
    """What the other clock showed in between."""
    received_ns: tuple[Time, ...] = ()
    """When the answer had come, by the first clock."""

    @property
    def times(self) -> list[tuple[int, int, int]]:
        """Sent, read and received of each message."""
        return list(zip(self.sent_ns, self.read_ns, self.received_ns, strict=False))


class ClockRecord(Record, frozen=True):
    """How all times of the run were brought onto one clock."""

    method: Annotated[str | None, ESSENTIAL] = None
    uncertainty_ns: Annotated[Integer | None, ESSENTIAL] = None
    """How far the times of two processes may be apart. Null: not known."""
    kernel: str | None = None
    """Boot id of the recording host."""
    monotonic_shift_ns: Time | None = None
    """Offset of CLOCK_MONOTONIC in a time namespace (man 7 time_namespaces)."""
    wall_error_ns: Time | None = None
    """How far the wall clock may have been wrong during the run, as its daemon (chrony, ntpd)
    reported to the kernel."""
    zero_monotonic_ns: Time | None = None
    """CLOCK_MONOTONIC of the run's zero on the first host. Null: no span."""
    anchors: tuple[ClockAnchor, ...] = ()
    ties: tuple[ClockTie, ...] = ()
    """One for each clock but the first; empty on one host."""
    messages: tuple[ClockMessages, ...] = ()
    """Of a part of a run: what rank 0 found of the clocks of other hosts, in the part of its
    host."""


class ReadCounters(Record, frozen=True):
    """What the capture library counted in a process, and what the kernel counted (proc io counters,
    man 5 proc_pid_io).
    """

    spans: Count | None = None
    calls: Count | None = None
    bytes: Count | None = None
    short_calls: Count | None = None
    """Calls that were timed without a span of their own."""
    short_ns: Count | None = None
    io_rchar: Count | None = None
    """`rchar` of /proc/PID/io when both were last compared. Null: never."""
    io_syscr: Count | None = None
    io_read_bytes: Count | None = None
    seen_bytes: Count | None = None
    """Bytes that the library had seen at that moment."""
    fetched_bytes: Count | None = None
    """Bytes that the kernel fetched from storage during the calls that the library saw, readahead
    included; comparable with `io_read_bytes`. What is missing there was fetched by page faults of
    mapped files, or for metadata. Null: an older recording."""
    seen_calls: Count | None = None
    noted: tuple[str, ...] = ()
    """What the library noticed and cannot see: words of `ioprof.format.schema.NOTED`."""

    @property
    def mapped_bytes(self) -> int | None:
        """Bytes that the kernel fetched outside of the calls that the library saw: by page faults
        of mapped files, and some for metadata. None: not counted. A counter beyond int64 is a
        negative one, which a damaged file may hold.
        """
        if (
            self.io_read_bytes is None
            or self.fetched_bytes is None
            or self.io_read_bytes >= 1 << 63
        ):
            return None
        return max(0, self.io_read_bytes - self.fetched_bytes)


class KeptData(Record, frozen=True):
    """What the dataset of a loader worker kept in its process from its first batch on, where that
    grew most.
    """

    name: str = ""
    """The attribute, as `Images.decoded`."""
    entries: Count = 0
    """That were added."""
    samples: Count = 0
    """Samples that the worker made meanwhile."""
    is_full: bool = False
    """It is a cache of limited size that drops entries."""
    repeated: Count = 0
    """Batches that added nothing, and `repeated_ns`, the time that these took."""
    repeated_ns: Count = 0
    new: Count = 0
    """Batches that added something, and `new_ns`, their time."""
    new_ns: Count = 0


class ProcessRecord(Record, frozen=True):
    """A process that recorded spans or reads."""

    host: str | None = None
    pid: Annotated[Integer | None, ESSENTIAL] = None
    parent_pid: int | None = None
    role: str | None = None
    """One of `ioprof.format.schema.ROLES`."""
    rank: Annotated[Integer | None, ESSENTIAL] = None
    worker: Annotated[Integer | None, ESSENTIAL] = None
    """Number of the loader worker within its rank. Null: it is none."""
    closed: bool | None = None
    """Whether it ended its recording itself; a process that is killed does not."""
    lost: Count | None = None
    """Spans that found no room."""
    spans: Count | None = None
    first_ns: Time | None = None
    last_ns: Time | None = None
    reads: ReadCounters | None = None
    program: str | None = None
    """The name of its program as in the kernel, at most 15 bytes. Null: it was not sampled."""
    cpus_allowed: str | None = None
    """The CPUs that it could use when it was last sampled, e.g. `0-3,8`. Null: it was not
    sampled."""
    thread_pools: dict[str, Count] = field(default_factory=dict)
    """Threads that its libraries use at most, as they say themselves: library to number."""
    hooks_ns: Count = 0
    """What hooks of training steps took, estimated from one of 17 that was timed, ns. 0: there were
    none, or the process was killed."""
    kept_data: KeptData | None = None
    """Of a loader worker: data that its dataset kept, which ended with it. Null: none was seen."""
    killed_in_batch: Count | None = None
    """Number of the batch that it was making when it was killed. Null: it was not killed, or made
    none."""
    attempt: Count = 0
    """How often the ranks of the job had been started again before; see `AttemptRecord`."""


class CommandTimes(Record, frozen=True):
    """When the recorded command was started, and when it had ended.

    Relative to the run's zero; on CLOCK_MONOTONIC of the recording host until the spool is read.
    """

    start_ns: Time | None = None
    end_ns: Time | None = None


class SourceRecord(Record, frozen=True):
    """The source that a command runs, as it was when the command was started."""

    repository: str | None = None
    """Top folder of the git repository of the command's script, else of its working directory.
    Null: there is none."""
    branch: str | None = None
    """Null: none is checked out."""
    commit: str | None = None
    changed: Count | None = None
    """Tracked files that differ from the commit. Null: not known."""
    files: dict[str, str | None] = field(default_factory=dict)
    """Of these the first twenty, and the script of a command without a repository: name to the
    first digits of the SHA-256 of its content; null: it was removed, or is large."""


class UsedStorage(Record, frozen=True):
    """A device or file system that files of the run lie on."""

    host: str | None = None
    device: str | None = None
    file_system: str | None = None
    mount_point: str | None = None
    kind: str | None = None
    """`local`, `shared`, `memory` or `unknown`."""
    delivered: tuple[str, ...] = ()
    """Sampled series whose growth is what it delivered."""
    reason: str | None = None
    """Why there is no such series."""
    facts: Any = None
    """All that is known of the path, as `ioprof inspect` prints it."""


class PartNumber(Record, frozen=True):
    """Which part of a run this is, where a launcher started several recordings of one job."""

    number: Count | None = None
    num_parts: Count | None = field(default=None, name="of")
    """How many parts there are."""
    job: str | None = None
    """What distinguishes this start of the job from others."""


_JOB_KINDS: Final = {
    "torch dataloader": JobKind.TORCH,
    "torchdata statefuldataloader": JobKind.TORCHDATA,
    "dali": JobKind.DALI,
    "spdl pipeline": JobKind.SPDL,
    "ray data": JobKind.RAY,
    "multiprocessing pool": JobKind.POOL,
    "process pool": JobKind.PROCESS_POOL,
}
"""By the name of the loader in lower case."""
_LIBRARY_KINDS: Final = {
    "webdataset": JobKind.WEBDATASET,
    "litdata": JobKind.LITDATA,
    "streaming": JobKind.STREAMING,
    "datasets": JobKind.HF_DATASETS,
    "tfrecord": JobKind.TFRECORD,
}
"""By the name of a library that a torch DataLoader was used with."""


class AttemptRecord(Record, frozen=True):
    """One attempt of a job whose launcher started all ranks again, as torchrun --max-restarts does.

    The numbers of its steps and batches go on where those of the attempt before ended, so that no
    two attempts have one in common.
    """

    first_step: Count = 0
    first_batch: Count = 0
    num_steps: Count = 0
    """Of the rank that made most."""
    start_ns: Time | None = None
    """When the first of its ranks was started."""
    end_ns: Time | None = None
    """When the last of its ranks last recorded anything."""
    failure: Failure | None = None
    """What ended it. Null: it is the last one, or that is not known."""


class PartRecord(Record, frozen=True):
    """What one part of a gathered run says of itself."""

    name: str | None = None
    command: str | None = None
    started: str | None = None
    status: str | None = None
    exit_code: int | None = None
    part: PartNumber | None = None
    config: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the run's."""
    versions: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    faults: FaultRecording | None = None
    samplers: Sampling | None = None


class StoredFile(Record, frozen=True):
    """A file of a run folder as it was when it was written."""

    bytes: Count | None = None
    crc32: str | None = None
    """Checksum of its content as in gzip (RFC 1952), eight hexadecimal digits."""


RUN_FILE: Final = "run.json"


def check_of(value: Mapping[str, Any]) -> str:
    """The checksum of the object in a run.json: CRC-32 of its JSON text without `check`, keys
    sorted, without white space.
    """
    content = {key: inner for key, inner in value.items() if key != "check"}
    return f"{crc32(json.dumps(content, sort_keys=True, separators=(',', ':')).encode()):08x}"


class RunRecord(Record, frozen=True):
    """run.json."""

    schema: str = RUN_SCHEMA
    name: Annotated[str | None, ESSENTIAL] = None
    status: Annotated[str | None, ESSENTIAL] = None
    """`running` (a snapshot of a job that went on), `complete`, `interrupted` or `failed`."""
    failures: Annotated[tuple[Failure, ...], ESSENTIAL] = ()
    command: str | None = None
    """The command line, quoted for a shell."""
    directory: str | None = None
    """Working directory of the command. Null: not known."""
    source: SourceRecord | None = None
    """Null: no script and no repository, the built-in job, or not known."""
    started: Annotated[str | None, ESSENTIAL] = None
    """Wall time, UTC, ISO 8601."""
    hosts: Annotated[tuple[HostRecord, ...], ESSENTIAL] = ()
    versions: dict[str, str | None] = field(default_factory=dict)
    """Package to version; null: not installed."""
    environment: dict[str, str] = field(default_factory=dict)
    """The few variables that a run keeps; others may hold secrets."""
    clocks: Annotated[ClockRecord, ESSENTIAL] = ClockRecord()
    capture: Annotated[CaptureRecord, ESSENTIAL] = CaptureRecord()
    config: Annotated[ConfigRecord, ESSENTIAL] = ConfigRecord()
    loaders: tuple[LoaderRecord, ...] = ()
    """The DataLoaders of torch that the job used, in order of their first batches, of one process
    after the other."""
    device: Annotated[DeviceRecord | None, ESSENTIAL] = None
    dataset: Annotated[DatasetRecord | None, ESSENTIAL] = None
    own_place: DistinctBytes | None = None
    limit: MemoryLimitRecord | None = None
    cache: PageCacheRecord | None = None
    stage: StageRecord | None = None
    learning: LearningRecord | None = None
    network: NetworkRecord | None = None
    """Null: it was not measured; `ioprof run --probe-network` does it before the first step."""
    loading: LoadingRecord | None = None
    exit_code: int | None = None
    """Of the recorded command; 128 and more: ended by a signal. Null: not known, or the built-in
    job."""
    times: CommandTimes | None = None
    part: PartNumber | None = None
    parts: tuple[PartRecord, ...] = ()
    processes: Annotated[tuple[ProcessRecord, ...], ESSENTIAL] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    """Of a job whose ranks were started again; empty: they were not."""
    storage: tuple[UsedStorage, ...] = ()
    whole_job: WholeJob | None = None
    """Null: the run is all of the job. Else its spans are those of the last part of the job
    (`--keep`), or it is a snapshot."""
    files: dict[str, StoredFile] = field(default_factory=dict)
    """The other files of the folder by name. Empty: a version before 2026-11-28 wrote it. Of the
    folder, not of the run: a `Trace` has none."""
    check: str | None = None
    """Checksum of all other keys, see `check_of`. It tells damage and changes by hand, not
    forgery."""

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The record in the text of a run.json; for values that do not fit see `problems`.

        Raises ValueError for what is no run at all.
        """
        try:
            value = parse(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"cannot be read ({error})") from None
        if not isinstance(value, dict) or value.get("schema") not in READ_RUN_SCHEMAS:
            raise ValueError(
                f"not a run that this version of ioprof reads ({', '.join(READ_RUN_SCHEMAS)})"
            )
        if is_too_deep(value):
            raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
        run = cls.of(value)
        is_checked = value.get("check") is not None or bool(value.get("files"))
        is_changed = is_checked and value.get("check") != check_of(value)
        return (
            run.replace(kept=msgspec.structs.replace(run.kept, damaged=(RUN_FILE,)))
            if is_changed
            else run
        )

    def to_json(self) -> str:
        """The text of run.json, without checksums."""
        return json.dumps({"schema": RUN_SCHEMA, **self.to_dict()}, indent=1)

    def to_checked_json(self, files: Mapping[str, StoredFile]) -> str:
        """The text of run.json, with the checksums of these files and its own."""
        value = {"schema": RUN_SCHEMA, **self.replace(files=dict(files), check=None).to_dict()}
        return json.dumps({**value, "check": check_of(value)}, indent=1)

    def of_any_folder(self, damaged: tuple[str, ...] = ()) -> Self:
        """The record without what run.json says of its folder; `damaged` files of that are
        noted.
        """
        keys = (
            None
            if self.kept.keys is None
            else tuple(key for key in self.kept.keys if key not in ("files", "check"))
        )
        kept = msgspec.structs.replace(self.kept, keys=keys, damaged=(*self.kept.damaged, *damaged))
        return self.replace(files={}, check=None, kept=kept)

    @property
    def job_kind(self) -> JobKind:
        """What was recorded, by the settings that it left: only the built-in job records how many
        steps it was asked for.
        """
        loader = (self.config.loader or "").lower()
        if self.config.steps is not None:
            return JobKind.BUILT_IN
        kind = _JOB_KINDS.get(loader, JobKind.OTHER)
        if kind is JobKind.TORCH:  # the library whose datasets it loads from has options of its own
            used = {name.split(" ")[0] for name in self.config.libraries}
            return next(
                (of_library for name, of_library in _LIBRARY_KINDS.items() if name in used), kind
            )
        return kind

    @property
    def is_of_first_schema(self) -> bool:
        """Whether a version of ioprof recorded the run that knew no collections, samplers,
        validation and checkpoints.
        """
        return self.schema == READ_RUN_SCHEMAS[0]

    @property
    def device_name(self) -> str | None:
        """The accelerator as it was asked for, or else its name."""
        return self.config.device or (self.device.name if self.device else None)

    @property
    def is_emulated(self) -> bool:
        """Whether the accelerator was a clock: every number that rests on its time is
        `emulated`.
        """
        return (self.device is not None and self.device.basis == "emulated") or (
            self.config.device or ""
        ).startswith("emulated")

    @property
    def device_basis(self) -> str:
        """How the device's times came to be: `emulated` or `measured`."""
        return "emulated" if self.is_emulated else "measured"

    @property
    def device_samples_per_s(self) -> float | None:
        """Rate of one device; known of emulated ones only."""
        found = self.device.samples_per_s if self.device and self.is_emulated else None
        return found if found is not None and found > 0 else None

    @property
    def cpus(self) -> int | None:
        """CPU cores of all hosts."""
        return sum(host.cpus or 0 for host in self.hosts) or None

    @property
    def memory_bytes(self) -> int | None:
        """Memory of all hosts."""
        return sum(host.memory_bytes or 0 for host in self.hosts) or None

    @property
    def page_cache_room_bytes(self) -> int | None:
        """What a page cache may take: the memory of all hosts, or what the job's processes left of
        its memory limit.
        """
        if self.limit is None or self.limit.asked_bytes is None:
            return self.memory_bytes
        own_bytes = (self.limit.peak_bytes or 0) - (self.limit.page_cache_bytes or 0)
        return max(0, self.limit.asked_bytes - max(0, own_bytes))

    @property
    def reads_captured(self) -> bool:
        """Whether reads were captured."""
        return self.capture.reads is not False

    @property
    def uncertainty_ns(self) -> int:
        """How far the clocks of two ranks may be apart. Longer than any run where clocks were
        aligned and no bound is known.
        """
        known = self.clocks.uncertainty_ns
        if known is not None and known >= 0:
            return known
        return _UNBOUNDED_NS if self.clocks.ties else 0
