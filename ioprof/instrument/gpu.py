"""Records GPU activities with Kineto: device activities only, in windows that limit its memory.

    gpu.start(spool, "2s/30s", rank=0)     # no effect until the job has used CUDA
    gpu.step(7)                            # at the end of step 7; windows start and end only here
    gpu.stop()                             # at the end of the process; also called automatically

A window writes two files to the spool: `kineto-<host>-<pid>-<n>.json`, as exported by
torch.profiler, and `.meta.json` with the ends of steps and two wall clock readings, with which
`ioprof.ingest.kineto` converts its times to the monotonic clock. A file that was being written when
the process was killed has the suffix `.json.tmp`.

To end a window takes some 30 us for each of its kernels, in which the job is blocked. So that
windows cost at most `MOST_COST` of the time, the next one begins 2, 4, 8 ... periods later where
that is necessary, except if all of the time is recorded.

CUPTI supports one profiler at a time. While another one is active, no window starts; if the job
starts its own torch.profiler, the open window ends first. This module does not import torch: a
process that has not imported it has no kernels.
"""

# ruff: noqa: SLF001 - torch has no public API for whether a profiler is active

import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from weakref import WeakSet

from ioprof import clock
from ioprof.errors import CaptureError
from ioprof.format.schema import WINDOW_SPAN
from ioprof.instrument.endings import call_at_end
from ioprof.instrument.host import host
from ioprof.instrument.span import emit

DEFAULT_WINDOW: Final = "2s/30s"
"""Two of every thirty seconds: a step recorded by Kineto can take twice its time, see
`docs/decisions/gpu.md`."""
MOST_COST: Final = 0.005
"""Share of the time in which windows may block the job. On an H100 one of 2 s with 20,000 kernels
blocked it for 0.67 s."""
META_SCHEMA: Final = "ioprof.gpu/1"
QUIET: Final = {"KINETO_LOG_LEVEL": "6"}
"""Prevents Kineto from writing two lines to stderr for each window; read when torch is imported, so
it must be set before."""

_ALL_LENGTH_NS: Final = 5_000_000_000  # with "all": memory holds the events of this time
_RETRY_NS: Final = 500_000_000
"""Time between two checks whether a window can start; steps may take only milliseconds."""
_NEVER_NS: Final = (1 << 63) - 1
_ATTEMPTS: Final = 3  # failures in a row after which no more windows are tried
_FINALIZER_PRIORITY: Final = -90  # in multiprocessing: before the recorder, which has -100
_UNITS_NS: Final = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_SETTING: Final = re.compile(r"(\d+)(ms|s|m)/(\d+)(ms|s|m)")
_OTHER_PROFILERS: Final = {
    "NSYS_PROFILING_SESSION_ID": "nsys profiles this process",
    "CUDA_INJECTION64_PATH": "a library is injected into CUDA (CUDA_INJECTION64_PATH)",
    "KINETO_USE_DAEMON": "Kineto is controlled by a daemon (KINETO_USE_DAEMON)",
}
"""Environment variables that mean that CUPTI is in use, or may be at any time."""


@dataclass(frozen=True)
class Plan:
    """When windows are recorded: `length_ns` of every `period_ns`, both counted from the end of a
    step.
    """

    length_ns: int
    period_ns: int

    def periods(self, cost_ns: int) -> int:
        """How many periods after a window that blocked the job for `cost_ns` the next one may
        begin: a power of two.
        """
        periods = 1
        while self.length_ns < self.period_ns and cost_ns > MOST_COST * periods * self.period_ns:
            periods *= 2
        return periods

    def describe_delay(self, periods: int) -> str:
        """Why windows are this many periods apart."""
        period_s = self.period_ns / 1e9
        often = (
            f"the GPU was recorded less often, every {periods * period_s:g} s instead of"
            f" {period_s:g} s"
        )
        return (
            f"{often}, since a window blocked the job for more than"
            f" {MOST_COST * periods / 2 * period_s:g} s"
        )


