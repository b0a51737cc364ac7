"""Why a number is missing, or what it includes that its name does not say: codes, and a sentence
for each.

Code compares codes. Sentences are for people; those that carry numbers are in the catalogue.
"""

import re
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why a cause, an overlap or a prediction has no number, or what a number includes."""

    READS_NOT_CAPTURED = "reads_not_captured"
    SOURCES_UNKNOWN = "sources_unknown"
    NO_WAIT = "no_wait"
    NO_FETCH = "no_fetch"
    NO_COMPUTE = "no_compute"
    NO_COPY = "no_copy"
    NO_EXCHANGE = "no_exchange"
    NO_STEP = "no_step"
    NO_STEP_IN_GPU_WINDOW = "no_step_in_gpu_window"
    NO_COPY_OCCURRED = "no_copy_occurred"
    NO_STORAGE_READ = "no_storage_read"
    NO_DECODE = "no_decode"
    NO_EXCHANGE_OCCURRED = "no_exchange_occurred"
    NOT_DISTINGUISHED = "not_distinguished"
    INCLUDES_STRAGGLER_WAIT = "includes_straggler_wait"
    INCLUDES_UNKNOWN_SOURCES = "includes_unknown_sources"
    INCLUDES_UNMEASURED = "includes_unmeasured"
    INCLUDES_PAGEABLE_COPIES = "includes_pageable_copies"
    INCLUDES_THREADS_BY_TIME = "includes_threads_by_time"
    THREADS_MAY_BE_AWAITED = "threads_may_be_awaited"
    NO_EPOCH = "no_epoch"
    NO_LATER_EPOCH = "no_later_epoch"
    NO_SHARED_READ = "no_shared_read"
    NO_WORKER_TIME = "no_worker_time"
    NO_GAIN = "no_gain"
    COST_UNRESOLVED = "cost_unresolved"
    MAY_BE_HIDDEN = "may_be_hidden"
    WITHOUT_LOCK_WAITS = "without_lock_waits"
    NO_DEVICE_RATE = "no_device_rate"
    NO_BATCH_SIZE = "no_batch_size"
    TOO_FEW_READS = "too_few_reads"
    READS_OF_THREADS = "reads_of_threads"
    BY_MODE = "by_mode"
    NCCL_PLUGIN_OF_JOB = "nccl_plugin_of_job"
    NCCL_SWITCHED_OFF = "nccl_switched_off"
    NCCL_PLUGIN_NOT_BUILT = "nccl_plugin_not_built"
    NCCL_PLUGIN_PATH_TOO_LONG = "nccl_plugin_path_too_long"

    @property
    def text(self) -> str:
        """The sentence of the code; of a code whose sentence carries numbers, the sentence without
        them.
        """
        return _TEXTS[self]

    @property
    def time_is_in(self) -> str | None:
        """The cause that the time of what was not measured is charged to; None: it is not charged,
        or to several.
        """
        return _TIME_IS_IN.get(self)

    NOT_OF_THIS_PROFILER = "not_of_this_profiler"
    COST_OF_OTHER_PROFILER = "cost_of_other_profiler"


_TEXTS: Final = {
    Reason.READS_NOT_CAPTURED: "reads were not captured; their time is in loader",
    Reason.SOURCES_UNKNOWN: (
        "cache reads could not be distinguished from storage reads; included in storage"
    ),
    Reason.NO_WAIT: "no wait for a batch was recorded; its time is in host",
    Reason.NO_FETCH: "the work of the loader's workers was not recorded; its time is in loader",
    Reason.NO_COMPUTE: (
        "no activity of the accelerator was recorded; its time is in the other causes"
    ),
    Reason.NO_COPY: "no copy to the device was recorded; its time is in host",
    Reason.NO_EXCHANGE: "no gradient exchange was recorded; its time is in host",
    Reason.NO_STEP: "no step was completed",
    Reason.NO_STEP_IN_GPU_WINDOW: (
        "no step lies completely within the time in which the GPU was recorded"
    ),
    Reason.NO_COPY_OCCURRED: "nothing was copied to or from a device",
    Reason.NO_STORAGE_READ: "no read from storage was recorded",
    Reason.NO_DECODE: "no decoding was recorded",
    Reason.NO_EXCHANGE_OCCURRED: "no gradient exchange was recorded",
    Reason.NOT_DISTINGUISHED: (
        "not distinguished by the version that recorded this run; its time is in the other causes"
    ),
    Reason.INCLUDES_STRAGGLER_WAIT: "includes waiting for slower ranks",
    Reason.INCLUDES_UNKNOWN_SOURCES: "includes reads of unknown origin",
    Reason.INCLUDES_UNMEASURED: "includes causes that could not be measured",
    Reason.INCLUDES_PAGEABLE_COPIES: (
        "includes copies from pageable memory, which cannot overlap with compute"
    ),
    Reason.INCLUDES_THREADS_BY_TIME: (
        "includes what threads of the training process did meanwhile; that the rank waited for "
        "them is derived from the times alone"
    ),
    Reason.THREADS_MAY_BE_AWAITED: (
        "threads of the training process read or decoded meanwhile; whether the rank waited for "
        "them is not known"
    ),
    Reason.NO_EPOCH: "no epoch was completed",
    Reason.NO_LATER_EPOCH: "no epoch after the first was completed",
    Reason.NO_SHARED_READ: "no read of the shared path was sampled",
    Reason.NO_WORKER_TIME: "the time of the loader's workers was not recorded",
    Reason.NO_GAIN: "an epoch on the copy is no faster: the job does not wait for storage",
    Reason.NOT_OF_THIS_PROFILER: (
        "the profiler whose files were imported does not record it; its time is in the other causes"
    ),
    Reason.COST_OF_OTHER_PROFILER: "another profiler recorded the run",
    Reason.COST_UNRESOLVED: (
        "it is measured after the first recording on a machine, unless other programs interrupt"
        " that"
    ),
    Reason.NO_DEVICE_RATE: "the devices' rate is not known, since no computation was recorded",
    Reason.NO_BATCH_SIZE: (
        "the devices' rate in samples is not known, since no loader told how many samples a step"
        " takes"
    ),
    Reason.TOO_FEW_READS: "too few reads made batches to say what others would need",
    Reason.READS_OF_THREADS: (
        "threads of the training process read data during its steps, and whether for batches is not"
        " known"
    ),
    Reason.MAY_BE_HIDDEN: (
        "the accelerator's computation was not recorded, and may have hidden part of this"
    ),
    Reason.WITHOUT_LOCK_WAITS: "waits for the interpreter lock meanwhile are in host",
    Reason.BY_MODE: (
        "derived from the model's mode: forward passes in evaluation mode without gradients, with"
        " no loader"
    ),
    Reason.NCCL_PLUGIN_OF_JOB: (
        "the environment names another plugin in NCCL_PROFILER_PLUGIN, and NCCL loads only one"
    ),
    Reason.NCCL_SWITCHED_OFF: "it is switched on by IOPROF_NCCL=on",
    Reason.NCCL_PLUGIN_NOT_BUILT: (
        "the plugin for NCCL is not built: install a C compiler and reinstall"
    ),
    Reason.NCCL_PLUGIN_PATH_TOO_LONG: (
        "ioprof is installed in a folder whose path is too long for NCCL_PROFILER_PLUGIN"
    ),
}
_TIME_IS_IN: Final = {
    Reason.READS_NOT_CAPTURED: "loader",
    Reason.NO_FETCH: "loader",
    Reason.SOURCES_UNKNOWN: "storage",
    Reason.NO_WAIT: "host",
    Reason.NO_COPY: "host",
    Reason.NO_EXCHANGE: "host",
}


class NoGain(StrEnum):
    """Why an advice has no predicted gain."""

    NOT_REPLAYED = "not_replayed"
    """The run cannot be replayed."""
    BASELINE_ERROR = "baseline_error"
    """The replay does not reproduce the run itself."""
    CONTENTION = "contention"
    """Threads compete for cores. In summaries of earlier versions: today the range is wider."""
    NOT_SHOWN = "not_shown"
    """Predictions of this kind were not compared with runs. In summaries of earlier versions, as
    above."""
    NOT_MODELLED = "not_modelled"
    """The replay does not model what it changes."""
    NOT_OF_STEPS = "not_of_steps"
    """It is time outside of the steps."""
    OF_RECORDING = "of_recording"
    """It changes what is recorded, not the job."""
    RUN_TOO_LARGE = "run_too_large"
    """A replay would take long, and is made on request."""
    ASKS_PROCESS = "asks_process"
    """Its workers wait for another process of the job. In summaries of earlier versions: today that
    process is replayed."""
    NOT_CHARGED = "not_charged"
    """No time was charged to what it makes less."""
    DISAGREES = "disagrees"
    """It is about what the job waited for most, and the replay finds nothing to gain there: one of
    the two is wrong."""


class Cost(StrEnum):
    """What a change takes, the least first."""

    FREE = "free"
    """A setting."""
    CODE = "code"
    """Work on the code or the data, once."""
    HARDWARE = "hardware"
    """Another device, more cores, faster storage."""


class PartCode(StrEnum):
    """What a named part of a cause is."""

    FILE = "file"
    FOLDER = "folder"
    PEER = "peer"
    """What sends data by a socket or a pipe."""
    RANK = "rank"
    """A late rank, and its own cause."""
    BUBBLE = "bubble"
    """The same, where a stage of a pipeline waits for its message."""
    MESSAGE = "message"
    """The same of messages in other jobs."""
    SPAN = "span"
    """A span by its name: the user's, a decoder, a transform's class."""
    CAUSE = "cause"
    """Another cause, of a validation."""
    WORKER_START = "worker_start"
    EPOCH_END = "epoch_end"
    SAMPLER = "sampler"
    WORKER_GC = "worker_gc"
    BEFORE_FORWARD = "before_forward"
    """Where in a step it is, and not what it was."""
    AFTER_COMPUTE = "after_compute"
    """As `before_forward`."""
    LAUNCHES = "launches"
    CORE_WAIT = "core_wait"
    LOCK = "lock"
    """A thread that held the interpreter's lock."""
    PROCESSES = "processes"
    """Other processes of the job worked while the main thread was blocked."""
    FLUSHES = "flushes"
    CHECKPOINT_FLUSH = "checkpoint_flush"
    COMPILATION = "compilation"
    COLLECTED = "collected"
    """Where the job calls `gc.collect`."""
    TO_DEVICE = "to_device"
    TO_HOST = "to_host"
    PAGEABLE_TO_DEVICE = "pageable_to_device"
    PAGEABLE_TO_HOST = "pageable_to_host"
    FORWARD = "forward"
    INFERENCE = "inference"
    """Forward passes without gradients, that are no validation."""
    LOSS = "loss"
    """What is computed between the forward and the backward pass, and is no module."""
    BACKWARD = "backward"
    GRADIENTS = "gradients"
    """What is computed between the backward pass and the optimizer's step, and is not short."""
    OPTIMIZER = "optimizer"

    def label(self, subject: str = "") -> str:
        """What a table calls it."""
        return _LABELS.get(self, "{}").format(subject)


