"""`capture` in run.json: what was recorded by what, at what cost, and what could not be
recorded.
"""

from typing import Annotated, Any

from msgspec import field

from ioprof.format.run_record.reasons import Reason, StepsBy, file_systems_in
from ioprof.format.run_record.record import ESSENTIAL, Count, Integer, Number, Record, Time


class Sampling(Record, frozen=True):
    """What the sampler of host counters did and what it cost."""

    period_s: Number | None = None
    longest_period_s: Number | None = None
    """The longest time between two samples."""
    samples: Count | None = None
    lost: Count | None = None
    """Samples that found no room."""
    cpu_s: Number | None = None
    wall_s: Number | None = None
    notes: tuple[str, ...] = ()
    """What was not sampled and why, one sentence each."""
    cost_ratio: Number | None = None
    """`cpu_s` / `wall_s`."""
    reason: str | None = None
    """Why nothing was sampled."""


class StackSampling(Sampling, frozen=True):
    """What the sampler of Python stacks did and what it cost.

    Sampling is limited to 0.1 % of the CPUs that the job may use: with many threads the period is
    longer.
    """

    processes: Count | None = None
    """Processes whose main threads were sampled."""
    torn: Count | None = None
    """Samples that were dropped because the stack changed while it was read."""


class FaultRecording(Record, frozen=True):
    """How page faults were recorded, as the recorder saw it."""

    by: str | None = None
    """`perf events`; null: not recorded, see `reason`."""
    reason: str | None = None
    path: str | None = None
    cpus: Count | None = None
    """CPUs whose events were recorded."""
    kernel: bool | None = None
    """Whether faults within system calls were seen."""
    faults: Count | None = None
    """As the kernel counted them."""
    lost: Count | None = None
    switches: Count | None = None
    """Context switches that were recorded; each cost the job time."""
    switches_watched_s: Number | None = None
    minor_watched_s: Number | None = None
    bytes: Count | None = None
    copier_cpu_s: Number | None = None
    error: str | None = None
    """Why the file is not complete."""


class FaultRecord(Record, frozen=True):
    """One file of recorded page faults, as it was read."""

    cpus: Count | None = None
    kernel: bool | None = None
    closed: bool | None = None
    """Whether its recorder ended it."""
    counted: Count | None = None
    """Major faults as the kernel counted them."""
    lost: Count | None = None
    faults: Count | None = None
    """Major faults in the file."""
    anonymous: Count | None = None
    """Of memory that belongs to no file."""
    unmapped: Count | None = None
    """In no known mapping."""
    unblocked: Count | None = None
    """During which the thread kept its core; they count as 0 s."""
    unwatched: Count | None = None
    """While context switches were not recorded; their length is not known and counts as 0 s."""
    own: Count | None = None
    """In files of ioprof."""
    minor: Count | None = None
    """Minor faults that waited: for pages that readahead was fetching."""
    minor_watched_ratio: Number | None = None
    """Share of the major faults in files at whose time minor faults were recorded too. Low: waits
    for readahead are missing. Null: no such fault, or an older recording."""


