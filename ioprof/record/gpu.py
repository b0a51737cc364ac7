"""The GPU's own record of what it did: a Kineto session per process, device activities only, in windows that bound its memory.

    gpu.start(spool, "2s/30s", rank=0)     # nothing happens until the job has used CUDA
    gpu.step(7)                            # at the end of step 7: windows begin and end here, and nowhere else
    gpu.stop()                             # at the end of the process; also done by itself

A window leaves two files in the spool: `kineto-<host>-<pid>-<n>.json`, as torch.profiler exports it, and beside it `.meta.json`
with what Kineto does not know: the ends of steps and two readings of the wall clock, so that `ioprof.spool.kineto` can put its
records on the monotonic clock. A file that was being written when the process was killed is called `.json.tmp`.

CUPTI has room for one profiler. Where another is at work no window begins; where the job starts its own torch.profiler, ours ends
first. Torch is never imported here, only found: a process that has not loaded it has no kernels.
"""

# ruff: noqa: SLF001 - torch tells only its own modules whether a profiler is at work, and what one is made of

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
from ioprof.record.endings import call_at_end
from ioprof.record.host import host
from ioprof.record.span import emit

DEFAULT_WINDOW: Final = "2s/30s"
"""Two of every thirty seconds: a step under Kineto can take twice its time, see `ioprof/README.md`."""
META_SCHEMA: Final = "ioprof.gpu/1"
WINDOW_SPAN: Final = "ioprof: gpu window"
"""Name of the spans, of kind `user`, during which the job stood still for this module."""
QUIET: Final = {"KINETO_LOG_LEVEL": "6"}
"""What keeps Kineto from writing two lines to the job's stderr for each window; read when torch is loaded, so set it before."""

_ALL_LENGTH_NS: Final = 5_000_000_000  # with "all": memory holds the records of this time
_LOOK_AGAIN_NS: Final = (
    500_000_000  # for what makes a window possible: a job that steps in milliseconds is not to be asked each time
)
_NEVER_NS: Final = (1 << 63) - 1
_ATTEMPTS: Final = 3  # sessions that fail one after the other, until no more are tried
_BEFORE_THE_RING: Final = -90  # priority among multiprocessing's finalizers: the recorder ends at -100
_UNITS_NS: Final = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_SETTING: Final = re.compile(r"(\d+)(ms|s|m)/(\d+)(ms|s|m)")
_OTHER_PROFILERS: Final = {
    "NSYS_PROFILING_SESSION_ID": "nsys profiles this process",
    "CUDA_INJECTION64_PATH": "a library is injected into CUDA (CUDA_INJECTION64_PATH)",
    "KINETO_USE_DAEMON": "Kineto serves a daemon (KINETO_USE_DAEMON)",
}
"""What in the environment says that CUPTI is, or may at any time be, in use."""


@dataclass(frozen=True)
class Plan:
    """When windows are recorded: `length_ns` out of every `period_ns`, both counted from the end of a step."""

    length_ns: int
    period_ns: int


def plan(setting: str) -> Plan | None:
    """What "2s/30s", "all" or "off" (None) means. Raises `CaptureError`."""
    if setting == "off":
        return None
    if setting == "all":
        return Plan(_ALL_LENGTH_NS, _ALL_LENGTH_NS)
    parts = _SETTING.fullmatch(setting)
    length, period = (int(parts[at]) * _UNITS_NS[parts[at + 1]] for at in (1, 3)) if parts else (0, 0)
    if not 0 < length <= period:
        raise CaptureError(f"GPU window {setting!r}: give a length and a period, such as {DEFAULT_WINDOW}, or all, or off")
    return Plan(length, period)


_session: "Session | None" = None


def start(
    spool: "str | os.PathLike[str]", window: str = DEFAULT_WINDOW, *, rank: int = -1, environment: Mapping[str, str] | None = None,
    activities: Collection[str] = ("CUDA",),
) -> None:  # fmt: skip
    """Record windows of this process into the folder `spool`, from the next `step` on.

    `rank` is -1 where there is none; `environment` is the process's, which tells of other profilers; `activities` are names of
    `torch.profiler.ProfilerActivity`. With "off", or if it was started before, it does nothing. Raises `CaptureError`.
    """
    global _session
    chosen = plan(window)
    if chosen is None or _session is not None:
        return
    _session = Session(os.path.abspath(spool), chosen, rank, activities)
    for name, reason in _OTHER_PROFILERS.items():
        if name in (environment or {}):
            _session.give_up(reason)
    call_at_end(stop, _forget_in_child, _BEFORE_THE_RING)


def step(number: int) -> int:
    """The step `number` of the job has ended. Returns the nanoseconds that this call took from the job for a window; mostly 0."""
    return _session.step(number) if _session is not None else 0


def stop() -> int:
    """End the session and the window that is open, if any. Returns the nanoseconds that this took."""
    global _session
    session, _session = _session, None
    return session.close() if session is not None else 0