_LABELS: Final = {
    PartCode.BUBBLE: "bubble, {}",
    PartCode.MESSAGE: "message of {}",
    PartCode.WORKER_START: "start of workers",
    PartCode.EPOCH_END: "end of epoch",
    PartCode.SAMPLER: "sampler",
    PartCode.WORKER_GC: "garbage collection in workers",
    PartCode.BEFORE_FORWARD: "Python before the forward pass",
    PartCode.AFTER_COMPUTE: "Python after the computation",
    PartCode.LAUNCHES: "waiting for kernel launches",
    PartCode.CORE_WAIT: "waiting for a core",
    PartCode.LOCK: "waiting for the interpreter lock, held by {}",
    PartCode.PROCESSES: "waiting for other processes of the job",
    PartCode.FLUSHES: "waiting until writes are on storage",
    PartCode.CHECKPOINT_FLUSH: "bringing them to storage (fsync, rename)",
    PartCode.COMPILATION: "compilation (torch.compile)",
    PartCode.COLLECTED: "gc.collect() at {}",
    PartCode.TO_DEVICE: "host to device",
    PartCode.TO_HOST: "device to host",
    PartCode.PAGEABLE_TO_DEVICE: "host to device, pageable memory",
    PartCode.PAGEABLE_TO_HOST: "device to host, pageable memory",
    PartCode.FORWARD: "forward pass",
    PartCode.INFERENCE: "forward passes without gradients",
    PartCode.LOSS: "loss",
    PartCode.BACKWARD: "backward pass",
    PartCode.GRADIENTS: "work on gradients before the optimizer",
    PartCode.OPTIMIZER: "optimizer",
}


