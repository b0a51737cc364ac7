"""Compares the clocks of the hosts of a job while it runs, by messages over the store of its
process group.

    clock of rank 0     sent ───────╲             ╱──── received
    another clock                    ╲── read ───╱

The reading was made between the two times, whatever the messages waited for: it bounds the offset
of the two clocks from both sides, and the shortest of several round trips bounds it best. Rank 0
asks one rank of each other clock, at the start, then after an eighth of the time that has passed,
and at least once a minute. All of it runs in a thread of its own, on a connection of its own: what
the job itself asks of the store does not wait for it. Where all ranks share a host nothing is done.

The thread must have ended before the interpreter does: torch's store releases the interpreter's
lock while it waits, and a thread that takes it again when the interpreter is gone is ended within a
C++ destructor, which aborts the process. So a rank that is asked rarely waits in the store, but
looks whether a round has begun, and an exit of the process stops the thread and waits for it.

Each round appends a line to `clocks-HOST-PID.jsonl` in the spool: `host`, `kernel` and `shift_ns`
of the other clock, and `messages`, each `[sent_ns, read_ns, received_ns]`.
"""

import _thread
import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.appending import append
from ioprof.instrument.endings import call_at_end
from ioprof.instrument.host import host
from ioprof.instrument.kernel_clocks import boot_id, monotonic_shift_ns

MESSAGES: Final = 24
"""Round trips per round, of which the shortest counts; each takes 0.1 ms on a host, and a few of
rank 0's microseconds."""
_LONGEST_PAUSE_S: Final = 60.0
_SHORTEST_PAUSE_S: Final = 1.0
_PAUSE_RATIO: Final = 1 / 8
_LOOK_S: Final = 0.2
"""How often a rank looks whether it is asked."""
_BEGIN_S: Final = 2.0
"""How long rank 0 waits for a rank to begin a round."""
_TIMEOUT: Final = timedelta(seconds=2)
"""Of a single request to the store: a message is answered within a millisecond, unless its rank is
stopped."""
_STOP_TIMEOUT_S: Final = 5.0
_MOST_FAILURES: Final = 3
"""Rounds in a row that fail before a thread gives up: the store is gone, or a rank."""
_FINALIZER_PRIORITY: Final = 100


def start(
    module: ModuleType, spool: Path, environment: Mapping[str, str], is_on: Callable[[], bool]
) -> bool:
    """Begin to compare the clocks of the ranks of the process group of `torch.distributed`, which
    exists.

    `is_on` says whether this process is still recorded. Returns False where there is no need, or no
    store that can be used.
    """
    distributed: Any = module
    ranks = distributed.get_world_size()
    if ranks < 2 or environment.get("LOCAL_WORLD_SIZE") == str(ranks):
        return False
    store = distributed._get_default_store()  # noqa: SLF001
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    # others are for ranks of one host, or keep nothing that both could wait for
    if type(store).__name__ != "TCPStore":
        return False
    exchange = _Exchange(
        store, f"ioprof/clocks {environment.get('TORCHELASTIC_RESTART_COUNT', '0')}", spool, is_on
    )
    exchange.start(exchange.ask if distributed.get_rank() == 0 else exchange.answer)
    return True


