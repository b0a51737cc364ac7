"""The discrete-event simulation: processes that work in turn, on cores and storage that all share.

A process is a generator that yields what it does next: a segment of work, or a wait for a message
or for other ranks. A segment takes time (`DELAY`), or is work on shared resources (`CORES`,
`STORAGE`, `SERIAL`, `LOCKED`), which give each user the same part of them (processor sharing). A
resource keeps the work that each user has received since the start as one number, so that a change
of the number of users costs O(log n).

Where two things happen at one instant, that which was arranged first happens first: the same plan
gives the same result.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ioprof.model.pipeline import Op
from ioprof.model.refusals import Refusal, ReplayError

DELAY: Final = 0
CORES: Final = 1
STORAGE: Final = 2
BESIDE: Final = 3
"""What somebody else computes meanwhile: nobody waits for it."""
SERIAL: Final = 4
"""What one at a time can do, such as what a lock guards."""
LOCKED: Final = 5
"""What one at a time can compute: it takes the lock and a core, at the same time."""
_MESSAGE: Final = 6
_BARRIER: Final = 7


class Segment(NamedTuple):
    """Work: bytes for `STORAGE`, else seconds; `weight` is the number of threads that compute."""

    resource: int
    amount: float
    weight: float = 1.0


@dataclass(frozen=True)
class LoaderPlan:
    """An iteration over a loader, as in `pipeline.Iteration`, with every time drawn."""

    workers: int
    prefetch: int
    tasks: Sequence[Sequence[Segment]]
    lag_s: Sequence[float]
    transit_s: Sequence[float]
    take: Sequence[Sequence[Segment]]
    num_tasks: int
    """Tasks that there are; those of an iteration that the loop leaves early are more than it
    takes."""
    startup_s: Sequence[float]
    """Of each worker, after the beginning of START; empty: the workers run already."""
    group: int
    makers: Sequence[int] = ()
    """Of each task, its worker; of those beyond, and where it is empty, in turn."""
    is_pool: bool = False
    """Whether whoever is free takes the next task."""
    together: int = 0
    """See `pipeline.Iteration.together`."""
    contended_s: Sequence[float] = ()
    """Of each task, the part of its way to the loop that takes as many times as long as threads of
    the host compete for its cores, beside `transit_s`; empty: nothing."""


@dataclass(frozen=True)
class RankPlan:
    """The program of a rank, see `pipeline.Program`."""

    host: int
    loaders: Sequence[LoaderPlan]
    ops: Sequence[int]
    loader_of: Sequence[int]
    spent: Sequence[Sequence[Segment]]
    before: Sequence[Sequence[Segment]]
    """After each action, until the rank arrives at a collective; all of it where there is none."""
    barrier: Sequence[int]
    """Number of that collective; -1: none."""
    after: Sequence[Sequence[Segment]]
    """From when all ranks have arrived."""
    device_s: Sequence[float] = ()
    """After each action: what an asynchronous device computes then; empty: the loop itself waits
    for all computation. With it, `barrier` is where the device's collective begins, and `after` is
    empty."""
    transfer_s: Sequence[float] = ()
    """Of that collective, from when all ranks have arrived."""
    meanwhile: Sequence[Sequence[Segment]] = ()
    """What the loop does after it has launched that, before it waits."""
    depth: int = 0
    """Steps that the loop may be ahead of the device: before it takes another batch, all but so
    many must be done."""
    waits_to_copy: bool = False
    """Whether the device must have done all of them when the loop has taken a batch and copies
    it."""


@dataclass(frozen=True)
class Resource:
    """What users share."""

    capacity: float
    """Cores, or bytes per second."""
    most_per_user: float = 1.0
    """What one user gets at most."""
    background: float = 0.0
    """What others want of it, such as threads of other programs: each of them one core at most, in
    equal parts. One that wants less than its fair part gets all of it, as schedulers favour threads
    that sleep much."""
    own_groups: float = 0.0
    """Of cores: how many groups of the scheduler the users are, for each group that the others are.
    Each core is shared among the groups whose threads are on it, and a group counts on each the
    less the more cores its threads are on (man sched). 0: threads are alike, whoever's they are."""
    burst: float = 0.0
    """What it gives at once after it was idle for long enough (a token bucket)."""
    scattered: float = 0.0
    """Of cores, 0 to 1: how far threads that could run are spread over them at random, some in one
    queue while a core is idle. 0: a core is idle only if nobody waits for one."""

    team: float = 0.0
    """Of cores, 0 to 1: how far threads that compute together, the `weight` of a segment, wait for
    each other: what a segment receives is what all of them have at the same time, each by chance.
    """

    def usable(self, threads: float) -> float:
        """How much so many users get together: of cores, the mean number that is not idle.

        Of n threads on C cores at random, C × (1 - (1 - 1/C)^n) cores have one.
        """
        most = min(threads, self.capacity)
        if not self.scattered or self.capacity <= 1 or threads <= 1:
            return most
        at_random: float = self.capacity * (1 - (1 - 1 / self.capacity) ** threads)
        return most - self.scattered * (most - at_random)