class FailureCode(StrEnum):
    """How a process of the job failed."""

    KILLED = "killed"
    """By a signal, see `Failure.signal`; or it lost a loader worker to one."""
    ERROR = "error"
    """It raised an error, or ended with another exit code than 0."""
    SILENT = "silent"
    """It ended without saying why."""
    MEMORY_LIMIT = "memory_limit"
    """The memory limit of the job left it no room."""
    RECORDER_KILLED = "recorder_killed"
    """ioprof was killed before the job ended; how the job ended is not known."""


class WhyMissing(StrEnum):
    """Why nothing was recorded of some ranks."""

    PART = "part"
    """The run is one of several parts, or not all parts were gathered."""
    LAUNCHER = "launcher"
    """ioprof recorded a launcher, which started them on other hosts."""
    HIDDEN = "hidden"
    """The folder of the recording was not there for them, as in a container."""
    UNKNOWN = "unknown"
    """Their hosts were not recorded, or they ended before they trained."""


class CpuLimit(StrEnum):
    """What kept ranks or workers from the CPU time that they could use."""

    QUOTA = "quota"
    """The quota of a control group."""
    WORKER_AFFINITY = "worker_affinity"
    """Workers may use fewer cores than the host has, and waited for these."""
    RANK_AFFINITY = "rank_affinity"
    """The same of ranks."""
    THREADS = "threads"
    """Processes ran many more threads than there are cores."""
    CORES = "cores"
    """All cores of the host were busy."""
    PROCESSES = "processes"
    """Other processes of the job, neither ranks nor workers of a loader, used the cores that ranks
    waited for."""


