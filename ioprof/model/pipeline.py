"""A recorded pipeline: tasks of workers, and the program of the training loop that takes their
results in order.

    worker 0    [start-up] [task 0        ] [task 2     ] [task 4 ...
    worker 1    [start-up] [task 1     ] [task 3           ] ...
    loop        [START   ].....[TAKE 0][after][TAKE 1][after]..[TAKE 2][after] ...

A task is one batch of one iteration over a loader. The loop sends `workers` × `prefetch` tasks when
an iteration starts, and one more for each batch that it takes. It takes batches in the order of
their tasks, whichever is ready first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ioprof.format.schema import CAUSES

Seconds = NDArray[np.float64]

STAGES: Final = ("storage", "page_cache", "decode", "transform", "collate", "loader")
"""What a worker's time for a task goes to. `loader`: nothing that was recorded, such as the
dataset's own code."""
OWN: Final = CAUSES
"""What the training loop's time after a batch goes to."""
WITHOUT_CORES: Final = ("exchange", "straggler", "storage", "h2d", "checkpoint")
"""Causes of the loop's time in which it does not compute; `compute` is one too if another device
does it."""


class Op(IntEnum):
    """What the training loop does with a loader."""

    START = 0
    """Begins to iterate; starts workers where it has none."""
    TAKE = 1
    """Waits for the next batch."""
    END = 2
    """Learns that there is no further batch; stops workers that are not kept."""


@dataclass(frozen=True)
class Tasks:
    """The batches of an iteration, in order: one row each. NaN: not observed, to be drawn from
    those that were.
    """

    stages_s: Seconds
    """Shape (tasks, stages): wall time as measured."""
    reads: Seconds
    """Reads and faults that went to storage."""
    read_bytes: Seconds
    """Bytes that those delivered."""
    open_s: Seconds
    """Part of `storage`: opening files."""
    reads_cpu_s: Seconds
    """Computation during the waits for storage, which `storage` does not hold: system calls, and
    the thread that sends batches."""
    reads_delay_s: Seconds
    """From when a read was done until its thread had a core, as far as competition explains it. Not
    in `storage` either: the replay has a delay of its own."""
    lag_s: Seconds
    """From when the worker was free and had the task, until it began."""
    transit_s: Seconds
    """From the end of the worker's fetch until the loop could take the batch; other tasks go on
    meanwhile."""
    transit_most_s: Seconds
    """The same at most: the batch was there when it was asked for. Infinite where the loop waited
    for it."""
    take_s: Seconds
    """What the loop itself spends on taking a batch that has arrived."""
    held_s: Seconds
    """Part of the way to the loop, not in `transit_s`, in which the worker's next task kept the
    batch from being sent, see `analysis.reads.lineage.kept_back`."""
    serial_s: Seconds
    """What only one worker at a time can do (`model.serial`)."""
    serial_own_s: Seconds
    """The part of it that is not in `stages_s` too: what is done meanwhile may have spans."""
    served_s: Seconds
    """What other processes of the job compute to answer those who make the task, beside them."""

    @classmethod
    def without_cost(cls, count: int) -> "Tasks":
        """So many tasks of which nothing is to be done."""
        none = np.zeros(count)
        return cls(
            np.zeros((count, len(STAGES))),
            **dict.fromkeys(tuple(cls.__dataclass_fields__)[1:], none),
        )

    def __len__(self) -> int:
        return len(self.lag_s)

    def at(self, rows: NDArray[np.int64]) -> "Tasks":
        """These tasks in another order; a row may occur several times."""
        return Tasks(**{name: values[rows] for name, values in vars(self).items()})


@dataclass(frozen=True)
class Iteration:
    """One pass over a loader."""

    workers: int
    """0: the loop fetches the batches itself."""
    prefetch: int
    """Tasks per worker that are ahead of the loop."""
    tasks: Tasks
    num_taken: int
    """The first so many tasks were taken by the loop."""
    is_complete: bool
    """Whether the loop learned that there are no more; else it left the loader, and there would
    have been more tasks."""
    group: int
    """Worker processes that it shares with other iterations, if they are kept."""
    starts_workers: bool
    startup_s: Seconds
    """Of each worker that it starts: from the beginning of START until it can begin its first
    task."""
    is_validation: bool = False
    first_s: Seconds = field(default_factory=lambda: np.zeros((0, len(STAGES))))
    """Shape (workers that it starts, stages): what the first task of each took beyond a usual one,
    such as imports, or filling a buffer. Not in that task's stages."""
    makers: tuple[int, ...] = ()
    """Which worker makes each task, if they are not given to them in turn, as where one has nothing
    more to read."""
    is_pool: bool = False
    """Whether a pool makes the batches: whoever is free takes the next task. Else they are given to
    the workers in turn, or as in `makers`."""
    together: int = 0
    """Tasks that the loop gives to a pool when it wants the first of them, and waits for all. 0: it
    gives them ahead, as `prefetch` says."""
    serial_stage: str = "loader"
    """The stage that `Tasks.serial_s` is mostly of."""
    serial_parts: tuple[float, ...] = ()
    """The part of it that is of each stage. Empty: all of it is of that one."""
    has_lock: bool = False
    """Whether that is what workers do while they hold a lock that they share, see
    `model.serial`."""
    lock_wait_s: float = 0.0
    """What its makers waited for each batch for the interpreter lock, where `Tasks.serial_s` is
    what they hold it for."""
    has_loader: bool = True
    """False: no loader gave batches to the loop. Each task is a step, which costs nothing: all time
    is the loop's own."""

    @property
    def of_serial(self) -> Seconds:
        """The part of `Tasks.serial_s` that is of each stage."""
        return np.array(
            self.serial_parts or [stage == self.serial_stage for stage in STAGES], np.float64
        )