@dataclass(frozen=True)
class Plan:
    """A job to simulate."""

    ranks: Sequence[RankPlan]
    hosts: Sequence[Resource]
    """Cores by host."""
    storage: Resource


@dataclass
class RankTimes:
    """When the actions of a rank began and ended, in seconds since the start, and when it had done
    all.
    """

    begun_s: list[float]
    ended_s: list[float]
    end_s: float


class _Shared:
    """A resource under processor sharing."""

    __slots__ = (
        "_background",
        "_burst",
        "_capacity",
        "_credit",
        "_most",
        "_received",
        "_resource",
        "_since_s",
        "_users",
        "_waiting",
        "used_s",
        "wanted_s",
    )

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._capacity, self._most, self._background = (
            resource.capacity,
            resource.most_per_user,
            resource.background,
        )
        self._received = self._since_s = self._users = 0.0
        self.wanted_s = self.used_s = 0.0
        self._burst = self._credit = resource.burst
        self._waiting: list[tuple[float, int, float, Any]] = []

    def _rate(self) -> float:
        if not self._users:
            return self._most
        others = math.ceil(self._background)
        usable = self._capacity
        if self._resource.scattered:
            usable = self._resource.usable(self._users + self._background)
        if ratio := self._resource.own_groups:
            on = min(self._background, self._capacity)  # as many cores
            left = usable - on / (1 + ratio * on / self._capacity)
            return min(self._most, left / self._users)
        fair = usable / (self._users + others)
        if others and self._background <= fair * others:
            fair = (usable - self._background) / self._users
        return min(self._most, fair)

    @property
    def slowdown(self) -> float:
        """How many times as long one more user would take now as it would alone."""
        self._users += 1
        rate = self._rate()
        self._users -= 1
        return self._most / rate

    def _advance(self, now_s: float) -> None:
        if self._users:
            took_s, rate = now_s - self._since_s, self._rate()
            self._received += took_s * rate
            self.wanted_s += took_s * self._users
            self.used_s += took_s * self._users * rate
        elif self._burst:
            self._credit = min(self._burst, self._credit + (now_s - self._since_s) * self._capacity)
        self._since_s = now_s

    def add(self, now_s: float, amount: float, weight: float, number: int, process: Any) -> None:
        self._advance(now_s)
        if self._credit:
            at_once = min(self._credit, amount)
            self._credit -= at_once
            amount -= at_once
        heapq.heappush(self._waiting, (self._received + amount, number, weight, process))
        self._users += weight

    def next_s(self) -> float:
        """When the next user has all that it wants, if nothing changes."""
        if not self._waiting:
            return math.inf
        return self._since_s + max(0.0, self._waiting[0][0] - self._received) / self._rate()

    def remove(self, now_s: float) -> Any:
        """The user that has all that it wants."""
        self._advance(now_s)
        wanted, _, weight, process = heapq.heappop(self._waiting)
        self._received = max(self._received, wanted)
        self._users = self._users - weight if self._waiting else 0.0
        return process


