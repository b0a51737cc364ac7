"""Observes `multiprocessing.Pool`: the waits of the training loop for results ("pool"), and the
tasks that made them.

A task is known by its job and its place in it, which the pool sends with the task and with its
result. The process of the loop takes numbers for the tasks of a job once it is known that the pool
feeds the loop (`supplies`). They travel as those of torch's DataLoader do (`batch_numbering`), with
the pipe of the results, and the job in place of the epoch. What a task that ended before made is
held back until its worker finds numbers.

Tasks of a `ThreadPool` are products of threads, as those of futures are (`handover`). Jobs are
numbered over all pools of a process.
"""

import multiprocessing
import queue
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.format.schema import TASK_ARGUMENTS
from ioprof.instrument.hooks.batch_numbering import PublishedNumbers, Series, consumer_pid, pipe_of
from ioprof.instrument.hooks.handover import maker_of, may_make, take
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.products import MAX_HELD, Product
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.supplies import Supply, is_fed, may_be_batch, supply_of
from ioprof.instrument.span import emit

LOADER: Final = "multiprocessing Pool"
_NO_KEYWORDS: Final[dict[str, Any]] = {}
_LOOK_AGAIN_NS: Final = 10_000_000
"""Time after which a task without a number is looked for again: most pools never get any."""
_HEADER_BYTES: Final = 4
"""What a message through a connection of multiprocessing begins with: its size."""
_LEAST_ARRIVAL_NS: Final = 200_000
"""Arguments that take less are no part of a task worth a span."""
_PLACES: Final = "_ioprof_places"
_SUPPLY: Final = "_ioprof_supply"
_MADE: Final = "_ioprof_made"
"""Attribute of a job of a pool of threads: by place what they made."""
_products: Final[dict[tuple[int, int], Product]] = {}
"""By job and place what threads of pools have made, until the job has it, or the loop, if that gets
results in order."""
_MOST_PRODUCTS: Final = 4096
"""Then the oldest is forgotten: nobody may ask for it."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `multiprocessing.pool`."""
    for path, observer in (
        ("worker", _observe_worker),
        ("Pool.apply_async", _observe_apply),
        ("Pool._guarded_task_generation", _observe_tasks),
        ("ApplyResult.__init__", _observe_start),
        ("IMapIterator.__init__", _observe_start),
        ("ApplyResult._set", _observe_set),
        ("MapResult._set", _observe_set),
        ("IMapUnorderedIterator._set", _observe_set),
        ("ApplyResult.get", _observe_get),
        ("IMapIterator.next", _observe_next),
        ("IMapIterator.__next__", _observe_next),
    ):
        state.wrap(module, path, observer)


def _observe_apply(original: Function, _state: HookState) -> Function:
    def apply_async(
        self: Any, func: Any, args: Any = (), kwds: Any = _NO_KEYWORDS, *more: Any, **others: Any
    ) -> Any:
        given = args if isinstance(args, tuple | list) else ()  # an iterator is read only once
        supply_of(self).give(*given, *(kwds.values() if type(kwds) is dict else ()))
        return original(self, func, args, kwds, *more, **others)

    return apply_async