@dataclass(frozen=True)
class Program:
    """What the training loop of a rank did, in order: one row for each action."""

    ops: tuple[Op, ...]
    iterations: tuple[int, ...]
    """Of each action: which iteration it is of."""
    spent_s: Seconds
    """Of START and END: how long they took; 0 for TAKE, which `Tasks` describes."""
    after_s: Seconds
    """Shape (actions, causes): what the loop did until its next action, without waiting for other
    ranks."""
    arrive_s: Seconds
    """How far into that time the rank arrived at the last collective of it. NaN: no collective."""
    step: NDArray[np.int64]
    """Number of that collective's step, the same on all ranks; -1: none."""
    device_s: Seconds
    """What an asynchronous device computes for the action's batch. 0: nothing; NaN: it did, and was
    not recorded then."""
    transfer_s: Seconds
    """Of the device's exchange after that: from when all ranks had arrived to its end."""
    device_step: NDArray[np.int64]
    """Number of the step of that exchange, the same on all ranks; -1: none."""
    optimizer_s: Seconds
    """Part of `compute` in `after_s` that is the optimizer's, as long for a batch of any size; 0
    where it has no spans."""
    hidden_s: Seconds
    """Part of `compute` in `after_s` in which the loop itself did not wait for the device, but ran
    on: it launched work, or ran Python. 0 where no waits for the device were recorded."""
    is_step: NDArray[np.bool_]
    """Whether it takes a batch to train on that a step was made with."""
    weight: Seconds
    """How many actions of the job each one stands for: 1, but in a sample (`changed.shortened`)."""
    lock_s: Seconds
    """Part of `after_s` in which it waited for threads that make its batches to leave the
    interpreter (`model.serial`)."""
    again_s: Seconds
    """Shape (actions, causes): part of `after_s` in which it waited for the start of workers that
    took the place of others (`analysis.graph.starts`). 0 where the workers themselves are
    replayed."""

    def __len__(self) -> int:
        return len(self.ops)


@dataclass(frozen=True)
class CpuUse:
    """What processes did with cores while they were not waiting for storage or for a batch."""

    busy_ratio: float = 1.0
    """Share of that time in which they ran or could have run; the rest they slept. At most 1."""
    dilation: float = 1.0
    """Time in which they ran or could have run, over the time in which they ran. 1: they never
    waited for a core."""
    threads: float = 1.0
    """Threads that ran or could have run at the same time, on average, while there was any."""
    cpu_s: float = 0.0
    """CPU time on which this rests. 0: not measured, and the job had a core whenever it wanted
    one."""
    wake_ratio: float = 0.0
    """Share of the busy time from when a thread was woken until it ran, which no competition
    explains."""
    reads_s: float = 0.0
    """Time in which they waited for storage meanwhile."""
    reads_cpu_ratio: float = 0.0
    """Share of that in which they ran."""
    reads_delay_ratio: float = 0.0
    """Share of that in which they could have run, and waited for a core."""
    team: float = 0.0
    """How far these threads wait for each other, 0 to 1: where one of them waits for a core, the
    others do no more than that one. 0: each goes on by itself."""

    @property
    def whole_dilation(self) -> float:
        """As `dilation`, also for what they did while they waited for storage."""
        return (
            self.dilation + self.reads_delay_ratio * self.reads_s / self.cpu_s
            if self.cpu_s > 0
            else 1.0
        )

    @property
    def cores_ratio(self) -> float:
        """Share of the time that the computation would have taken on cores of its own."""
        stretch: float = self.dilation ** (1 + (self.threads - 1) * self.team)
        return self.busy_ratio * (1 - self.wake_ratio) / stretch

    @property
    def is_measured(self) -> bool:
        """Whether CPU time was sampled for long enough."""
        return self.cpu_s > 0