class _Teams(_Shared):
    """Cores on which the threads of a segment wait for each other: those with more threads receive
    less, though all threads have equal parts of the cores.
    """

    __slots__ = ("_by_weight",)

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource)
        self._by_weight: dict[float, tuple[list[tuple[float, int, Any]], list[float]]] = {}
        """Users with what they want, and what each of that weight has received."""

    def _rate_of(self, weight: float) -> float:
        share = self._rate() / self._most
        found: float = self._most * share ** (1 + (weight - 1) * self._resource.team)
        return found

    def _advance(self, now_s: float) -> None:
        if self._users:
            took_s = now_s - self._since_s
            for weight, (_, received) in self._by_weight.items():
                received[0] += took_s * self._rate_of(weight)
        super()._advance(now_s)

    def add(self, now_s: float, amount: float, weight: float, number: int, process: Any) -> None:
        self._advance(now_s)
        users, received = self._by_weight.setdefault(weight, ([], [0.0]))
        heapq.heappush(users, (received[0] + amount, number, process))
        self._users += weight

    def _first(self) -> tuple[float, float]:
        """When which weight has the next user that has all that it wants."""
        return min(
            (
                (
                    self._since_s + max(0.0, users[0][0] - received[0]) / self._rate_of(weight),
                    weight,
                )
                for weight, (users, received) in self._by_weight.items()
                if users
            ),
            default=(math.inf, 1.0),
        )

    def next_s(self) -> float:
        return self._first()[0]

    def remove(self, now_s: float) -> Any:
        weight = self._first()[1]
        self._advance(now_s)
        users, received = self._by_weight[weight]
        wanted, _, process = heapq.heappop(users)
        received[0] = max(received[0], wanted)
        is_used = any(others for others, _ in self._by_weight.values())
        self._users = self._users - weight if is_used else 0.0
        return process


class _Box:
    """Messages for the processes that read it, each for one of them."""

    __slots__ = ("messages", "readers")

    def __init__(self) -> None:
        self.messages: deque[Any] = deque()
        self.readers: deque[_Process] = deque()
        """Those that wait for one."""


_Steps = Generator[tuple[int, Any, float], None, None]


class _Process:
    """A generator, and the cores that it uses."""

    __slots__ = ("cores", "resume")

    def __init__(self, steps: _Steps, cores: _Shared) -> None:
        self.resume, self.cores = steps.__next__, cores


class _Both:
    """A process that goes on when it had both of two resources."""

    __slots__ = ("had_one", "process")

    def __init__(self, process: _Process) -> None:
        self.process, self.had_one = process, False


