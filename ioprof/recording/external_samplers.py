"""What is recorded of a job from outside, in the process that starts it: page faults, samples of
host counters and of stacks.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from ioprof.errors import CaptureError
from ioprof.format.run_record import (
    CaptureRecord,
    Damage,
    FaultRecording,
    Reason,
    Sampling,
    StackSampling,
)
from ioprof.instrument import preload, recorder
from ioprof.instrument.faults import FaultRecorder
from ioprof.instrument.host import host
from ioprof.instrument.preload_trial import why_not_loaded
from ioprof.instrument.samplers import Sampler
from ioprof.recording.costs import with_kept_costs
from ioprof.stacks import StackSampler


class ExternalSamplers:
    """Records page faults and samples of a job; `add_to` is complete after the block of
    `recording`.
    """

    def __init__(
        self, start_faults: Callable[[Path], FaultRecorder] = FaultRecorder, *, stacks: bool = True
    ) -> None:
        self._start_faults = start_faults
        self._with_stacks = stacks
        self._stacks: StackSampling | None = None
        self._faults: FaultRecording | None = None
        self._sampling: Sampling | None = None
        self._damaged: tuple[Damage, ...] = ()

    def add_to(self, capture: CaptureRecord) -> CaptureRecord:
        """The record with what was recorded by what, at what cost, and why what was not, or not all
        of it.
        """
        damaged = (*capture.damaged, *self._damaged)
        return capture.replace(
            faults=self._faults, samplers=self._sampling, damaged=damaged, stacks=self._stacks
        )

    @contextmanager
    def recording(self, spool: Path) -> Iterator[None]:
        """Record what this thread starts in the block."""
        with ExitStack() as at_end:
            self._record_faults(spool, at_end)
            self._sample_host(spool, at_end)
            self._sample_stacks(spool, at_end)
            yield

    def _record_faults(self, spool: Path, at_end: ExitStack) -> None:
        try:
            faults = self._start_faults(spool)
        except CaptureError as error:
            self._faults = FaultRecording(reason=str(error))
            return

        def stop() -> None:
            self._faults = FaultRecording.of({"by": "perf events", "reason": None, **faults.stop()})
            if self._faults.error:
                what = f"page faults are missing at its end: {self._faults.error}"
                self._damaged = (Damage(file=Path(self._faults.path or "?").name, what=what),)

        at_end.callback(stop)

    def _sample_host(self, spool: Path, at_end: ExitStack) -> None:
        try:
            sampler = Sampler(str(spool)).start()
        except OSError as error:
            self._sampling = Sampling(
                reason=f"{error.filename or spool}: {error.strerror or error}"
            )
            return

        def stop() -> None:
            sampler.stop()
            self._sampling = Sampling.of(sampler.facts())

        at_end.callback(stop)

    def _sample_stacks(self, spool: Path, at_end: ExitStack) -> None:
        if not self._with_stacks:
            self._stacks = StackSampling(reason="switched off by --no-stacks")
            return
        try:
            sampler = StackSampler(spool, host(), preload.PACKAGE).start()
        except (CaptureError, OSError) as error:
            self._stacks = StackSampling(reason=str(error))
            return

        def stop() -> None:
            sampler.stop()
            self._stacks = StackSampling.of(sampler.facts())

        at_end.callback(stop)


_NOT_BUILT: Final = "the capture library is not built: install a C compiler and reinstall"


def capture_record(environment: Mapping[str, str], program: str | None = None) -> CaptureRecord:
    """What is known before a job starts of how it will be recorded; `program` is the one that it
    starts.
    """
    why_not = (
        _NOT_BUILT
        if preload.library() is None
        else None
        if program is None
        else why_not_loaded(program, environment)
    )
    recorded = CaptureRecord(
        native=recorder.uses_native(),
        library=why_not is None,
        hooks=True,
        reads=why_not is None,
        reads_reason=why_not,
        collectives_reason=_collectives_reason(environment),
    )
    return with_kept_costs(recorded, environment)


def _collectives_reason(environment: Mapping[str, str]) -> Reason | None:
    """Why the job's NCCL does not load the plugin of ioprof; None: it does, if the job uses
    NCCL.
    """
    plugin, named = preload.nccl_plugin(), environment.get(preload.NCCL_PLUGIN_VARIABLE)
    if plugin is not None and named == str(plugin):
        return None
    if named:
        return Reason.NCCL_PLUGIN_OF_JOB
    if environment.get(preload.NCCL_VARIABLE) != "on":
        return Reason.NCCL_SWITCHED_OFF
    if plugin is None:
        return Reason.NCCL_PLUGIN_NOT_BUILT
    return None if len(str(plugin)) < preload.LONGEST_PLUGIN else Reason.NCCL_PLUGIN_PATH_TOO_LONG