def plan(setting: str) -> Plan | None:
    """Parse "2s/30s", "all" or "off" (None). Raises `CaptureError`."""
    if setting == "off":
        return None
    if setting == "all":
        return Plan(_ALL_LENGTH_NS, _ALL_LENGTH_NS)
    parts = _SETTING.fullmatch(setting)
    length, period = (
        (int(parts[at]) * _UNITS_NS[parts[at + 1]] for at in (1, 3)) if parts else (0, 0)
    )
    if not 0 < length <= period:
        raise CaptureError(
            f"GPU window {setting!r}: give a length and a period, such as {DEFAULT_WINDOW}, or all,"
            " or off"
        )
    return Plan(length, period)


_session: "Session | None" = None


def start(
    spool: "str | os.PathLike[str]",
    window: str = DEFAULT_WINDOW,
    *,
    rank: int = -1,
    environment: Mapping[str, str] | None = None,
    activities: Collection[str] = ("CUDA",),
) -> None:
    """Record windows of this process into the folder `spool`, from the next `step` on.

    `rank` is -1 if there is none; `environment` is that of the process, to detect other profilers;
    `activities` are names of `torch.profiler.ProfilerActivity`. No effect with "off" or if already
    started. Raises `CaptureError`.
    """
    global _session
    chosen = plan(window)
    if chosen is None or _session is not None:
        return
    _session = Session(os.path.abspath(spool), chosen, rank, activities)
    for name, reason in _OTHER_PROFILERS.items():
        if name in (environment or {}):
            _session.give_up(reason)
    call_at_end(stop, _reset_in_child, _FINALIZER_PRIORITY)


def step(number: int) -> int:
    """Report the end of step `number`. Returns how long this call blocked the job for a window, in
    nanoseconds; mostly 0.
    """
    return _session.step(number) if _session is not None else 0


def end_step(number: int) -> int:
    """The same, but returns the time, CLOCK_MONOTONIC ns, until which no call is needed."""
    step(number)
    return _session.idle_until_ns if _session is not None else 0


def stop() -> int:
    """End the session and an open window. Returns how long this took in nanoseconds."""
    global _session
    session, _session = _session, None
    return session.close() if session is not None else 0


def notes() -> dict[str, int]:
    """Reasons why windows were not recorded or ended early, and their counts."""
    return dict(_session.notes) if _session is not None else {}


def _reset_in_child() -> None:
    """Drop the session after a fork: CUDA does not work in the child, and the files belong to the
    parent.
    """
    global _session
    if _session is not None:
        _session.unpatch()
        _session = None


# -------------------------------------------------------------------------------------- the session


@dataclass
class _Window:
    """One window, as written to `.meta.json`; times are nanoseconds of CLOCK_MONOTONIC."""

    number: int
    started_ns: int
    """Before the profiler was started."""
    first_step: int
    """The step at whose end the window started; the steps after it are complete."""
    marks: list[tuple[int, int]]
    """Step and the time of its end."""
    anchors: list[dict[str, int]]
    """Wall clock readings at the start and at the end."""
    ready_ns: int | None = None
    """When the profiler was running."""
    ending_ns: int | None = None
    """When it began to be ended: from then on the job is blocked, also in calls that Kineto
    records."""
    stopped_ns: int | None = None
    """When the device had finished all launched work; null: the process ended during the window."""
    ended_by: str | None = None
    cost_ns: int = 0
    """How long the window blocked the job: starting, waiting for the device, ending and writing."""
    thread: int = field(default_factory=threading.get_ident)
    """The thread of the steps."""
    threads: list[tuple[int, int]] = field(default_factory=lambda: _threads())
    """What `threading` calls each thread, and its system thread id."""