def _observe_tasks(original: Function, _state: HookState) -> Function:
    """Of a map: the pool's thread asks for the tasks one by one."""

    def generate(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        supply = supply_of(self)
        for task in original(self, *args, **kwargs):
            supply.give(*(task[3] if isinstance(task[3], tuple | list) else ()))
            yield task

    return generate


def _observe_start(original: Function, state: HookState) -> Function:
    """Of a job: the pool has sent none of its tasks yet."""

    def start(self: Any, pool: Any, *args: Any, **kwargs: Any) -> None:
        original(self, pool, *args, **kwargs)
        vars(self)[_PLACES] = deque()
        supply = vars(self)[_SUPPLY] = supply_of(pool)
        if not supply.workers:
            supply.pipe, supply.workers = (
                pipe_of(getattr(pool, "_outqueue", None)),
                len(getattr(pool, "_pool", ())),
            )
        if supply.feeds_loop and is_fed(state):
            _numbers(self, state, 0)

    return start


def _observe_set(original: Function, _state: HookState) -> Function:
    """Of results where they arrive, in the order in which the loop gets them."""

    def set_result(self: Any, place: int, *args: Any, **kwargs: Any) -> None:
        places: deque[int] | None = vars(self).get(_PLACES)
        if (product := _products.pop((self._job, place), None)) is not None:
            vars(self).setdefault(_MADE, {})[place] = product
        if places is not None:
            places.append(place)
        original(self, place, *args, **kwargs)

    return set_result


def _observe_get(original: Function, state: HookState) -> Function:
    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_fed(state):
            return original(self, *args, **kwargs)
        start_ns = monotonic_ns()
        result = original(self, *args, **kwargs)
        places = vars(self).get(_PLACES)
        _end_wait(self, state, places[-1] if places else -1, result, start_ns)
        return result

    return get


def _observe_next(original: Function, state: HookState) -> Function:
    def next_result(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_observed = is_fed(state)
        arrived = vars(self).get(_PLACES)
        is_in_order = not hasattr(type(self)._set, "_ioprof_observes")  # noqa: SLF001
        if is_observed and _SUPPLY in vars(self) and vars(self)[_SUPPLY].feeds_loop:
            _numbers(self, state, self._index)
        start_ns = monotonic_ns() if is_observed else 0
        try:
            result = original(self, *args, **kwargs)
        except StopIteration:
            raise
        except BaseException:  # of a task, or there was no result in time
            if not is_in_order and arrived and len(arrived) > len(self._items):
                arrived.popleft()
            raise
        with self._cond:
            last = self._index - len(self._items) - 1
        place = last if is_in_order else arrived.popleft() if arrived else -1
        if is_observed:
            _end_wait(self, state, place, result, start_ns)
        return result

    return next_result


def _end_wait(job: Any, state: HookState, place: int, result: Any, start_ns: int) -> None:
    supply: Supply | None = vars(job).get(_SUPPLY)
    if supply is None:
        return
    if not supply.pipe:
        if may_be_batch(result):
            take(
                state,
                state.per_thread.current,
                product_of_job(job, place),
                start_ns,
                monotonic_ns(),
                "pool",
            )
        return
    supply.end_wait(
        state, lambda: _number(job, state, place), result, start_ns, monotonic_ns(), "pool"
    )


def product_of_job(job: Any, place: int) -> Product | None:
    """What a thread of a pool made as the task at this place of a job; None: it is not known, or
    the job is of no such pool.
    """
    made: dict[int, Product] = vars(job).get(_MADE, {})
    return made.pop(place, None) or _products.pop((getattr(job, "_job", -1), place), None)


def _number(job: Any, state: HookState, place: int) -> int:
    """Of the task at this place of a job; -1: it is not known."""
    series = _numbers(job, state, place) if place >= 0 else None
    return -1 if series is None else series.number(place)


def _numbers(job: Any, state: HookState, place: int) -> Series | None:
    supply: Supply | None = vars(job).get(_SUPPLY)  # None: the job began before it was observed
    return supply.numbers(job, LOADER, place, state, job._job) if supply else None  # noqa: SLF001


def _observe_worker(original: Function, state: HookState) -> Function:
    def worker(inqueue: Any, outqueue: Any, *args: Any, **kwargs: Any) -> Any:
        pipe = pipe_of(outqueue)
        if isinstance(inqueue, queue.SimpleQueue):
            inqueue, outqueue = _ThreadTasks(inqueue, state), _ThreadResults(outqueue, state)
        elif state.is_on and pipe:
            state.start_deferred()
            numbers = TaskNumbers(state, pipe)
            numbers.watch(getattr(inqueue, "_reader", None))
            inqueue, outqueue = _Tasks(inqueue, numbers), _Results(outqueue, numbers)
        return original(inqueue, outqueue, *args, **kwargs)

    return worker


class TaskNumbers(PublishedNumbers):
    """The numbers of the tasks of a worker, and the task that it is working on."""

    def __init__(self, state: HookState, pipe: int) -> None:
        super().__init__(state.spool, consumer_pid(), pipe)
        self._state = state
        self._looked_ns = 0
        self._begin_ns = self._arrives_ns = self._num_bytes = 0
        self._held: deque[tuple[int, int, int, int]] = deque(maxlen=MAX_HELD)
        """Job, place, start and end of tasks that had no numbers when they ended."""

    def watch(self, reader: Any) -> None:
        """See when tasks begin to arrive through this connection, and their sizes."""
        receive = getattr(reader, "_recv", None)
        if receive is None:
            return

        def receive_seen(size: int, *args: Any) -> Any:
            found = receive(size, *args)
            if size == _HEADER_BYTES:
                self._arrives_ns = monotonic_ns()
            self._num_bytes = size
            return found

        reader._recv = receive_seen  # noqa: SLF001

    def begin(self, job: int, place: int) -> None:
        """The task at this place of a job has arrived. What its arguments took is a part of it."""
        now_ns = monotonic_ns()
        self._begin_ns, self._arrives_ns = self._arrives_ns or now_ns, 0
        if (number := self._number_of(job, place)) >= 0:
            self._state.per_thread.current.begin_batch(number)
            if now_ns - self._begin_ns >= _LEAST_ARRIVAL_NS:
                size = self._num_bytes
                emit("decode", self._begin_ns, now_ns, TASK_ARGUMENTS, batch=number, bytes=size)

    def end(self, job: int, place: int) -> None:
        """Its result is about to be sent."""
        if self._begin_ns:
            thread, end_ns = self._state.per_thread.current, monotonic_ns()
            number = thread.batch if thread.batch >= 0 else self._number_of(job, place)
            if number >= 0:
                emit("fetch", self._begin_ns, end_ns, batch=number)
                thread.end_batch()
            else:
                self._held.append((job, place, self._begin_ns, end_ns))
        self._begin_ns = 0

    def _number_of(self, job: int, place: int) -> int:
        number = self.number_of_job(job, place)
        now_ns = monotonic_ns()
        if number < 0 and now_ns - self._looked_ns > _LOOK_AGAIN_NS:
            self._looked_ns, before = now_ns, self.rank
            self.look()
            number = self.number_of_job(job, place)
            while number >= 0 and self._held:
                of, at, begin_ns, end_ns = self._held.popleft()
                if (earlier := self.number_of_job(of, at)) >= 0:
                    emit("fetch", begin_ns, end_ns, batch=earlier)
            if self.rank != before:
                name = multiprocessing.current_process()._identity  # noqa: SLF001
                self._state.identity.become_worker(self.rank, name[-1] - 1 if name else 0)
        return number


class WatchedQueue:
    """A queue of a worker; what is not observed is that of the queue."""

    def __init__(self, queue: Any, numbers: TaskNumbers) -> None:
        self._queue, self._numbers = queue, numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Tasks(WatchedQueue):
    """The queue from which a worker gets its tasks."""

    def get(self) -> Any:
        task = self._queue.get()
        if isinstance(task, tuple):
            self._numbers.begin(*task[:2])
        return task


class _Results(WatchedQueue):
    """The queue on which it sends what it made."""

    def put(self, result: Any) -> Any:
        if isinstance(result, tuple):
            self._numbers.end(*result[:2])
        return self._queue.put(result)


class _ThreadTasks:
    """The queue from which a thread gets its tasks."""

    def __init__(self, tasks: Any, state: HookState) -> None:
        self._tasks, self._state = tasks, state

    def get(self) -> Any:
        task, state = self._tasks.get(), self._state
        thread = state.per_thread.current
        if isinstance(task, tuple) and may_make(state, thread):
            thread.product = maker_of(thread).begin(monotonic_ns(), state.take_number)
            thread.begin_product(thread.product.number)
        return task


class _ThreadResults:
    """The queue on which it hands over what it made."""

    def __init__(self, results: Any, state: HookState) -> None:
        self._results, self._state = results, state

    def put(self, result: Any) -> Any:
        thread = self._state.per_thread.current
        product = thread.product
        if product is not None and isinstance(result, tuple):
            thread.end_product()
            product.maker.end(product, monotonic_ns())
            _products[result[0], result[1]] = product
            if len(_products) > _MOST_PRODUCTS:
                with suppress(RuntimeError, StopIteration):  # another thread changes it meanwhile
                    _products.pop(next(iter(_products)), None)
        return self._results.put(result)