def cost_ns() -> int:
    """Nanoseconds that windows took from the job so far: to begin, to wait for the device, to end and to write."""
    return _session.cost_ns if _session is not None else 0


def notes() -> dict[str, int]:
    """Why windows were not recorded, or ended early, and how often."""
    return dict(_session.notes) if _session is not None else {}


def _forget_in_child() -> None:
    """CUDA does not survive a fork, and the files are the parent's."""
    global _session
    if _session is not None:
        _session.forget()
        _session = None


# ------------------------------------------------------------------------------------------------ the session


@dataclass
class _Window:
    """One recording, as `.meta.json` tells it; times are nanoseconds of CLOCK_MONOTONIC."""

    number: int
    started_ns: int
    """Before the profiler was started."""
    first_step: int
    """The step at whose end the window began; steps after it are whole."""
    marks: list[tuple[int, int]]
    """Step and the time of its end."""
    anchors: list[dict[str, int]]
    """The wall clock at the start and at the end."""
    ready_ns: int | None = None
    """When the profiler was running."""
    stopped_ns: int | None = None
    """When the device had done all that was launched; null: the process ended within."""
    ended_by: str | None = None
    cost_ns: int = 0
    """What the window took from the job: to begin, to wait for the device, to end and to write."""
    thread: int = field(default_factory=threading.get_ident)


class Session:
    """Windows of one process. The functions of this module hold the only one that a job has."""

    def __init__(self, spool: str, chosen: Plan, rank: int, activities: Collection[str]) -> None:
        self.cost_ns = 0
        self.notes: Counter[str] = Counter()
        self._spool, self._plan, self._rank, self._activities = spool, chosen, rank, frozenset(activities)
        self._window: _Window | None = None
        self._profile: Any = None
        self._watch: _Watch | None = None
        self._num_windows = 0
        self._num_failed = 0
        self._next_ns: int | None = None
        self._idle_until_ns = 0
        """No window is to begin before, and why not need not be asked."""
        self._given_up = False
        self._facts: dict[str, Any] = {}

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
        if self._due(clock.monotonic_ns()):
            self._begin(number)
        elif window is None:
            self._idle_until_ns = min(now + _LOOK_AGAIN_NS, self._next_ns or _NEVER_NS)
            return 0
        return self._charge(now)

    def end(self, reason: str) -> None:
        """End the open window, if there is one, and write what it recorded."""
        window, profile = self._window, self._profile
        if window is None:
            return
        self._window = self._profile = None
        window.ended_by, began_ns = reason, clock.monotonic_ns()
        try:
            profile.__exit__(None, None, None)  # waits for the device
        except Exception as error:  # whatever happens in Kineto, the job must go on
            self._failed(f"a window could not be ended ({_said(error)})")
            return
        window.stopped_ns = clock.monotonic_ns()
        window.anchors.append(asdict(clock.anchor()))
        self._export(window, profile, began_ns)

    def make_way(self) -> None:
        """Another profiler starts: end ours, whose records up to now are kept."""
        if self._window is None:
            return
        began_ns = clock.monotonic_ns()
        if self._window.thread != threading.get_ident():
            # A session of torch.autograd belongs to the thread that began it; there it ends with the next step.
            self._note("another thread started a profiler while a window was open")
            return
        self._note("a window ended early, because the job started a profiler of its own")
        self.end("the job started a profiler of its own")
        self._charge(began_ns)

    def give_up(self, reason: str) -> None:
        """Begin no more windows."""
        self._note(reason)
        self._given_up = True

    def close(self) -> int:
        """End all, undo the patches. Returns the nanoseconds that it took."""
        began_ns = clock.monotonic_ns()
        open_window = self._window is not None
        self.end("the process ended")
        self.forget()
        return self._charge(began_ns) if open_window else 0

    def forget(self) -> None:
        """Undo the patches, and leave what is open as it is."""
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _due(self, now: int) -> bool:
        """Whether a window should begin, and can."""
        torch = sys.modules.get("torch")
        if self._given_up or torch is None or not hasattr(torch, "autograd"):
            return False
        # Asking CUDA whether it is there would begin it, and a process that then forks could not use it in its children.
        if "CUDA" in self._activities and (not torch.cuda.is_initialized() or self._is_capturing()):
            return False
        if self._next_ns is None:
            self._next_ns = now
        if now < self._next_ns:
            return False
        while self._next_ns <= now:  # ranks keep the period that they began together
            self._next_ns += self._plan.period_ns
        if self._watch is None:
            self._watch = _Watch(torch.autograd.profiler.profile, self.make_way)
        if self._watch.others() or torch.autograd.profiler._is_profiler_enabled or torch.autograd._profiler_enabled():
            self._note("a window was not recorded, because another profiler was at work")
            return False
        return True

    def _is_capturing(self) -> bool:
        """Whether the job is recording a CUDA graph, which waiting for the device would spoil."""
        return "CUDA" in self._activities and bool(sys.modules["torch"].cuda.is_current_stream_capturing())

    def _begin(self, step: int) -> None:
        asked_ns = clock.monotonic_ns()
        try:
            assert self._watch is not None
            if "CUDA" in self._activities:  # what was launched before is not recorded, and must not run on into the window
                sys.modules["torch"].cuda.synchronize()
            started_ns = clock.monotonic_ns()
            window = _Window(self._num_windows, started_ns, step, [(step, started_ns)], [asdict(clock.anchor())])
            self._profile = self._watch.own = _new_profile(self._activities)
            self._profile.__enter__()
            self._watch.own = None  # it holds all that it records
        except Exception as error:  # no CUPTI, no right to use it, a torch that changed
            self._profile = None
            self._failed(f"a window could not be begun ({_said(error)})")
            return
        window.ready_ns = clock.monotonic_ns()
        window.cost_ns = window.ready_ns - asked_ns
        self._window = window
        self._num_windows += 1
        self._facts = self._facts or _device_facts()
        self._write_meta(window)

    def _export(self, window: _Window, profile: Any, began_ns: int) -> None:
        path = self._path(window)
        try:
            self._write_meta(window)
            profile.export_chrome_trace(path + ".tmp")
            os.replace(path + ".tmp", path)
        except Exception as error:  # a full disk, or Kineto
            with suppress(OSError):
                os.unlink(path + ".tmp")
            self._failed(f"a window could not be written ({_said(error)})")
            return
        self._num_failed = 0
        window.cost_ns += clock.monotonic_ns() - began_ns
        self._write_meta(window)

    def _failed(self, reason: str) -> None:
        self._note(reason)
        self._num_failed += 1
        if self._num_failed >= _ATTEMPTS:
            self.give_up(f"no more windows after {_ATTEMPTS} that failed")

    def _charge(self, began_ns: int) -> int:
        """Record that the job stood still since `began_ns`."""
        now = clock.monotonic_ns()
        self.cost_ns += now - began_ns
        emit("user", began_ns, now, WINDOW_SPAN)
        return now - began_ns

    def _note(self, reason: str) -> None:
        new = reason not in self.notes
        self.notes[reason] += 1
        if new:  # the process may be killed: each reason is on the disk at once, its count may be old
            self._write(os.path.join(self._spool, f"gpu-{host()}-{os.getpid()}.json"), {
                "schema": META_SCHEMA, "host": host(), "pid": os.getpid(), "rank": self._rank, "notes": dict(self.notes),
            })  # fmt: skip

    def _path(self, window: _Window) -> str:
        return os.path.join(self._spool, f"kineto-{host()}-{os.getpid()}-{window.number}.json")

    def _write_meta(self, window: _Window) -> None:
        about = {"schema": META_SCHEMA, "host": host(), "pid": os.getpid(), "rank": self._rank, **self._facts, **asdict(window)}
        self._write(self._path(window).removesuffix(".json") + ".meta.json", about)

    def _write(self, path: str, content: dict[str, Any]) -> None:
        """By rename; a disk that is full costs the record, not the job."""
        with suppress(OSError):
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(path + ".new", path)