@dataclass(frozen=True)
class Rank:
    """One rank and its loaders."""

    rank: int
    host: str
    iterations: tuple[Iteration, ...]
    program: Program
    loop_cpu: CpuUse
    worker_cpu: CpuUse
    begin_ns: int
    """When its first action began."""
    begun_ns: NDArray[np.int64]
    """Of each action: when it began, in the recorded run. The measure of the baseline."""
    taken_ns: NDArray[np.int64]
    """The same: when it ended."""
    end_ns: int
    """When the last action's `after_s` had ended."""
    starts_early: bool = False
    """Whether its workers began before the recorded loop did; the first START is that time, and no
    cost of starting them."""
    stage_waits: Mapping[str, float] = field(default_factory=dict)
    """By stage, how much of its time who made the batches was blocked, 0 to 1. Empty: not known."""
    own_waits: Mapping[str, float] = field(default_factory=dict)
    """The same of the loop's own time, by cause."""
    held_ratio: float = 0.0
    """Of the loop's own time, in which it waited for C code of a thread that does its work as time
    goes by, and not for each step, see `long_holds`."""
    depth: int | None = None
    """Steps that the loop is ahead of an asynchronous device. None: the loop waits for what it
    computes, within `after_s`."""


@dataclass(frozen=True)
class StorageUse:
    """What the reads show of the storage."""

    latency_s: float
    """Of one read without transfer; such waits of several readers overlap."""
    bytes_per_s: float
    """What all readers together get; infinite where the reads show no limit."""
    reader_bytes_per_s: float
    """What one reader gets alone."""
    is_rate_bound: bool
    """Whether readers held each other up, by concurrency, latency and rate (Little's law)."""
    is_alone: bool
    """Whether there was never more than one reader at a time: how much all together could get is
    not known then."""
    burst_bytes: float = 0.0
    """What it delivers at once after it was idle, as storage whose rate is limited by a quota
    does."""
    is_sure: bool = True
    """Whether there were enough reads to tell a rate from a latency."""
    served_s_per_read: float = 0.0
    """CPU time that others than the job spend on this host for each of its reads."""


@dataclass(frozen=True)
class Pipeline:
    """A recorded run that can be replayed."""

    ranks: tuple[Rank, ...]
    cores: dict[str, float]
    """By host: cores that the job may use, quota included."""
    storage: StorageUse
    batch_size: int | None
    others: dict[str, float]
    """By host: threads of other programs that could run meanwhile, on average, as far as they
    slowed the job down."""
    own_groups: dict[str, float] = field(default_factory=dict)
    """By host: groups of the scheduler that are the job's for each one of others, so that more
    threads do not get more of what others want (`engine.Resource.own_groups`). Absent: all threads
    are alike."""
    scattered: dict[str, float] = field(default_factory=dict)
    """By host: how far threads that could run shared a core while another one was idle, 0 to 1
    (`engine.Resource.scattered`)."""
    memory_s_per_byte: float = 0.0
    """Time per byte of reads from the page cache in this run; 0: it had none."""
    has_memory_reads: bool = False
    warm_open_ratio: float = 0.0
    """What remains of the time of opening files where the file system's metadata is in memory."""
    on_device: bool = False
    """Whether the model runs on another device than the CPU."""
    shares_cores: bool = True
    """Whether the replay shares the cores among all that compute. Else work takes as long as it was
    measured, since that reproduces the run better."""
    takes_turns: bool = False
    """Whether a loop takes batches of several loaders in turn. Their workers are replayed as those
    of one, with the batches that each of them made, so that nothing is known of other numbers of
    them."""
    knows_makers: bool = True
    """False: it was not seen who makes the batches, and what the loop waits for is replayed as time
    of its own."""
    faulted: float = 0.0
    """Part of the computations on the CPU that the kernel spent on memory which had been freed
    before, at least: it may be gone in a run with a change, or come."""
    copy_s: float = 0.0
    """Median time of copying a batch to the device; 0: no copy was recorded."""
    copy: str = "overlapped"
    """How: `overlapped` with the computation of the batch before; `pinned`, between two
    computations; `pageable`: between two computations, and the loop waits for it."""

    @property
    def own_work(self) -> NDArray[np.bool_]:
        """Of each cause in `OWN` whether the loop's thread itself does it, so that it needs a
        core.
        """
        without = (*WITHOUT_CORES, *(("compute",) if self.on_device else ()))
        return ~np.isin(OWN, without)

    @property
    def has_loader(self) -> bool:
        """Whether a loader gave batches to a rank."""
        return any(each.has_loader for rank in self.ranks for each in rank.iterations)
