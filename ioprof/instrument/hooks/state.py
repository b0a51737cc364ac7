"""The state of the hooks of one process: where they record to, what the process is to the job, and
what its threads do now.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from ioprof.clock import monotonic_ns, process_start_ns
from ioprof.errors import CaptureError
from ioprof.instrument import recorder
from ioprof.instrument.appending import append
from ioprof.instrument.hooks import observers
from ioprof.instrument.hooks.batch_numbering import Allotment, Series
from ioprof.instrument.hooks.garbage import GarbageCollections
from ioprof.instrument.hooks.loader_names import LoaderNames
from ioprof.instrument.hooks.loader_numbers import LoaderNumbers
from ioprof.instrument.hooks.patches import Function, Patches
from ioprof.instrument.hooks.pytorch.evaluations import Evaluation
from ioprof.instrument.hooks.pytorch.gradient_exchange import GradientExchange
from ioprof.instrument.hooks.pytorch.losses import TensorWatch
from ioprof.instrument.hooks.steps import Steps
from ioprof.instrument.hooks.thread_pools import thread_pool_sizes
from ioprof.instrument.hooks.versions import UnknownVersionError
from ioprof.instrument.host import host
from ioprof.instrument.identity import Identity, launch_facts, rank_of
from ioprof.instrument.loader_change import LoaderChange
from ioprof.instrument.span import emit
from ioprof.instrument.variables import CHANGE_VARIABLE

if TYPE_CHECKING:
    from ioprof.instrument.hooks.loader_use import LoaderUse
    from ioprof.instrument.hooks.products import Maker, Product, Products

_MAX_FACTS = 1000
_LOCK = threading.Lock()


class ThreadState:
    """What one thread is doing.

    One plain object for all hooks: each attribute of a `threading.local` costs a search through
    dictionaries, and hooks are called right after code that has displaced those from the
    processor's caches.
    """

    __slots__ = (
        "batch",
        "fetches",
        "fetching",
        "in_checkpoint",
        "loop",
        "maker",
        "nested",
        "next_batch",
        "num_samples",
        "num_waits",
        "product",
        "saved_bytes",
        "selected",
        "taken",
        "takes_part",
        "trains",
        "waiting",
    )

    def __init__(self) -> None:
        self.next_batch = -1
        """Number of the batch that it will fetch next; -1: not known."""
        self.fetching = False
        """It is fetching a batch."""
        self.batch = -1
        """Number of that batch; -1: not known, or it fetches none."""
        self.fetches = 0
        """Batches that it has fetched."""
        self.nested = False
        """Another loader runs within that fetch."""
        self.num_samples = -1
        """Samples of that batch; -1: not known, as while they are fetched."""
        self.selected: tuple[int, int] | None = None
        """When it waited in a selector last; None: it has taken what that had shown."""
        self.in_checkpoint = False
        """It is saving or loading a checkpoint."""
        self.saved_bytes = 0
        """What functions have written that it called to save that checkpoint."""
        self.loop = observers.Loop(
            TensorWatch(of_gradients=True), TensorWatch(of_gradients=False), Evaluation()
        )
        """Its training loop."""
        self.trains = False
        """It has waited for a batch, or an optimizer has stepped in it."""
        self.num_waits = 0
        """Waits for batches of observed loaders that have ended here."""
        self.waiting = False
        """It waits for a batch, and other waits within that are part of it."""
        self.takes_part = False
        """Where it waits, what it takes from other threads meanwhile is a part of that batch: no
        hook knows the loader better."""
        self.product: Product | None = None
        """What it is making as a task of a thread pool."""
        self.taken = -1
        """Number of what it took last from another thread of this process."""
        self.maker: Maker | None = None
        """What it makes for other threads."""

    def begin_batch(self, number: int) -> None:
        """It begins to fetch the batch of that number; -1: not known."""
        self.fetching, self.batch, self.num_samples = True, number, -1
        observers.makes(number)
        observers.fetches(True)
        recorder.making(number)

    def end_batch(self) -> None:
        """The fetch has ended."""
        self.fetching, self.batch = False, -1
        observers.makes(-1)
        observers.fetches(False)

    def begin_product(self, number: int) -> None:
        """It makes something for another thread, under that number; -1: it is not known whether
        anybody will train with it.
        """
        self.batch = number
        observers.makes(number)

    def end_product(self) -> None:
        """It has made it."""
        self.batch, self.product = -1, None
        observers.makes(-1)
        recorder.making(-1)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.current = ThreadState()


class HookState:
    """The hooks of this process; `hooks.install` makes it and hands it to every observer.

    A child that multiprocessing forked records from its start. A child of a bare `os.fork`, which
    may be about to call exec, records from its first span on: until then the state is
    `is_deferred`.
    """

    def __init__(self) -> None:
        self.is_on = False
        """Whether the hooks of this process emit spans."""
        self.is_deferred = False
        """This is a forked child whose recording has not begun."""
        self.spool = Path()
        self.identity = Identity()
        self.patches = Patches()
        self.batch_numbers = Allotment()
        """Kept for the life of the process: neither a second recording nor a forked child uses a
        number again."""
        self.loader_names = LoaderNames()
        self.loader_numbers = LoaderNumbers()
        self.loader_change: LoaderChange | None = None
        """What `ioprof prove` asks for; None in every other job."""
        self.products: Products | None = None
        """What threads of pools returned, where a library hands it to the loop without a future;
        None: there is none such."""
        self.garbage = GarbageCollections()
        self._begin_ns = 0
        """When this recording began, CLOCK_MONOTONIC ns; 0: in a forked child, whose parent did all
        that comes before."""
        self._window: str | None = None
        self._environment: dict[str, str] = {}
        self._follows_forks = False
        self._reset()

    def _reset(self) -> None:
        """Begin anew: drop what belongs to the parent process, or to an earlier recording."""
        self.per_thread = _PerThread()
        self.steps = Steps()
        observers.follow(self, self.steps)
        self.gradients = GradientExchange()
        self.in_progress: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """What torch returned for collectives and messages in progress, see `observers.expect`."""
        self.dali_sources: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """DALI's iterators and pipelines, each with the numbers of its batches."""
        self.loader_uses: dict[int, tuple[ref[Any], LoaderUse]] = {}
        """Loaders of torch by identity, since they need not be hashable, each with what its batches
        are used for."""
        self.thread_batches = Series(self.batch_numbers)
        """Numbers of what threads of this process hand over to the training loop."""
        self.thread_batches.begin_epoch()
        self.garbage.forget()
        self.used_libraries: set[str] = set()
        """Libraries that this process used and that the facts name, see `library`."""
        self.thread_names: dict[int, str] = {}
        """Names of threads that were started, by the kernel's numbers of them."""
        self.validates = False
        """A library that runs the loop says that it validates now."""
        self._compares_clocks = False
        self._recorded_facts: set[str] = set()
        observers.forget()

    def begin(self, spool: Path, window: str | None, environment: Mapping[str, str]) -> None:
        """Record this process into `spool`, and its GPU in windows (None: the default, see `gpu`).
        Raises `CaptureError`.
        """
        self.spool, self.identity = spool, Identity(*rank_of(environment))
        self._begin_ns = monotonic_ns()
        self._window, self._environment = window, dict(environment)
        change = environment.get(CHANGE_VARIABLE)
        self.loader_change = LoaderChange.parse(change) if change else None
        self._start_recorder()
        self._reset()
        self.garbage.observe(self.patches)
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(after_in_child=self._after_fork)

    def end(self) -> None:
        """Stop recording this process."""
        gpu = sys.modules.get("ioprof.instrument.gpu")
        if gpu is not None:
            gpu.stop()
        recorder.stop()
        self._switch(is_on=False)

    def wrap(
        self, owner: Any, path: str, observer: "Callable[[Function, HookState], Function]"
    ) -> None:
        """Replace the function at `path` of `owner`, such as `Class.method` of a module, by
        `observer(function, self)`, see `Patches.wrap`.

        Raises `UnknownVersionError` if there is none of that class's or module's own.
        """
        *classes, name = path.split(".")
        holder = owner
        for each in classes:
            holder = getattr(holder, each, None)
        if holder is None or not callable(vars(holder).get(name)):
            raise UnknownVersionError(f"{getattr(owner, '__name__', owner)} has no {path}")
        self.patches.wrap(holder, name, lambda original: observer(original, self))

    def call_after(self, owner: Any, path: str, then: Callable[[Any], None]) -> None:
        """Call `then` with the object after its method at `path` of `owner`, while this records."""

        def observer(original: Function, state: HookState) -> Function:
            def method(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self, *args, **kwargs)
                if state.is_on:
                    then(self)
                return result

            return method

        self.wrap(owner, path, observer)

    def wrap_exported(
        self,
        module: Any,
        package: str,
        path: str,
        observer: "Callable[[Function, HookState], Function]",
    ) -> bool:
        """The same for a function of `module` that `package` may have imported before, and has
        under the same name.

        Returns False where this version has no such function.
        """
        exporting, original = sys.modules.get(package), vars(module).get(path)
        try:
            self.wrap(module, path, observer)
        except UnknownVersionError:
            return False
        if original is not None and exporting and vars(exporting).get(path) is original:
            self.patches.put(exporting, path, vars(module)[path])
        return True

    def start_deferred(self) -> None:
        """Begin the recording of a forked child, if this is one that has not begun."""
        if self.is_deferred:
            self._switch(is_on=False)
            with suppress(CaptureError):  # the spool is full or gone; the child goes on unrecorded
                self._start_recorder()

    def is_consumer(self, thread: ThreadState) -> bool:
        """Whether a wait for a batch in this thread, now, is one of the training loop."""
        return self.is_on and not thread.fetching and self.identity.role != "worker"

    def start_rank(self, gpu_window: str | None = None) -> None:
        """Record this process, which trains or consumes batches, as a rank, with its GPU. Does
        nothing the second time.
        """
        self.start_deferred()
        if self.identity.role != "other":
            return
        self.identity.become_rank(self.spool)
        if launched := launch_facts(self._environment, self.identity.source):
            self.record_fact(launched={**launched, "host": host(), "pid": os.getpid()})
        if (
            self._begin_ns
            and (started_ns := process_start_ns()) is not None
            and started_ns < self._begin_ns
        ):
            emit("phase", started_ns, self._begin_ns, "interpreter")
        try:
            # most processes of a job do not train, and need not load it
            from ioprof.instrument import (
                gpu,
            )

            self.steps.ended = gpu.end_step
            window = gpu_window or self._window or gpu.DEFAULT_WINDOW
            gpu.start(self.spool, window, rank=self.identity.rank, environment=self._environment)
        except CaptureError:  # a window that cannot be parsed; the launcher has refused it already
            pass
        except Exception as error:
            self.record_fact(unobserved="its GPU", why=f"{type(error).__name__}: {error}")

    def compare_clocks(self, distributed: Any) -> None:
        """Compare the clocks of the ranks' hosts from now on, once in the life of a recording."""
        if self._compares_clocks or self.identity.role == "worker":
            return
        try:
            from ioprof.instrument import clock_exchange

            self._compares_clocks = clock_exchange.start(
                distributed, self.spool, self._environment, lambda: self.is_on
            )
        except Exception as error:
            self.record_fact(
                unobserved="clocks of other hosts", why=f"{type(error).__name__}: {error}"
            )

    def record_import(self, module: str, start_ns: int, end_ns: int, fetched_bytes: int) -> None:
        """Emit the import of a module, with all that it imports, as a part of the job's start.

        Its bytes are what the process fetched from storage meanwhile.
        """
        if self.is_on and not self.is_deferred:
            emit("phase", start_ns, end_ns, f"import {module}", bytes=fetched_bytes)

    def record_fact(self, **facts: Any) -> None:
        """Write facts about the job that no span can carry to a file of the spool, one JSON object
        per line, each once.
        """
        # no room, or no descriptor left to import with: the report will lack them
        with suppress(OSError, ImportError):
            import json

            line = json.dumps(facts, sort_keys=True, default=str)
            if line in self._recorded_facts or len(self._recorded_facts) > _MAX_FACTS:
                return
            self._recorded_facts.add(line)
            append(self.spool / f"facts-{host()}-{os.getpid()}.jsonl", f"{line}\n".encode())

    def _start_recorder(self) -> None:
        if not recorder.is_recording():
            recorder.start(
                self.spool,
                rank=self.identity.rank,
                role=self.identity.role,
                worker=self.identity.worker,
            )
        recorder.before_stop(self.flush)
        self.identity.publish()
        self._switch(is_on=True)

    def flush(self) -> None:
        """Emit what is held back until more is known of it: the recording, or the training, is
        about to end.
        """
        loop = self.per_thread.current.loop
        loop.emit_pending()
        if loop.evaluation.num_passes and self.is_on:
            loop.evaluation.end(loop.evaluation.end_ns, self.steps.number, self.steps.trains)
        # which writes what this thread's decoders hold back
        observers.makes(self.per_thread.current.batch)
        if self.is_on:
            self.steps.finish(monotonic_ns())
            self.garbage.write(self.spool)
        if self.identity.role == "rank":
            if samples := loop.evaluation.trained_size:
                self.record_fact(trained_samples=samples)
            self.record_thread_pools()
            if took_ns := observers.hooks_ns():
                self.record_fact(hooks_ns=took_ns, host=host(), pid=os.getpid())
            if names := dict(self.thread_names):
                self.record_fact(thread_names=names, host=host(), pid=os.getpid())

    def record_thread_pools(self) -> None:
        """Record how many threads pools of libraries have in this process, as a fact of it.

        Called when the libraries have done work here or will do none any more: the first call of
        such a function may fix the number, which a program could set otherwise before.
        """
        if sizes := thread_pool_sizes():
            self.record_fact(thread_pools=sizes, host=host(), pid=os.getpid())

    def note_optimizer(self, optimizer: Any, on_cpu: bool) -> None:
        """An optimizer of that type has made its first step in this thread, or since another."""
        self.per_thread.current.trains = True
        device = "cpu" if on_cpu else "cuda"
        self.record_fact(optimizer=type(optimizer).__name__, device=device)
        torch = sys.modules["torch"]
        if torch.is_anomaly_enabled():
            self.record_fact(detects_anomalies=True)

    def take_number(self) -> int:
        """A number for a batch that a thread makes."""
        with _LOCK:
            return self.thread_batches.take(self.spool, self.identity.rank)

    def _after_fork(self) -> None:
        if not self.is_on:
            return
        self._switch(is_on=True, is_deferred=True)
        self._begin_ns = 0
        self.identity = Identity(self.identity.rank, self.identity.source)
        self._reset()

    def _switch(self, is_on: bool, is_deferred: bool = False) -> None:
        self.is_on, self.is_deferred = is_on, is_deferred
        self.garbage.is_on = is_on and not is_deferred
        observers.watch(is_on, is_deferred, self.start_deferred)