class _Watch:
    """Sees every profiler that the job makes ready: torch.profiler, and the older torch.autograd.profiler that it rests on."""

    own: Any = None
    """The session's own profile while it begins, which is not another."""

    def __init__(self, watched: Any, make_way: Callable[[], None]) -> None:
        self._watched = watched
        self._prepare, self._exit = watched._prepare_trace, watched.__exit__
        self._others: WeakSet[Any] = WeakSet()  # between its warm-up and its end a profiler is in use without being enabled
        watched._prepare_trace, watched.__exit__ = self._wrapped(make_way)

    def others(self) -> int:
        """How many profilers of the job are ready or at work."""
        return len(self._others)

    def remove(self) -> None:
        """Leave the class as it was, unless somebody patched it after us."""
        if self._watched._prepare_trace is self._prepare_wrapped and self._watched.__exit__ is self._exit_wrapped:
            self._watched._prepare_trace, self._watched.__exit__ = self._prepare, self._exit

    def _wrapped(self, make_way: Callable[[], None]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def prepare_trace(profile: Any, *arguments: Any, **named: Any) -> Any:
            if profile is not self.own:
                make_way()
                self._others.add(profile)
            return self._prepare(profile, *arguments, **named)

        def exit_(profile: Any, *arguments: Any, **named: Any) -> Any:
            self._others.discard(profile)
            return self._exit(profile, *arguments, **named)

        self._prepare_wrapped, self._exit_wrapped = prepare_trace, exit_
        return prepare_trace, exit_


def _new_profile(activities: Collection[str]) -> Any:
    """A profile of torch.autograd that keeps no Python objects of its events, and ties nothing to operators."""
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
    """Torch's version and the devices that this process could use."""
    torch = sys.modules["torch"]
    devices = []
    with suppress(Exception):  # for the record only
        for index in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
            about = torch.cuda.get_device_properties(index)
            devices.append({"index": index, "name": about.name, "uuid": str(getattr(about, "uuid", "")) or None})
    return {"torch": str(torch.__version__), "devices": devices}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