class _Exchange:
    """The messages of one process, and the thread that sends or answers them."""

    def __init__(self, store: Any, prefix: str, spool: Path, is_on: Callable[[], bool]) -> None:
        self._theirs, self._prefix, self._spool, self._is_on = store, prefix, spool, is_on
        self._store: Any = None
        self._goes_on = _thread.allocate_lock()
        """Held until the thread is to stop."""
        self._runs = _thread.allocate_lock()
        """Held by the thread."""
        self._is_stopped = False
        self._failures = 0

    def start(self, work: Callable[[], None]) -> None:
        """Do the work in a thread, which ends before the interpreter does."""
        self._goes_on.acquire()
        self._runs.acquire()
        _thread.start_new_thread(self._run, (work,))
        call_at_end(self.stop, self._forget, _FINALIZER_PRIORITY)

    def stop(self) -> None:
        """End the thread."""
        if self._goes_on.locked():
            self._goes_on.release()
        if self._runs.acquire(timeout=_STOP_TIMEOUT_S):
            self._runs.release()

    def _forget(self) -> None:
        """A forked child has no such thread."""
        self._goes_on, self._runs = _thread.allocate_lock(), _thread.allocate_lock()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            theirs = self._theirs
            self._store = type(theirs)(
                theirs.host,
                theirs.port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=_STOP_TIMEOUT_S),
            )
            self._store.set_timeout(_TIMEOUT)
            work()
        except Exception:  # the store is gone: the job has ended, or is about to say why
            return
        finally:
            self._store = None
            self._runs.release()

    def _continues(self, after_s: float) -> bool:
        """Whether the thread is to go on; says so after a pause, unless it is to stop before."""
        self._is_stopped = self._is_stopped or self._goes_on.acquire(timeout=after_s)
        return not self._is_stopped and self._is_on()

    def _key(self, *parts: object) -> str:
        return "/".join(map(str, (self._prefix, *parts)))

    def _fails(self) -> None:
        """Count a round that failed; raises what made it fail if too many did."""
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            raise

    def ask(self) -> None:
        """Rank 0: ask all other clocks again and again."""
        own, begin_ns, pause_s = _clock(), monotonic_ns(), 0.0
        others: list[dict[str, Any]] = []
        rounds: list[int] = []
        while self._continues(pause_s):
            while len(others) < self._store.add(self._key("others"), 0):
                others.append(json.loads(self._store.get(self._key("other", len(others)))))
                rounds.append(0)
            for place, other in enumerate(others):
                if other == own:
                    continue
                try:
                    messages = self._round(place, rounds[place])
                except RuntimeError:  # a timeout, or the store is gone
                    self._fails()
                else:
                    self._failures = 0
                    if messages:
                        self._append({**other, "messages": _tightest(messages)})
                rounds[place] += 1
            pause_s = min(
                _LONGEST_PAUSE_S,
                max(_SHORTEST_PAUSE_S, (monotonic_ns() - begin_ns) / 1e9 * _PAUSE_RATIO),
            )

    def _round(self, place: int, number: int) -> list[tuple[int, int, int]]:
        """The times of the round trips; empty if the rank did not begin."""
        begun, answered = self._key(place, number), self._key(place, number, "answered")
        self._store.set(begun, "")
        deadline_ns = monotonic_ns() + int(_BEGIN_S * 1e9)
        while not self._store.check([answered]):
            if monotonic_ns() > deadline_ns or not self._continues(0.01):
                return []
        found = [self._round_trip(self._key(place, number, message)) for message in range(MESSAGES)]
        for key in (begun, answered):
            self._store.delete_key(key)
        return found

    def _round_trip(self, key: str) -> tuple[int, int, int]:
        sent_ns = monotonic_ns()
        self._store.set(key, "")
        read = self._store.get(f"{key} read")
        received_ns = monotonic_ns()
        self._store.delete_key(key)
        self._store.delete_key(f"{key} read")
        return sent_ns, int(read), received_ns

    def answer(self) -> None:
        """Any other rank: answer rank 0, if no other rank of this clock does."""
        own = _clock()
        if self._store.add(self._key(json.dumps(own)), 1) != 1:
            return
        place = self._store.add(self._key("others"), 1) - 1
        self._store.set(self._key("other", place), json.dumps(own))
        number = 0
        while self._continues(_LOOK_S):
            if not self._store.check([self._key(place, number)]):
                continue
            try:
                self._store.set(self._key(place, number, "answered"), "")
                for message in range(MESSAGES):
                    self._store.get(self._key(place, number, message))
                    self._store.set(
                        self._key(place, number, f"{message} read"), str(monotonic_ns())
                    )
                self._failures = 0
            except RuntimeError:
                self._fails()
            number += 1

    def _append(self, entry: dict[str, Any]) -> None:
        append(
            self._spool / f"clocks-{host()}-{os.getpid()}.jsonl", f"{json.dumps(entry)}\n".encode()
        )


def _clock() -> dict[str, Any]:
    return {"host": host(), "kernel": boot_id(), "shift_ns": monotonic_shift_ns()}


def _tightest(messages: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Those that bound the offset most closely from below and from above."""
    lowest = max(messages, key=lambda times: times[0] - times[1])
    highest = min(messages, key=lambda times: times[2] - times[1])
    return [lowest] if lowest == highest else [lowest, highest]