class StepsBy(StrEnum):
    """By what the steps of a job were found whose profiler did not mark them."""

    OPTIMIZER = "optimizer"
    """Calls of optimizers."""
    LOADER = "loader"
    """The loop's requests for the next batch."""
    PERIOD = "period"
    """The period in which the work of the device recurs, which may be a layer or a micro-batch."""


class StoreBound(StrEnum):
    """What takes most of the time of the requests to a server."""

    STALLS = "stalls"
    """A few requests that took ten times as long as the median."""
    CLIENT = "client"
    """The client itself: what it received was there already."""
    RATE = "rate"
    """Waiting for the rest of a response."""
    LATENCY = "latency"
    """Waiting for the first byte, though objects are large or the server is slow."""
    SMALL = "small objects"
    """Waiting for the first byte of small objects."""


class JobKind(StrEnum):
    """What was recorded. Decides whose options an advice names."""

    BUILT_IN = "built_in"
    """The training job of `ioprof run`: its options are those of the command line."""
    TORCH = "torch"
    """A script whose batches come from a torch DataLoader: its options are the DataLoader's
    arguments."""
    DALI = "dali"
    """A script whose batches come from a DALI pipeline."""
    TORCHDATA = "torchdata"
    """A script whose batches come from torchdata's StatefulDataLoader."""
    WEBDATASET = "webdataset"
    """A script whose batches come from webdataset's pipelines, through a torch DataLoader."""
    HF_DATASETS = "hf_datasets"
    """The same from Hugging Face datasets."""
    LITDATA = "litdata"
    """The same from LitData."""
    STREAMING = "streaming"
    """The same from MosaicML streaming."""
    TFRECORD = "tfrecord"
    """The same from the package tfrecord."""
    SPDL = "spdl"
    """A script whose batches come from a pipeline of SPDL."""
    POOL = "pool"
    """A script whose batches come from processes of a `multiprocessing.Pool`."""
    PROCESS_POOL = "process_pool"
    """The same from a `concurrent.futures.ProcessPoolExecutor`."""
    RAY = "ray"
    """A script whose batches come from Ray Data."""
    OTHER = "other"
    """Anything else: options have no known names."""


