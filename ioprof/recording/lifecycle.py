"""One job's recording, from before the job starts to its run folder; what `ioprof run` and
`ioprof record` have in common.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ioprof import clock
from ioprof.format.run_record import (
    ClockRecord,
    CommandTimes,
    Failure,
    HostRecord,
    Record,
    RunRecord,
)
from ioprof.instrument import preload
from ioprof.instrument.kernel_clocks import clock_facts, wall_error_ns
from ioprof.masking import masked_command
from ioprof.process import Fork, printable
from ioprof.recording.costs import with_costs
from ioprof.recording.external_samplers import ExternalSamplers, capture_record
from ioprof.recording.host_facts import (
    CpuMeter,
    host_record,
    num_killed_for_memory,
    recorded_variables,
    versions,
)
from ioprof.recording.keeping import Keeper
from ioprof.recording.loaded_early import LoadedEarly
from ioprof.recording.parts import own_part, part_folder, part_name
from ioprof.recording.pending_run import PendingRun
from ioprof.recording.signal_forwarding import inherited_descriptors
from ioprof.recording.storing_process import StoringProcess
from ioprof.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from ioprof.report.run import Run


def initial_record(
    command: Sequence[str],
    out: Path,
    environment: Mapping[str, str],
    *,
    keep_arguments: bool = False,
) -> RunRecord:
    """What is known of any run before it starts; `environment` is that of the process that records.

    Secrets in the command are masked unless `keep_arguments`.
    """
    return RunRecord(
        name=out.resolve().name,
        status="running",
        command=printable(shlex.join(command if keep_arguments else masked_command(command))),
        directory=_directory(),
        started=clock.wall_text(clock.anchor().wall_ns),
        hosts=(host_record(),),
        versions=versions(),
        environment={
            name: printable(value) for name, value in recorded_variables(environment).items()
        },
        clocks=ClockRecord.of(
            {"method": "one host, one monotonic clock", "uncertainty_ns": 0, **clock_facts()}
        ),
        capture=capture_record(environment, next(iter(command), None)),
    )


def _directory() -> str | None:
    try:
        return printable(str(Path.cwd()))
    except OSError:  # it was removed
        return None


class Recording:
    """A recording in its `with` block: a spool while the job runs, a run folder `out` after
    `finish`.

    An error in the block becomes one that names the folder of the capture files. `run` is what is
    known of the run so far. With `in_parts`, if a launcher started this command several times, each
    makes a part of the run, in a folder next to `out`. Without `stacks` no Python stacks are
    sampled. With `keep_ns` only the last so many nanoseconds are kept, and the sums of all.
    """

    def __init__(
        self,
        out: Path,
        force: bool,
        run: RunRecord,
        environment: Mapping[str, str],
        *,
        in_parts: bool = True,
        stacks: bool = True,
        keep_ns: int | None = None,
        reporter: Reporter = SILENT,
    ) -> None:
        self.environment: dict[str, str] = {}
        """For the job's processes: `environment`, and what they need to be recorded."""
        self.part = own_part(environment) if in_parts else None
        """Which part of the run this is; None: all of it."""
        self._whole = out
        own = run if self.part is None else run.replace(part=self.part.record())
        self._pending = PendingRun(
            out if self.part is None else part_folder(out, self.part), force, own
        )
        self._base_environment, self._reporter = environment, reporter
        self._samplers = ExternalSamplers(stacks=stacks)
        self._storing = StoringProcess()
        self._early: LoadedEarly | None = None
        self._keep_ns = keep_ns
        self._meter, self._anchor = CpuMeter(), clock.anchor()
        self._killed_before = num_killed_for_memory()

    @property
    def out(self) -> Path:
        """The run folder of this recording: of a part that of the part."""
        return self._pending.out

    @property
    def spool(self) -> Path:
        """Where the job's processes leave what they record."""
        return self._pending.spool

    def __enter__(self) -> "Recording":
        self._pending.begin()
        has_library = self._pending.run.capture.library is not False
        self.environment = preload.environment(
            self.spool, self._base_environment, hooks=True, with_library=has_library
        )
        return self

    def load_early(self, make: Callable[[], int]) -> Callable[[], None]:
        """Have a copy of this process load what the analysis needs, while the job runs;
        `make_early` has it call `make`. Returns what ends it.
        """

        def make_of(run: RunRecord) -> int:
            self._pending.run = run
            return make()

        self._early = LoadedEarly(make_of, _close_inherited)
        return self._early.close

    def make_early(self) -> Fork | None:
        """The copy, which makes the run; None: there is none."""
        if self._early is None or self._storing.pid is not None:
            return None
        return self._early.make(self._pending.run)

    @contextmanager
    def external_samplers(self) -> Iterator[None]:
        """Record page faults and samples of what this thread starts in the block, and when it began
        and ended.
        """
        with (
            self._storing.starting(self.spool),
            self._samplers.recording(self.spool),
            self._keeping(),
        ):
            start_ns = clock.monotonic_ns()
            try:
                yield
            finally:
                self.add(times=CommandTimes(start_ns, clock.monotonic_ns()))

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        if self._keep_ns is None:
            yield
            return
        keeper = Keeper(self.spool, self._keep_ns).start()
        try:
            yield
        finally:
            keeper.stop(clock.monotonic_ns())
            for error in keeper.errors:
                self._reporter.say(f"--keep: at some time nothing could be dropped: {error}")

    def add(self, **fields: Record | None) -> None:
        """Set fields of the run that became known since it started; also kept if the recording
        fails.
        """
        self._pending.run = self._pending.run.replace(**fields)

    def end(
        self, *, status: str, failures: Sequence[Failure], exit_code: int | None = None
    ) -> None:
        """Note how the job ended, and what only the process that waited for it can tell."""
        run = self._pending.run
        self._pending.run = run.replace(
            status=status,
            failures=tuple(failures),
            exit_code=exit_code,
            hosts=tuple(self._with_cpu_of_others(host, status) for host in run.hosts),
            capture=self._samplers.add_to(run.capture).replace(folder=str(self.spool.parent)),
            clocks=run.clocks.replace(wall_error_ns=self._wall_error_ns(run.clocks)),
        )

    def kept(self) -> AbstractContextManager[None]:
        """If the block fails, which may be in another process, the recording stays, and the error
        says where.
        """
        return self._pending.kept()

    def finish(self, answer: "Callable[[Run], None] | None" = None) -> "Run":
        """Make the run folder of a job that has ended, and remove the spool. `answer` shows the
        answer, before the page is made; not of a part.
        """
        run = self._pending.run
        finished = self._pending.make(
            run, self._storing, self._with_costs, answer if self.part is None else None
        )
        if self._pending.left or self.spool.exists():
            self._reporter.say(
                self._pending.left
                or f"could not be removed, and is not needed any more: {self.spool}"
            )
        if lost := finished.summary.capture.lost:
            self._reporter.say(_lost_text(lost, self.spool.parent))
        self._reporter.say(f"run folder: {self._pending.out}")
        if self.part is not None:
            which = part_name(self.part.number, self.part.of)
            self._reporter.say(
                f"which is {which}; when all have ended: ioprof gather"
                f" {shlex.quote(str(self._whole))}"
            )
        return finished

    def _with_costs(self, run: RunRecord) -> RunRecord:
        """With the costs of recording, found when what was recorded is stored, so that it need not
        wait for that.
        """
        return run.replace(capture=with_costs(run.capture, self._base_environment))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._storing.close()
        if error is not None:
            self._pending.give_up(error)

    def _wall_error_ns(self, clocks: ClockRecord) -> int | None:
        """How far the wall clock may have been wrong at most, and how far it was set meanwhile."""
        errors = [error for error in (clocks.wall_error_ns, wall_error_ns()) if error is not None]
        moved_ns = abs(clock.anchor().offset_ns - self._anchor.offset_ns)
        return max(errors) + moved_ns if len(errors) == 2 else None

    def _with_cpu_of_others(self, host: HostRecord, status: str) -> HostRecord:
        if self._killed_before is not None and (killed := num_killed_for_memory()) is not None:
            host = host.replace(killed_for_memory=killed - self._killed_before)
        if status == "complete":
            return host.replace(
                others_cpu_ratio=self._meter.others_ratio(
                    (self._storing.pid, self._early.pid if self._early else None)
                )
            )
        return host.replace(
            others_cpu_reason=(
                "killed processes of the job cannot be distinguished from other programs"
            )
        )


def _close_inherited() -> None:
    """Close what the caller gave to the command: who reads from a pipe waits for the command
    alone.
    """
    for descriptor in inherited_descriptors():
        with suppress(OSError):
            os.close(descriptor)


def _lost_text(lost: int, folder: Path) -> str:
    """Where spans found no room, and what to do."""
    return (
        f"{lost:,} spans were lost: the disk of {folder} was full while the job ran; what was"
        " recorded until then is kept; record again with TMPDIR=FOLDER on a disk with more room"
    )