class Simulation:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.now_s = 0.0
        self._plan = plan
        self._number = 0
        self._events: list[tuple[float, int, Any, Any]] = []
        self._hosts = [(_Teams if host.team else _Shared)(host) for host in plan.hosts]
        self._storage = _Shared(plan.storage)
        self._serial = _Shared(Resource(1.0))
        self._at_barrier: dict[int, list[_Process]] = {}
        self._expected = Counter(barrier for rank in plan.ranks for barrier in rank.barrier)
        self.num_done = 0

    def run(self) -> list[RankTimes]:
        """Simulate until all ranks have done what they have to do; `ReplayError` for a plan in
        which that never happens.
        """
        loops = [_Loop(self, rank, self._hosts[rank.host]) for rank in self._plan.ranks]
        for loop in loops:
            self.start(loop.steps(), loop.cores)
        resources = [*self._hosts, self._storage, self._serial]
        while self.num_done < len(loops):
            resource = min(resources, key=lambda each: each.next_s())
            at_s = resource.next_s()
            if self._events and self._events[0][0] <= at_s:
                self.now_s, _, receiver, message = heapq.heappop(self._events)
                if message is None:
                    self._resume(receiver)
                else:
                    self.send(receiver, message)
            elif at_s < math.inf:
                self.now_s = at_s
                self._resume(resource.remove(at_s))
            else:
                raise ReplayError(Refusal.STUCK)
        return [loop.times for loop in loops]

    def dilation(self, host: int) -> float:
        """Time in which threads there wanted a core, over the time that they had one."""
        cores = self._hosts[host]
        return cores.wanted_s / cores.used_s if cores.used_s > 0 else 1.0

    def start(self, steps: _Steps, cores: _Shared) -> None:
        """Begin a process."""
        self._resume(_Process(steps, cores))

    def send(self, box: _Box, message: Any) -> None:
        """Put a message into a box, now."""
        box.messages.append(message)
        if box.readers:
            self._resume(box.readers.popleft())

    def send_at(self, at_s: float, box: _Box, message: Any) -> None:
        """The same later."""
        self._schedule(at_s, box, message)

    def _schedule(self, at_s: float, receiver: Any, message: Any = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, receiver, message))

    def _resume(self, process: _Process | _Both) -> None:
        if isinstance(process, _Both):
            if not process.had_one:
                process.had_one = True
                return
            process = process.process
        try:
            resource, amount, weight = process.resume()
        except StopIteration:
            return
        if resource == DELAY:
            self._schedule(self.now_s + amount, process)
        elif resource == CORES:
            self._number += 1
            process.cores.add(self.now_s, amount, weight, self._number, process)
        elif resource == STORAGE:
            self._number += 1
            self._storage.add(self.now_s, amount, weight, self._number, process)
        elif resource == SERIAL:
            self._number += 1
            self._serial.add(self.now_s, amount, weight, self._number, process)
        elif resource == LOCKED:
            self._number += 1
            both = _Both(process)
            self._serial.add(self.now_s, amount, 1.0, self._number, both)
            process.cores.add(self.now_s, amount, weight, self._number, both)
        elif resource == _MESSAGE:
            amount.readers.append(process)
        elif resource == BESIDE:
            self.start(_computing(amount, weight), process.cores)
            self._resume(process)
        else:
            self._arrive(amount, process)

    def _arrive(self, barrier: int, process: _Process) -> None:
        waiting = self._at_barrier.setdefault(barrier, [])
        waiting.append(process)
        if len(waiting) == self._expected[barrier]:
            for each in self._at_barrier.pop(barrier):
                self._schedule(self.now_s, each)


def _computing(amount: float, weight: float) -> _Steps:
    yield CORES, amount, weight