class Session:
    """The windows of one process. The functions of this module use a single session."""

    def __init__(self, spool: str, chosen: Plan, rank: int, activities: Collection[str]) -> None:
        self.cost_ns = 0
        """How long windows have blocked the job: starting, waiting for the device, ending and
        writing."""
        self.notes: Counter[str] = Counter()
        self._spool, self._plan, self._rank, self._activities = (
            spool,
            chosen,
            rank,
            frozenset(activities),
        )
        self._window: _Window | None = None
        self._profile: Any = None
        self._patch: _ProfilerPatch | None = None
        self._num_windows = 0
        self._num_failed = 0
        self._first_ns: int | None = None
        """When the first window could begin; others begin whole periods later."""
        self._next = 0
        """The period in which the next window begins, from 0."""
        self._asked = 0
        """The period in which it would begin if the last one had cost nothing."""
        self._begun = 0
        """The period in which the last one began."""
        self._periods = 1
        """Between windows, by what the last one cost."""
        self._idle_until_ns = 0
        """No window starts before this time, so `step` need not check."""
        self._given_up = False
        self._facts: dict[str, Any] = {}

    @property
    def idle_until_ns(self) -> int:
        """Until then `step` does nothing."""
        return self._idle_until_ns if self._window is None else 0

    def step(self, number: int) -> int:
        """See the module's function."""
        now, window = clock.monotonic_ns(), self._window
        if window is None and now < self._idle_until_ns:
            return 0
        if window is not None:
            window.marks.append((number, now))
            if now - window.started_ns < self._plan.length_ns or self._is_capturing():
                return 0
            self.end("its time was over")
        if self._is_due(clock.monotonic_ns()):
            self._begin(number)
        elif window is None:
            next_ns = (
                _NEVER_NS
                if self._first_ns is None
                else self._first_ns + self._next * self._plan.period_ns
            )
            self._idle_until_ns = min(now + _RETRY_NS, next_ns)
            return 0
        return self._charge(now, number + 1)

    def end(self, reason: str) -> None:
        """End the open window, if there is one, and write its events."""
        window, profile = self._window, self._profile
        if window is None:
            return
        self._window = self._profile = None
        window.ended_by, window.ending_ns = reason, clock.monotonic_ns()
        window.threads = sorted({*window.threads, *_threads()})
        begin_cost_ns = window.cost_ns
        self._finish(window, profile, window.ending_ns)
        self._delay(begin_cost_ns + clock.monotonic_ns() - window.ending_ns)

    def _finish(self, window: _Window, profile: Any, began_ns: int) -> None:
        try:
            profile.__exit__(None, None, None)  # waits for the device
        except Exception as error:  # an error in Kineto must not end the job
            self._count_failure(f"a window could not be ended ({_describe(error)})")
            return
        window.stopped_ns = clock.monotonic_ns()
        window.anchors.append(asdict(clock.anchor()))
        self._export(window, profile, began_ns)

    def _delay(self, cost_ns: int) -> None:
        """Leave out windows after one that blocked the job for that long.

        Windows are at whole numbers of these powers of two, so that ranks whose windows cost
        differently still have some of them at the same time.
        """
        self._periods = periods = self._plan.periods(cost_ns)
        self._next = max(self._next, -(-(self._begun + periods) // periods) * periods)

    def yield_to_other(self) -> None:
        """End the open window because another profiler starts; its events up to now are kept."""
        if self._window is None:
            return
        began_ns = clock.monotonic_ns()
        if self._window.thread != threading.get_ident():
            # A session of torch.autograd belongs to the thread that started it; there it ends with
            # the next step.
            self._note("another thread started a profiler while a window was open")
            return
        self._note("a window ended early, because the job started a profiler of its own")
        self.end("the job started a profiler of its own")
        self._charge(began_ns)

    def give_up(self, reason: str) -> None:
        """Start no more windows."""
        self._note(reason)
        self._given_up = True

    def close(self) -> int:
        """End the window and remove the patches. Returns how long that took in nanoseconds."""
        began_ns = clock.monotonic_ns()
        open_window = self._window is not None
        self.end("the process ended")
        self.unpatch()
        return self._charge(began_ns) if open_window else 0

    def unpatch(self) -> None:
        """Remove the patches, without ending an open window."""
        if self._patch is not None:
            self._patch.remove()
            self._patch = None

    def _is_due(self, now: int) -> bool:
        """Whether a window should start and can."""
        torch = sys.modules.get("torch")
        if self._given_up or torch is None or not hasattr(torch, "autograd"):
            return False
        # A check whether CUDA is available would initialise it, and children forked afterwards
        # could not use it.
        if "CUDA" in self._activities and (not torch.cuda.is_initialized() or self._is_capturing()):
            return False
        if self._first_ns is None:
            self._first_ns = now
        period = (now - self._first_ns) // self._plan.period_ns  # all ranks keep the same phase
        if period < self._next:
            if period >= self._asked:
                self._asked = period + 1
                self._note(self._plan.describe_delay(self._periods))
            return False
        self._next = self._asked = period + 1
        if self._patch is None:
            self._patch = _ProfilerPatch(torch.autograd.profiler.profile, self.yield_to_other)
        if (
            self._patch.num_others()
            or torch.autograd.profiler._is_profiler_enabled
            or torch.autograd._profiler_enabled()
        ):
            self._note("a window was not recorded, because another profiler was active")
            return False
        return True

    def _is_capturing(self) -> bool:
        """Whether the job captures a CUDA graph, which a synchronisation would invalidate."""
        return "CUDA" in self._activities and bool(
            sys.modules["torch"].cuda.is_current_stream_capturing()
        )

    def _begin(self, step: int) -> None:
        asked_ns = clock.monotonic_ns()
        try:
            assert self._patch is not None
            # earlier launches are not recorded and must not run into the window
            if "CUDA" in self._activities:
                sys.modules["torch"].cuda.synchronize()
            started_ns = clock.monotonic_ns()
            window = _Window(
                self._num_windows, started_ns, step, [(step, started_ns)], [asdict(clock.anchor())]
            )
            self._profile = self._patch.own = _new_profile(self._activities)
            self._profile.__enter__()
            self._patch.own = None  # do not keep a reference: the profile holds all its events
        except Exception as error:  # no CUPTI, no permission, an incompatible torch
            self._profile = None
            self._count_failure(f"a window could not be started ({_describe(error)})")
            return
        window.ready_ns = clock.monotonic_ns()
        window.cost_ns = window.ready_ns - asked_ns
        self._window, self._begun = window, self._asked - 1
        self._num_windows += 1
        self._facts = self._facts or _device_facts()
        self._write_meta(window)

    def _export(self, window: _Window, profile: Any, began_ns: int) -> None:
        path = self._path(window)
        try:
            self._write_meta(window)
            profile.export_chrome_trace(path + ".tmp")
            os.replace(path + ".tmp", path)
        except Exception as error:  # a full disk, or an error in Kineto
            with suppress(OSError):
                os.unlink(path + ".tmp")
            self._count_failure(f"a window could not be written ({_describe(error)})")
            return
        self._num_failed = 0
        window.cost_ns += clock.monotonic_ns() - began_ns
        self._write_meta(window)

    def _count_failure(self, reason: str) -> None:
        self._note(reason)
        self._num_failed += 1
        if self._num_failed >= _ATTEMPTS:
            self.give_up(f"no more windows after {_ATTEMPTS} failures")

    def _charge(self, began_ns: int, step: int = -1) -> int:
        """Record that the job was blocked since `began_ns`, in that step, which is longer by it;
        -1: not known.
        """
        now = clock.monotonic_ns()
        self.cost_ns += now - began_ns
        emit("user", began_ns, now, WINDOW_SPAN, step=step)
        return now - began_ns

    def _note(self, reason: str) -> None:
        new = reason not in self.notes
        self.notes[reason] += 1
        if new:  # write each new reason at once, since the process may be killed; the counts on disk may be old  # noqa: E501
            self._write(
                os.path.join(self._spool, f"gpu-{host()}-{os.getpid()}.json"),
                {
                    "schema": META_SCHEMA,
                    "host": host(),
                    "pid": os.getpid(),
                    "rank": self._rank,
                    "notes": dict(self.notes),
                },
            )

    def _path(self, window: _Window) -> str:
        return os.path.join(self._spool, f"kineto-{host()}-{os.getpid()}-{window.number}.json")

    def _write_meta(self, window: _Window) -> None:
        about = {
            "schema": META_SCHEMA,
            "host": host(),
            "pid": os.getpid(),
            "rank": self._rank,
            **self._facts,
            **asdict(window),
        }
        self._write(self._path(window).removesuffix(".json") + ".meta.json", about)

    def _write(self, path: str, content: dict[str, Any]) -> None:
        """Write atomically by rename; errors such as a full disk are ignored."""
        with suppress(OSError):
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(path + ".new", path)


class _ProfilerPatch:
    """Detects profilers that the job starts, by patching torch.autograd.profiler, which
    torch.profiler is based on.
    """

    own: Any = None
    """The profile of the session itself while it starts."""

    def __init__(self, profile_class: Any, before_other: Callable[[], None]) -> None:
        self._class = profile_class
        self._prepare, self._exit = profile_class._prepare_trace, profile_class.__exit__
        # from its warm-up to its end a profiler is in use without being enabled
        self._others: WeakSet[Any] = WeakSet()
        profile_class._prepare_trace, profile_class.__exit__ = self._make_wrappers(before_other)

    def num_others(self) -> int:
        """Number of profilers of the job that are prepared or active."""
        return len(self._others)

    def remove(self) -> None:
        """Remove the patch, unless another one was applied after it."""
        if (
            self._class._prepare_trace is self._prepare_wrapper
            and self._class.__exit__ is self._exit_wrapper
        ):
            self._class._prepare_trace, self._class.__exit__ = self._prepare, self._exit

    def _make_wrappers(
        self, before_other: Callable[[], None]
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def prepare_trace(profile: Any, *arguments: Any, **named: Any) -> Any:
            if profile is not self.own:
                before_other()
                self._others.add(profile)
            return self._prepare(profile, *arguments, **named)

        def exit_(profile: Any, *arguments: Any, **named: Any) -> Any:
            self._others.discard(profile)
            return self._exit(profile, *arguments, **named)

        self._prepare_wrapper, self._exit_wrapper = prepare_trace, exit_
        return prepare_trace, exit_


def _new_profile(activities: Collection[str]) -> Any:
    """A profile of torch.autograd without Python objects for events and without correlation to
    operators.
    """
    torch = sys.modules["torch"]
    make = torch._C._profiler._ExperimentalConfig
    try:
        config = make(trace_only=True, disable_external_correlation=True)
    except TypeError:  # before torch 2.10 or so
        config = make()
    device = "cuda" if "CUDA" in activities else None
    return torch.autograd.profiler.profile(
        use_cpu="CPU" in activities, use_device=device, use_kineto=True, experimental_config=config
    )


def _device_facts() -> dict[str, Any]:
    """The version of torch and the devices of this process."""
    torch = sys.modules["torch"]
    devices = []
    with suppress(Exception):  # informational only
        for index in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
            about = torch.cuda.get_device_properties(index)
            devices.append(
                {
                    "index": index,
                    "name": about.name,
                    "uuid": str(getattr(about, "uuid", "")) or None,
                }
            )
    return {"torch": str(torch.__version__), "devices": devices}


def _threads() -> list[tuple[int, int]]:
    """The threads that Python knows: what `threading` calls them, and their system thread ids."""
    current = threading.get_ident(), threading.get_native_id()
    others = ((thread.ident, thread.native_id) for thread in threading.enumerate())
    return sorted({current, *((ident, tid) for ident, tid in others if ident and tid)})


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