class Doubt(StrEnum):
    """Why a verdict is unsure."""

    CLOSE = "close"
    """Another cause took nearly as much time."""
    UNNAMED = "unnamed"
    """Nothing that was recorded says what most of the time of the cause was spent on."""
    THREADS = "threads"
    """Threads of the process read or decoded meanwhile, and it is not known whether it waited for
    them."""
    CORES = "cores"
    """Batches were on their way for long, where those who send and receive them waited for a
    core."""
    UNTIMED = "untimed"
    """Much of what came from storage came by mapped files, and the waits for it were not timed."""


# -------------------------------------------------------------------------- texts of other programs
#
# The only place where ioprof reads sentences: those that run folders of earlier versions hold
# instead of codes, and those that come from torch. Each becomes a code when it is read; nothing
# later looks at the text.

# torch's DataLoader: "worker (pid 5) is killed by signal: Killed."
_SIGNAL: Final = re.compile(r"\bkilled by (?:signal: )?(\w+)")
_SIGNAL_WORDS: Final = {
    "Killed": "SIGKILL",
    "Terminated": "SIGTERM",
    "Aborted": "SIGABRT",
    "Segmentation": "SIGSEGV",
    "Bus": "SIGBUS",
}
_NOTES: Final = {"osc/stats": ("lustre",), "mountstats": ("nfs", "nfs4")}
_OLD_REASONS: Final = {
    "reads could not be told apart from storage reads; included in storage": Reason.SOURCES_UNKNOWN,
    "what the loader's workers did was not recorded; its time is in loader": Reason.NO_FETCH,
    "no step lay wholly within the time in which the GPU was recorded": (
        Reason.NO_STEP_IN_GPU_WINDOW
    ),
    **{text: code for code, text in _TEXTS.items()},
}
_OLD_PARTS: Final = {
    " of waiting for slower ranks": Reason.INCLUDES_STRAGGLER_WAIT,
    "includes reads of unknown origin": Reason.INCLUDES_UNKNOWN_SOURCES,
    "which could not be measured": Reason.INCLUDES_UNMEASURED,
    "from pageable memory": Reason.INCLUDES_PAGEABLE_COPIES,
}


def signal_in(text: str) -> str | None:
    """The signal that a message of a failed process names as what killed it or a worker of it."""
    found = _SIGNAL.search(text)
    return _SIGNAL_WORDS.get(found[1], found[1]) if found else None


def failure_code(text: str) -> FailureCode:
    """The code of a failure of which only a message is known."""
    if text.startswith("ioprof was killed"):
        return FailureCode.RECORDER_KILLED
    if text == "ended without saying why":
        return FailureCode.SILENT
    return FailureCode.KILLED if signal_in(text) else FailureCode.ERROR


def reason_in(text: str) -> Reason | None:
    """The code of a reason of which only the sentence is known."""
    return _OLD_REASONS.get(text) or next(
        (code for part, code in _OLD_PARTS.items() if part in text), None
    )


def file_systems_in(note: str) -> tuple[str, ...]:
    """The file systems whose counters a sampler could not read, by its note."""
    return next((file_systems for name, file_systems in _NOTES.items() if name in note), ())