class _Loop:
    """The training loop of a rank."""

    def __init__(self, simulation: Simulation, plan: RankPlan, cores: _Shared) -> None:
        self.times = RankTimes([], [], 0.0)
        self.cores = cores
        self._simulation = simulation
        self._plan = plan
        self._boxes: dict[int, list[_Box]] = {}
        self._results = [_Box() for _ in plan.loaders]
        self._arrived: list[set[int]] = [set() for _ in plan.loaders]
        self._num_sent = [0] * len(plan.loaders)
        self._num_taken = [0] * len(plan.loaders)
        self._launched, self._finished, self._num_launched = _Box(), _Box(), 0

    def steps(self) -> _Steps:
        """All actions in order."""
        simulation, plan = self._simulation, self._plan
        if plan.device_s:
            simulation.start(self._device(), self.cores)
        for place, op in enumerate(plan.ops):
            number = plan.loader_of[place]
            self.times.begun_s.append(simulation.now_s)
            if op == Op.TAKE:
                yield from self._take(number)
                if plan.waits_to_copy:
                    yield from self._finish(self._num_launched)
            else:
                begin_s = simulation.now_s
                if op == Op.START:
                    self._start_workers(number, begin_s)
                yield from plan.spent[place]
                if op == Op.START and not plan.loaders[number].together:
                    self._send(number, plan.loaders[number].workers * plan.loaders[number].prefetch)
            self.times.ended_s.append(simulation.now_s)
            yield from plan.before[place]
            if plan.device_s:
                if plan.device_s[place] > 0:
                    simulation.send(self._launched, place)
                    self._num_launched += 1
                    yield from plan.meanwhile[place]
                    yield from self._finish(self._num_launched - plan.depth)
            elif plan.barrier[place] >= 0:
                yield _BARRIER, plan.barrier[place], 0.0
                yield from plan.after[place]
        yield from self._finish(self._num_launched)
        self.times.end_s = simulation.now_s
        simulation.num_done += 1

    def _finish(self, count: int) -> _Steps:
        """Wait until the device has done so many steps."""
        while len(self._finished.messages) < count:
            yield _MESSAGE, self._finished, 0.0

    def _device(self) -> _Steps:
        """What the device does, in the order in which it was launched."""
        plan, launched = self._plan, self._launched
        while True:
            while not launched.messages:
                yield _MESSAGE, launched, 0.0
            place = launched.messages.popleft()
            yield DELAY, plan.device_s[place], 1.0
            if plan.barrier[place] >= 0:
                yield _BARRIER, plan.barrier[place], 0.0
                if plan.transfer_s[place] > 0:
                    yield DELAY, plan.transfer_s[place], 1.0
            self._simulation.send(self._finished, place)

    def _start_workers(self, number: int, begin_s: float) -> None:
        loader = self._plan.loaders[number]
        if loader.startup_s or (loader.workers and loader.group not in self._boxes):
            boxes = [_Box() for _ in range(1 if loader.is_pool else loader.workers)]
            self._boxes[loader.group] = boxes
            for worker in range(loader.workers):
                box = boxes[worker % len(boxes)]
                ready_s = begin_s + loader.startup_s[worker] if loader.startup_s else begin_s
                self._simulation.start(self._worker(box, ready_s), self.cores)

    def _send(self, number: int, count: int) -> None:
        """Tasks to the workers in turn, as torch's DataLoader does, or as they were recorded."""
        loader = self._plan.loaders[number]
        if not loader.workers:
            return
        boxes = self._boxes[loader.group]
        for task in range(
            self._num_sent[number], min(self._num_sent[number] + count, loader.num_tasks)
        ):
            worker = loader.makers[task] if task < len(loader.makers) else task % loader.workers
            self._simulation.send(boxes[worker % len(boxes)], (number, task))
            self._num_sent[number] = task + 1

    def _take(self, number: int) -> _Steps:
        loader, task = self._plan.loaders[number], self._num_taken[number]
        self._num_taken[number] += 1
        if not loader.workers:
            yield from loader.tasks[task]
            yield from loader.take[task]
            return
        if loader.group not in self._boxes:  # its START was not recorded
            self._start_workers(number, self._simulation.now_s)
        awaited = 0
        if loader.together and not task % loader.together:
            awaited = min(loader.together, loader.num_tasks - task)
            self._send(number, awaited)
        elif not loader.together and not self._num_sent[number]:
            self._send(number, loader.workers * loader.prefetch)
        results, arrived = self._results[number], self._arrived[number]
        while task not in arrived or len(arrived) < awaited:
            if not results.messages:
                yield _MESSAGE, results, 0.0
            arrived.update(results.messages)
            results.messages.clear()
        arrived.remove(task)
        yield from loader.take[task]
        if not loader.together:
            self._send(number, 1)

    def _worker(self, box: _Box, ready_s: float) -> _Steps:
        simulation, loaders = self._simulation, self._plan.loaders
        if ready_s > simulation.now_s:
            yield DELAY, ready_s - simulation.now_s, 1.0
        while True:
            while not box.messages:
                yield _MESSAGE, box, 0.0
            number, task = box.messages.popleft()
            loader = loaders[number]
            if loader.lag_s[task] > 0:
                yield DELAY, loader.lag_s[task], 1.0
            yield from loader.tasks[task]
            way_s = loader.transit_s[task]
            if loader.contended_s:
                way_s += loader.contended_s[task] * self.cores.slowdown
            simulation.send_at(simulation.now_s + way_s, self._results[number], task)
