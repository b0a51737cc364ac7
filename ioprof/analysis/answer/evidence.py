"""All that a verdict may be based on, and what of it is asked for in more than one place."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ioprof.analysis.answer.details import PLACES, TO_HOST, UNNAMED
from ioprof.analysis.ceilings import IMBALANCE
from ioprof.analysis.charge.launches import Launches
from ioprof.analysis.charge.sent_views import SentViews
from ioprof.analysis.cpu.code_lines import (
    FEWEST_SAMPLES,
    awaits,
    computes,
    function_of,
    functions,
    groups,
    is_group,
    line_text,
    same_code,
)
from ioprof.analysis.cpu.memory_faults import MemoryFaults
from ioprof.analysis.cpu.stacks import OF_BATCHES, WORKERS
from ioprof.analysis.loader_use import LoaderUse
from ioprof.analysis.ranks.exchange_rate import SmallSums
from ioprof.analysis.reads.demand import Fetched
from ioprof.analysis.reads.flushes import Flushed
from ioprof.analysis.reads.unused_samples import Unused
from ioprof.format.run_record import (
    CauseDetail,
    CauseShare,
    Ceilings,
    CodeShare,
    CpuEvidence,
    DatasetRecord,
    Demand,
    Facts,
    FrameUse,
    ImageRecord,
    LoaderTime,
    MissingRanks,
    Overlap,
    PartCode,
    Reads,
    Reason,
    RunRecord,
    Saves,
    Steps,
    Storage,
)
from ioprof.format.schema import CAUSES

EXCHANGE: Final = ("exchange", "straggler")
"""Causes of time that a rank spends with other ranks."""

IDLE_RATIO: Final = 0.10
"""Share of the steps' time from which on something else than compute is the bound, as the
accelerator's idle time, and as the share of the greatest other cause: where compute takes 89 % and
the rest is of many small causes, none of these is."""
UNEVEN_RATIO: Final = 1.1
"""How much longer a rank computes than the fastest one before its load is called uneven."""

MOSTLY_ONE: Final = 0.8
"""Part of a cause from which on one rank or file is named for it."""
_MOSTLY_PROCESSES: Final = 0.5
"""Part of `host` from which on it is called waiting for other processes, as in the headline."""
_LEAST_OF_PLACE: Final = 0.6
"""Part of `host` from which on a place in the step is named for it."""

STARTS: Final = (PartCode.WORKER_START, PartCode.EPOCH_END)
LEAST_NAMED_RATIO: Final = 0.3
"""Part of a cause from which on a file, a span or a line of code is named as its reason."""
_MOSTLY_LAUNCHES: Final = 0.5
"""Part of `host` that is waiting for kernel launches, from which on that is what to change, and no
line of code."""
LEAST_BUSY_RATIO: Final = 0.9
"""Part of the steps' time in which workers fetch from which on they are called busy."""
_LEAST_WITHOUT_NAME: Final = 0.75
"""Part of the workers' time without a name, from which on the named stages are not what makes
batches late."""
_LEAST_BUSY_AND_SLOWER: Final = 0.8
"""The same, if they need longer for a batch than the loop does: the rest of the time went to
sending it."""
_MOSTLY_OWN: Final = 1.1
"""Waits for a stage over the workers' own time for it, above which other threads did it."""
_MOSTLY_BY_THREADS: Final = 0.5
"""Part of what the training process itself spent on a cause, from which on its threads are spoken
of instead."""
_MOSTLY_TO_HOST: Final = 0.5
"""Part of the exposed copies from which on they are said to be from the device to the host."""
_MUCH_MORE: Final = 1.2
"""Time of all lines of a function over that of one of them, from which on the function's is told
too."""
_LEAST_FURTHER: Final = 0.1
"""Share of the steps' time from which on a function is told that is not the largest part of its
cause."""
_MOST_FURTHER: Final = 3
_ERRORS: Final = 2.0
"""Standard errors by which the time of a function may be off."""