class SampledSeries(Record, frozen=True):
    """The sampled counters, as they were read."""

    notes: tuple[str, ...] = ()
    """What was not sampled and why, one sentence each."""
    damaged: Count | None = None
    """Rows that could not be read."""
    lost: Count | None = None
    unsampled: dict[str, str] = field(default_factory=dict)
    """By file system whose counters could not be read: the note that says why."""

    @classmethod
    def upgrade(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Samplers write notes alone."""
        notes = value.get("notes")
        if "unsampled" in value or not isinstance(notes, list | tuple):
            return value
        found = {
            name: note
            for note in reversed(notes)
            if isinstance(note, str)
            for name in file_systems_in(note)
        }
        return {**value, "unsampled": found} if found else value


class UnseenProcess(Record, frozen=True):
    """A process that ran a program into which the capture library was not loaded, or which could
    not write what it recorded.
    """

    host: str | None = None
    pid: Integer | None = None
    name: str = "?"
    sees_spool: bool = True
    """False: the library may have been loaded, but the folder of the recording was not there for
    the process."""


class Unobserved(Record, frozen=True):
    """A hook that could not be installed."""

    unobserved: str = "?"
    """What it would have observed."""
    why: str | None = None


class Damage(Record, frozen=True):
    """A file of the recording that could not be read, or not completely."""

    file: str = "?"
    what: str = "?"


class GpuNote(Record, frozen=True):
    """Why a process has no more windows than it has."""

    host: str | None = None
    pid: Integer | None = None
    reasons: dict[str, int] = field(default_factory=dict)
    """Sentence to how often that happened."""


class GpuWindow(Record, frozen=True):
    """A time in which the GPU of a process was recorded."""

    file: str | None = None
    host: str | None = None
    pid: Integer | None = None
    rank: Integer | None = None
    window: Count | None = None
    """Its number within the process."""
    start_ns: Time | None = None
    end_ns: Time | None = None
    """When the device had done all that was launched. Null: not known."""
    first_step: Count | None = None
    """First step that lies completely within the window."""
    last_step: Count | None = None
    spans: Count | None = None
    left_out: dict[str, Count] = field(default_factory=dict)
    """Records with impossible times: sentence to how many."""
    unrecorded_launches: Count | None = None
    """Launches of kernels of which Kineto has no record."""
    devices: tuple[Any, ...] = ()
    """What Kineto says of the devices."""
    cost_ns: Count | None = None
    """Time by which beginning, ending and writing the window delayed the job."""
    loop_waited_ns: Count | None = None
    """Time in which the thread of the steps waited for the device, in the steps of the window.
    Null: not known."""
    uncertainty_ns: Count | None = None
    ended_by: str | None = None
    launched_ns: Time | None = None
    """Of an imported run: when the first activity of the device began whose launch is in the file;
    the first one, where no launch is."""


class GpuCapture(Record, frozen=True):
    """What was recorded of the GPUs."""

    windows: tuple[GpuWindow, ...] = ()
    notes: tuple[GpuNote, ...] = ()


class CollectiveCapture(Record, frozen=True):
    """What the NCCL profiler plugin recorded in one process, from communicators to the end of their
    operations.
    """

    host: str | None = None
    pid: Integer | None = None
    rank: Integer | None = None
    api: Count | None = None
    """Version of the profiler interface that NCCL chose."""
    operations: Count | None = None
    """Collectives, sends and receives that were enqueued."""
    by_gpu_timer: Count | None = None
    """Of these, timed by the GPU."""
    by_host: Count | None = None
    """Timed by when the host saw their kernel begin and end, which is some microseconds late."""
    by_network: Count | None = None
    """Timed by their network transfers."""
    without_times: Count | None = None
    """Only the enqueue is known; they have no span."""
    by_copy_engine: Count | None = None
    """By copy engines, of which NCCL reports only the enqueue."""
    captured: Count | None = None
    """Launched by a CUDA graph."""
    seen_by_others: Count | None = None
    """Recorded by Kineto or by the job itself too, which count instead."""
    unended: Count | None = None
    """Had begun and not ended when the recording of the process ended. Their spans end then."""
    unended_names: tuple[str, ...] = ()
    """Of the first of these, with their steps."""
    lost: Count | None = None
    """Records for which there was no room."""
    untracked: Count | None = None
    """Operations of which nothing is known, because too many were in progress or there were too
    many communicators."""


class CollectiveSources(Record, frozen=True):
    """How operations of NCCL were recorded. Null: its profiler plugin recorded none."""

    operations: int
    """Collectives, sends and receives that the plugin saw being enqueued, on all ranks."""
    by_gpu_timer: int
    """Of these, timed by the GPU."""
    by_host: int
    """Timed by when the host saw their kernel begin and end: some microseconds late."""
    by_network: int
    """Timed by their network transfers: from the first data of this rank to the last transfer."""
    without_times: int
    """Only the enqueue is known."""
    seen_by_others: int
    """Of those with times, seen by Kineto or the job itself too, whose spans count instead."""
    other_spans: int
    """Spans of kind `comm` on a device by such other means."""
    apis: tuple[int, ...] = ()
    """Versions of NCCL's profiler interface."""


class CaptureRecord(Record, frozen=True):
    """What was recorded by what, at what cost, and what could not be recorded."""

    folder: str | None = None
    """In which the folder with the capture files was, while the job ran."""
    native: bool | None = None
    """Whether spans were written by the native library."""
    library: bool | None = None
    """Whether the capture library was loaded into the job's processes."""
    hooks: bool | None = None
    """Whether Python hooks observed the job's training loop and loader."""
    reads: bool | None = None
    """Whether reads were captured. Null counts as true."""
    reads_by: str | None = None
    """Who recorded reads, if not all of them were seen."""
    reads_reason: str | None = None
    """Why reads were not captured."""
    ns_per_span: Annotated[float | None, ESSENTIAL] = None
    """Cost of one span on this machine: the lower of two medians, measured after the first job that
    was recorded since it booted. Null: see `cost_reason`; never 0."""
    ns_per_call: Annotated[float | None, ESSENTIAL] = None
    """What the capture library added to one call that reads or opens, measured likewise. Null
    without `cost_reason`: it was not loaded."""
    ns_per_cold_span: float | None = None
    """The same of a single span after other work, whose data the processor's caches then hold."""
    ns_per_cold_call: float | None = None
    ns_per_process: float | None = None
    """By how much a small program takes longer that the capture library is loaded into. Null: not
    known."""
    cost_reason: Reason | None = None
    """Why a cost is null, as a code."""
    samplers: Sampling | None = None
    faults: FaultRecording | None = None
    fault_records: tuple[FaultRecord, ...] = ()
    sampled: SampledSeries | None = None
    unseen_processes: tuple[UnseenProcess, ...] = ()
    unobserved: tuple[Unobserved, ...] = ()
    damaged: tuple[Damage, ...] = ()
    gpu: GpuCapture | None = None
    stacks: StackSampling | None = None
    collectives: tuple[CollectiveCapture, ...] = ()
    """What was recorded of NCCL. Empty: no process loaded the plugin."""
    collectives_reason: Reason | None = None
    """Why NCCL was not told of the plugin, as a code."""
    imported_from: str | None = None
    """The profiler that recorded the run, if it was imported from that one's files. Null: ioprof
    recorded it."""
    steps_by: StepsBy | None = None
    """By what the steps of an imported run were found. Null: its profiler marked them."""
    period_kernels: Count | None = None
    """Kernels and copies of a step that was found by its period."""