@dataclass(frozen=True)
class Evidence:
    """All that a verdict may be based on."""

    run: RunRecord
    steps: Steps
    storage: Storage
    demand: Demand
    overlap: dict[str, Overlap]
    fetched: Fetched
    warmup_ratio: dict[str, float]
    """For each cause, the share of its time that lies in the warm-up steps."""
    making_ns: dict[str, int]
    """What the workers spent their time on, see `workers_time.making`."""
    missing: MissingRanks | None = None
    """Ranks of which nothing was recorded."""
    own: dict[str, float] = field(default_factory=dict)
    """For each cause, the share of the steps' time that the training process itself spent on it,
    outside of waits for a loader."""
    threads: dict[str, float] = field(default_factory=dict)
    """For each cause, the share of the steps' time that is charged to threads of the training
    process, by the times alone."""
    use: LoaderUse = field(default_factory=LoaderUse)
    """What the loop does with its loader."""
    cpu: CpuEvidence | None = None
    """Whether ranks and workers got the CPU time that they could use."""
    code: tuple[CodeShare, ...] = ()
    """Lines of Python by samples of stacks, see `stacks.unexplained`."""
    ceilings: Ceilings | None = None
    """What the workers can make and what the loop can take."""
    reads: Reads = field(default_factory=Reads)
    """How the job read."""
    loaders: tuple[LoaderTime, ...] = ()
    """The job's loaders, most waiting first."""
    takes_turns: bool = False
    """Whether a loop takes batches of several of them in turn, each with workers of its own."""
    launches: Launches | None = None
    """How kernels were launched; None: none was recorded."""
    copied_per_step: dict[str, float] = field(default_factory=dict)
    """See `copies.copied_per_step`."""
    saves: Saves | None = None
    """What a checkpoint takes; None: there is none."""
    frames: FrameUse | None = None
    """Frames of videos that were decoded and used; None: not known."""
    padding_ratio: float | None = None
    """Of the positions of batches of text; None: not known."""
    excess_ratio: float | None = None
    """The part of them that is beyond the longest sample of their batch; None: not known."""
    memory_faults: MemoryFaults | None = None
    """Page faults of loops on the CPU; None: not counted, or on another device."""
    compiled_in: tuple[int, ...] = ()
    """Steps in which torch's compiler worked."""
    flushed: Flushed | None = None
    unused: Unused | None = None
    views: SentViews | None = None
    batch_bytes: Mapping[int, float] = field(default_factory=dict)
    """Of the tensors of a batch, by rank; of ranks without workers not known."""
    small_sums: SmallSums | None = None
    """All-reduces that the job makes for each parameter, or the like."""
    exchanges_per_update: int = 0
    """See `exchange_rate.exchanges_per_update`."""
    computed_meanwhile_s: dict[int, float] = field(default_factory=dict)
    """See `Charges.computed_meanwhile_ns`."""
    longest_batch_s: float = 0.0
    """The longest time in which a batch was made."""

    @property
    def dataset(self) -> DatasetRecord:
        """What is known of the dataset."""
        return self.run.dataset or DatasetRecord()

    @property
    def stores_originals(self) -> bool:
        """Whether the dataset stores images at their original size."""
        return (self.dataset.image or ImageRecord()).transform == "original"

    @property
    def charged(self) -> dict[str, CauseShare]:
        """The causes that were measured, by name."""
        return {entry.cause: entry for entry in self.steps.causes if entry.seconds is not None}

    @property
    def straggler_wait(self) -> dict[str, float]:
        """Share of the steps' time that ranks waited for stragglers, by what made those late.

        A straggler that had more to compute is named best by `straggler`. One that computed while
        others waited may have begun later than they: then what had delayed it counts.
        """
        total_s = sum(entry.seconds or 0.0 for entry in self.charged.values())
        found: dict[str, float] = {}
        for rank, causes in self.steps.straggler_wait_s.items():
            for cause, waited_s in causes.items():
                delayed_s = self.computed_meanwhile_s.get(int(rank), 0.0)
                parts_s = (
                    self._delays_of(int(rank), delayed_s)
                    if cause == "compute"
                    else {cause: waited_s}
                )
                for part, part_s in parts_s.items():
                    if part not in EXCHANGE and total_s:
                        found[part] = found.get(part, 0.0) + part_s / total_s
        return found

    @property
    def waits_for_messages(self) -> bool:
        """Whether what ranks waited for longest of late ones was a message, as in pipelines."""
        return any(
            part.code in (PartCode.BUBBLE, PartCode.MESSAGE)
            for part in self.charged["straggler"].details[:1]
        )

    def _delays_of(self, rank: int, waited_s: float) -> dict[str, float]:
        """What makes a rank start to compute later than others: its own causes outside compute and
        exchange, as seconds of those that all others waited for its computation. A cause delays
        each of the others by no more than its own time.

        Nothing if it computes longer than the others do: then its load is uneven.
        """
        rows = {row.rank: row for row in self.steps.per_rank}
        computed = {other: row.compute_s or 0.0 for other, row in rows.items()}
        if rank not in rows or computed[rank] > UNEVEN_RATIO * min(computed.values()):
            return {}
        own = {
            cause: rows[rank].seconds(cause) or 0.0
            for cause in CAUSES
            if cause not in ("compute", *EXCHANGE)
        }
        most_s = max(sum(own.values()), waited_s / max(len(rows) - 1, 1))
        return (
            {cause: waited_s * seconds / most_s for cause, seconds in own.items()} if most_s else {}
        )

    @property
    def shares(self) -> dict[str, float]:
        """Share of the steps' time by cause, where waiting for a slower rank counts as what that
        rank did.
        """
        own = {cause: entry.share or 0.0 for cause, entry in self.charged.items()}
        moved = self.straggler_wait
        own |= {cause: own.get(cause, 0.0) + share for cause, share in moved.items()}
        return own | (
            {"straggler": own.get("straggler", 0.0) - sum(moved.values())} if moved else {}
        )

    @property
    def repeats_work(self) -> bool:
        """Whether each worker does the work of all of them, and so would each further one."""
        shared = self.reads.by_each_worker
        return shared is not None and shared.repeated is not None

    @property
    def workers_are_busy(self) -> bool:
        """Whether workers, or the busiest of them, fetch nearly all of the time, or most of it and
        longer than the loop takes for a batch: then what the loop waits for is their work, however
        it reaches it.
        """
        return self.are_busy(self.imbalance_s)

    def are_busy(self, more_s: float = 0.0) -> bool:
        """The same of a worker that fetches for so much longer per step than the mean of all."""
        found = self.ceilings
        if found is None or found.is_serial:
            return False
        supply_s = found.supply_s + more_s
        return (
            supply_s
            >= (_LEAST_BUSY_AND_SLOWER if supply_s > found.consumer_s else LEAST_BUSY_RATIO)
            * found.step_s
        )

    @property
    def imbalance_s(self) -> float:
        """How much longer per step the busiest worker fetches than the mean of all."""
        return (
            sum(part.seconds for part in self.ceilings.residuals if part.name == IMBALANCE)
            if self.ceilings
            else 0.0
        )

    @property
    def most_work_is_unnamed(self) -> bool:
        """Whether busy workers spend most of their time in no stage that has a name; a wait may
        still see such stages only.
        """
        loader = self.charged.get("loader")
        return (
            self.workers_are_busy
            and loader is not None
            and (loader.workers_share or 0.0) >= _LEAST_WITHOUT_NAME
        )

    @property
    def a_stage_takes_most(self) -> bool:
        """Whether one stage with a name takes more of the workers' time than all that has none."""
        loader = self.charged.get("loader")
        stages = [
            entry.workers_share or 0.0 for cause, entry in self.charged.items() if cause != "loader"
        ]
        return (
            loader is not None
            and loader.workers_share is not None
            and max(stages, default=0.0) > loader.workers_share
        )

    @property
    def work_ns(self) -> dict[str, float]:
        """`making_ns`, but at least what waits for batches were charged with: other threads of the
        workers may do more of it than the workers themselves, such as one that sends a batch and
        reads mapped pages for that.
        """
        waited_ns = {cause: 1e9 * (entry.seconds or 0.0) for cause, entry in self.charged.items()}
        return {
            cause: max(float(took_ns), waited_ns.get(cause, 0.0))
            for cause, took_ns in self.making_ns.items()
        }

    def is_work_of_others(self, cause: str) -> bool:
        """Whether more of a stage was waited for than the workers themselves spent on it."""
        return self.work_ns[cause] > _MOSTLY_OWN * self.making_ns[cause]

    def is_by_threads(self, cause: str) -> bool:
        """Whether other threads of the training process than its main one spent most of what it
        itself spent on a cause.
        """
        return self.threads.get(cause, 0.0) > _MOSTLY_BY_THREADS * self.own.get(cause, 0.0)

    @property
    def has_loader(self) -> bool:
        """Whether batches came from a loader that was recorded."""
        return "loader" in self.charged or self.run.config.workers is not None

    def largest_detail(self, cause: str, least_ratio: float = 0.5) -> CauseDetail | None:
        """The largest named part of a cause, if it is at least that part of it."""
        entry = self.charged.get(cause)
        first = (
            next((detail for detail in entry.details if detail.code not in UNNAMED), None)
            if entry
            else None
        )
        return (
            first if entry and first and first.share >= least_ratio * (entry.share or 0.0) else None
        )

    @property
    def evaluates_by_mode(self) -> bool:
        """Whether the mode of the model says that the job evaluates it, and no loader does."""
        found = self.charged.get("validation")
        return found is not None and found.reason_code is Reason.BY_MODE

    def largest_line(self, cause: str) -> CodeShare | None:
        """The line of the user's own code that took most of a cause, or the function that did so
        with what it calls, if that is not too little or too uncertain to be named.

        Else the function whose lines together are enough. A function is a line 0.
        """
        total_s = self.charged[cause].seconds if cause in self.charged else None
        if self._are_of_workers(cause):
            total_s = self._worker_lines_s
        own = self._own_lines(cause)
        for found in ([*own, *groups(own)], functions(own)):
            largest = max(found, key=lambda line: line.seconds, default=None)
            if (
                largest
                and largest.samples >= FEWEST_SAMPLES
                and total_s
                and largest.seconds >= LEAST_NAMED_RATIO * total_s
            ):
                return largest
        return None

    def further_functions(self, cause: str, named: CodeShare | None) -> list[CodeShare]:
        """Other functions of the user's own code than that of a line that took much of a cause, the
        most first; with what they call, where that takes most of it.
        """
        own = self._own_lines(cause)
        same = same_code(named, own) if named else []
        other = [line for line in own if line not in same]
        whole = [each for each in groups(other) if named is None or each.group != named.group]
        within = {each.group for each in whole if self.part_of(each) >= _LEAST_FURTHER}
        rest = [line for line in other if line.group not in within]
        each = {function_of(line): line for line in (*rest, *functions(rest))}.values()
        large = [
            line
            for line in (*each, *whole)
            if line.samples >= FEWEST_SAMPLES and self.part_of(line) >= _LEAST_FURTHER
        ]
        return sorted(large, key=lambda line: -line.seconds)[:_MOST_FURTHER]

    def _are_of_workers(self, cause: str) -> bool:
        """Whether the lines of a cause are all that workers did, awaited or not."""
        return cause == "loader" and self.most_work_is_unnamed

    def _own_lines(self, cause: str) -> list[CodeShare]:
        """Those of the user's own code."""
        of_cause = WORKERS if self._are_of_workers(cause) else cause
        return [line for line in self.code if line.cause == of_cause and line.is_own]

    @property
    def sampler_line(self) -> CodeShare | None:
        """The line of the user's own code that most of the sampler's time went to.

        Lines of `loader` are of workers too: one is of the sampler if both together take more than
        all of that time.
        """
        detail, line = self.largest_detail("loader", LEAST_NAMED_RATIO), self.largest_line("loader")
        if (
            line is None
            or detail is None
            or detail.code is not PartCode.SAMPLER
            or line.cause == WORKERS
        ):
            return None
        return (
            line
            if line.seconds + detail.seconds > (self.charged["loader"].seconds or 0.0)
            else None
        )

    @property
    def _worker_lines_s(self) -> float:
        return sum(line.seconds for line in self.code if line.cause == WORKERS)

    def part_of(self, line: CodeShare) -> float:
        """How much of the steps' time a line of code takes, or of the workers'."""
        if line.cause != WORKERS:
            return line.share or 0.0
        return line.seconds / self._worker_lines_s * (self.charged["loader"].workers_share or 0.0)

    def line_facts(self, line: CodeShare | None) -> Facts:
        """A line of code and the part of the time that it takes; that of its whole function, where
        that is much more. A function that makes batches also makes those to validate on.
        """
        if line is None:
            return {}
        causes = (*OF_BATCHES, "validation")
        whole = self._whole_function(line, causes if line.cause in causes else (line.cause,))
        found = {
            "line": line_text(line),
            "line_share": self.part_of(line),
            "of_workers": line.cause == WORKERS,
            "line_waits": None if line.is_of_others else line.waits or None,
            "awaited": line.is_of_others or None,
        }
        if whole.seconds < _MUCH_MORE * line.seconds:
            return found
        return found | {"function": whole.function, "function_share": self.part_of(whole)}

    def own_ratio(self, cause: str) -> float:
        """The part of a cause that is in lines of the job's own Python, and not in what these call
        of libraries.
        """
        own_s = sum(
            line.seconds
            for line in self.code
            if line.cause == cause and line.is_own and line.library is None
        )
        return own_s / (self.charged[cause].seconds or 1.0) if cause in self.charged else 0.0

    def part_of_cause(self, cause: str, line: CodeShare) -> tuple[float, float]:
        """The part of a cause that the function of a line takes, 0 to 1, and two standard errors of
        it.
        """
        whole = self._whole_function(line, (line.cause,))
        total_s = (
            self._worker_lines_s if line.cause == WORKERS else self.charged[cause].seconds or 0.0
        )
        if not total_s or not whole.samples:
            return 1.0, 0.0
        part = min(1.0, whole.seconds / total_s)
        number = whole.samples / part  # of samples of the cause
        return part, _ERRORS * math.sqrt(part * (1 - part) / number + 0.25 / number**2)

    def waits_of(self, line: CodeShare) -> float | None:
        """How much of the time of a line's function its thread waited; null: not known."""
        return self._whole_function(line, (line.cause,)).waits

    @property
    def lock_holder(self) -> CauseDetail | None:
        """The thread that held the interpreter's lock while ranks waited for it, if that is most of
        what `host` has a name for.
        """
        detail = self.largest_detail("host", LEAST_NAMED_RATIO)
        return detail if detail and detail.code is PartCode.LOCK else None

    @property
    def makers_are_threads(self) -> bool:
        """Whether batches are made by threads of the training process."""
        are_made = any(each.workers_share for each in self.steps.causes)
        return are_made and all(each.role != "worker" for each in self.run.processes)

    @property
    def launching(self) -> CauseDetail | None:
        """The waiting for kernel launches, if it is the largest part of `host`. The lines of code
        are where they are launched.
        """
        found = self.largest_detail("host", LEAST_NAMED_RATIO)
        if found is None or found.code is not PartCode.LAUNCHES or self.launches is None:
            return None
        line = self.largest_line("host")
        is_most = found.seconds >= _MOSTLY_LAUNCHES * (self.charged["host"].seconds or 0.0)
        return found if is_most or line is None or line.seconds < found.seconds else None

    def copies_ratio(self, direction: Collection[PartCode]) -> float | None:
        """The part of the exposed copies that have this direction, 0 to 1; null: what they were is
        not known.
        """
        copies = self.charged.get("h2d")
        if copies is None or not copies.seconds or not copies.details:
            return None
        return min(
            1.0,
            sum(part.seconds for part in copies.details if part.code in direction) / copies.seconds,
        )

    @property
    def copies_to_host(self) -> bool:
        """Whether most of the exposed copies are of results, from the device to the host."""
        return (self.copies_ratio(TO_HOST) or 0.0) >= _MOSTLY_TO_HOST

    @property
    def waiting_line(self) -> CodeShare | None:
        """The line at which the ranks' own Python mostly waits for another thread or process that
        no hook follows.
        """
        line = self.largest_line("host")
        return line if line and awaits(line) else None

    @property
    def computing_line(self) -> CodeShare | None:
        """The line that most of `host` went to, where it mostly called a function of tensors that
        runs on the CPU.

        Such as a loss that is no module, and takes too long to count as part of the forward pass.
        On a GPU the host's time for such a call is not that of the computation.
        """
        is_on_cpu = (
            self.run.config.device == "cpu"
            and not self.run.is_emulated
            and "compute" in self.charged
        )
        line = self.largest_line("host") if is_on_cpu else None
        return line if line and computes(line) else None

    def _whole_function(self, line: CodeShare, causes: tuple[str, ...]) -> CodeShare:
        """The sum over the lines of a line's function in these causes, or over a group."""
        same = same_code(line, [other for other in self.code if other.cause in causes])
        return next(iter((groups if is_group(line) else functions)(same)), line)

    def largest_part(self, cause: str) -> Facts:
        """The largest part of a cause, as facts: a file, a span, a line of code, or several. Empty:
        none that is large enough.
        """
        detail = self.largest_detail(cause, LEAST_NAMED_RATIO)
        line = self.largest_line(cause)
        lines = self.line_facts(line)
        code = detail.code if detail else None
        if detail is None or cause == "h2d":  # the direction of copies is told already
            if not line and not detail:
                return {"others": self._shares_of(self.further_functions(cause, None))}
            return lines | ({} if detail else self._similar(cause, line))
        if code is PartCode.LAUNCHES:
            launching = {"launch_share": detail.share, **self.kernels} if self.launching else {}
            return launching | lines
        if line and line.cause == WORKERS and code in STARTS:
            return lines
        if line and cause in ("transform", "validation"):
            return lines | self._similar(cause, line)
        is_within = code is not PartCode.SAMPLER or self.sampler_line
        found = {"part": detail.name, "part_share": detail.share}
        return found | ({"part_line": line_text(line)} if line and is_within else {})

    def _similar(self, cause: str, line: CodeShare | None) -> Facts:
        """Further functions that took nearly as much as a line."""
        if line is None or line.cause == WORKERS:
            return {}
        further = self.further_functions(cause, line)
        return {"others": self._shares_of([x for x in further if 2 * x.seconds >= line.seconds])}

    def _shares_of(self, lines: list[CodeShare]) -> list[dict[str, Any]]:
        return [{"line": line_text(line), "share": line.share or 0.0} for line in lines]

    @property
    def kernels(self) -> Facts:
        """The kernels of a step, as facts."""
        found = self.launches
        return {"kernels": found.per_step, "kernel_s": found.median_s} if found else {}

    @property
    def place_of_host(self) -> PartCode | None:
        """Where in a step most of `host` is; None: not known, or at several places."""
        entry = self.charged["host"]
        least_s = _LEAST_OF_PLACE * (entry.seconds or 0.0)
        return next(
            (
                part.code
                for part in entry.details
                if part.code in PLACES and part.seconds >= least_s
            ),
            None,
        )

    @property
    def waits_for_processes(self) -> bool:
        """Whether `host` is mostly waiting for other processes of the job."""
        entry = self.charged.get("host")
        parts = entry.details if entry else ()
        waited_s = sum(part.seconds for part in parts if part.code is PartCode.PROCESSES)
        return entry is not None and waited_s >= _MOSTLY_PROCESSES * (entry.seconds or math.inf)

    def named_ratio(self, cause: str) -> float:
        """The part of a cause that details or lines of code name, 0 to 1."""
        entry = self.charged[cause]
        if self._are_of_workers(cause) and self._worker_lines_s:
            return 1.0
        details_s = sum(detail.seconds for detail in entry.details if detail.code not in UNNAMED)
        lines_s = sum(line.seconds for line in self.code if line.cause == cause)
        return min(1.0, max(details_s, lines_s) / entry.seconds) if entry.seconds else 1.0

    def seconds_per_step(self, cause: str) -> float:
        """Mean of a cause over all steps of all ranks."""
        count = sum(row.steps for row in self.steps.per_rank)
        return (
            (self.charged[cause].seconds or 0.0) / count if cause in self.charged and count else 0.0
        )
