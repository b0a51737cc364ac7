"""The steps of many ranks, one after the other, and all ranks of a step at once.

A batch is a task of a worker of its rank, as in `ioprof.model.pipeline`: so many tasks are sent
ahead as there are workers times prefetch, and one more for each batch that is taken. A task uses
what ranks share, each use with an amount:

    storage, metadata    one for all ranks
    client, disk, cores  one for each node

and takes at least `alone_s`, as long as it takes with nobody else. The pieces of a batch follow
each other, so that a task is done when the last of its uses is done. What is shared serves whoever
began first; where tasks begin together, as all first tasks of an epoch do, it serves all of them
equally fast, so that the first batch is there when nearly all of them are. That is the wait at the
start of an epoch, which grows with the workers.

After taking its batch, a rank computes, and waits for the slowest rank. All arrays are of shape
(nodes, ranks of a node), so that the time grows linearly with the ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ALL, NODE = "all", "node"
"""What shares a resource: all ranks, or those of a node."""


@dataclass(frozen=True)
class Shared:
    """Something that tasks of several ranks use."""

    rate: float
    """Amount per second, of each."""
    per: str
    """`ALL` or `NODE`."""
    amount: float
    """Of a batch of mean size."""
    scales: bool
    """Whether the amount goes with the bytes of the batch."""


@dataclass(frozen=True)
class Load:
    """What is simulated."""

    ranks: int
    ranks_per_node: int
    workers: int
    """0: the rank makes its batches itself."""
    prefetch: int
    shared: Mapping[str, Shared]
    alone_s: float
    """Of a batch of mean size with nobody else."""
    size_cv: float
    """Standard deviation of the bytes of a batch, over their mean."""
    compute_s: Array
    """Of a step, from which each rank draws."""
    overhead_s: Array
    """The same, of what a step takes besides."""
    after_s: float
    """After the slowest rank: exchange that computation does not hide."""


@dataclass(frozen=True)
class Simulated:
    """What happened: one value for each step, in seconds."""

    end_s: Array
    """When the step ended, since the epoch began."""
    wait_s: Array
    """Waiting for the batch: mean of the ranks."""
    compute_s: Array
    straggler_s: Array
    """Waiting for the slowest rank."""
    other_s: Array
    asked: Mapping[str, float]
    """By resource: the amounts of all batches that were taken."""
    busy_s: Mapping[str, float]
    """By resource: time that it needs for those, mean of several."""

    @property
    def steps_s(self) -> Array:
        """How long each step took."""
        return np.diff(self.end_s, prepend=0.0)


_SMALLEST: Final = 0.05
"""Of its mean: no batch is smaller. Sizes are drawn from a normal distribution."""


def run(load: Load, steps: int, seed: int = 0) -> Simulated:
    """Simulate so many steps. The same load and seed give the same result."""
    random = np.random.default_rng(seed)
    nodes = -(-load.ranks // load.ranks_per_node)
    shape = (nodes, load.ranks_per_node)
    exists = np.arange(nodes * load.ranks_per_node).reshape(shape) < load.ranks
    workers, ahead = max(1, load.workers), load.workers * load.prefetch
    begun = max(1, min(workers, ahead))
    queues = {name: _Queue(each, nodes) for name, each in load.shared.items()}
    free = np.zeros((workers, *shape))
    taken = np.zeros((max(1, ahead), *shape))
    first = _first_tasks(load, queues, random, (begun, *shape), exists)
    now = 0.0
    columns: dict[str, list[float]] = {
        name: [] for name in ("end_s", "wait_s", "compute_s", "straggler_s", "other_s")
    }
    asked = dict.fromkeys(load.shared, 0.0)
    for step in range(steps):
        worker, place = step % workers, step % max(1, ahead)
        if step < begun and load.workers:
            size, ready = first[0][step], first[1][step]
        else:
            size = _sizes(load, random, shape)
            sent = now if not load.workers else taken[place] if step >= ahead else 0.0
            start = np.maximum(free[worker], sent)
            ready = start + load.alone_s * size
            for queue in queues.values():
                ready = np.maximum(ready, queue.serve(start, size, exists))
        free[worker] = ready
        take = np.maximum(ready, now)
        taken[place] = take
        compute = _drawn(load.compute_s, random, shape)
        overhead = _drawn(load.overhead_s, random, shape)
        arrived = (take + compute + overhead)[exists]
        last = float(arrived.max())
        for name, each in load.shared.items():
            asked[name] += each.amount * (
                float(size[exists].sum()) if each.scales else float(load.ranks)
            )
        columns["wait_s"].append(float((take - now)[exists].mean()))
        columns["compute_s"].append(float(compute[exists].mean()))
        columns["other_s"].append(float(overhead[exists].mean()) + load.after_s)
        columns["straggler_s"].append(last - float(arrived.mean()))
        now = last + load.after_s
        columns["end_s"].append(now)
    return Simulated(
        **{name: np.array(values) for name, values in columns.items()},
        asked=asked,
        busy_s={
            name: asked[name] / each.rate / (1 if each.per == ALL else nodes)
            for name, each in load.shared.items()
        },
    )


def _sizes(load: Load, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    if not load.size_cv:
        return np.ones(shape)
    return np.maximum(random.normal(1.0, load.size_cv, shape), _SMALLEST)


def _drawn(values: Array, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    if len(values) == 1:
        return np.full(shape, values[0])
    return values[random.integers(0, len(values), shape)]


def _first_tasks(
    load: Load,
    queues: "Mapping[str, _Queue]",
    random: np.random.Generator,
    shape: tuple[int, ...],
    exists: NDArray[np.bool_],
) -> tuple[Array, Array]:
    """Sizes of the first task of each worker, which all begin at once, and when each is done."""
    size = _sizes(load, random, shape)
    ready = load.alone_s * size
    if load.workers:
        for queue in queues.values():
            ready = np.maximum(ready, queue.serve_at_once(size, exists))
    return size, ready


class _Queue:
    """A resource, or one of each node."""

    def __init__(self, shared: Shared, nodes: int) -> None:
        self._shared = shared
        self._free = np.zeros(nodes if shared.per == NODE else 1)

    def serve(self, start: Array, size: Array, exists: NDArray[np.bool_]) -> Array:
        """When each task is done whose use begins at `start`: the earliest first.

        With the service times s of tasks in that order, and their sums c, the end of a task is
        c + max over it and all before of (start - c + s) (Lindley's recursion, unrolled).
        """
        served = self._service(size, exists).reshape(len(self._free), -1)
        begins = np.where(exists, start, -np.inf).reshape(served.shape)
        order = np.argsort(begins, axis=1, kind="stable")
        service = np.take_along_axis(served, order, 1)
        begin = np.maximum(np.take_along_axis(begins, order, 1), self._free[:, None])
        sums = np.cumsum(service, axis=1)
        ends = sums + np.maximum.accumulate(begin - (sums - service), axis=1)
        self._free = ends[:, -1]
        found = np.empty_like(ends)
        np.put_along_axis(found, order, ends, 1)
        return found.reshape(start.shape)

    def serve_at_once(self, size: Array, exists: NDArray[np.bool_]) -> Array:
        """The same of tasks that all begin now and are served equally fast: of shape (tasks of a
        rank, nodes, ranks of a node).
        """
        amounts = np.moveaxis(self._service(size, exists), 0, -1)
        service = amounts.reshape(len(self._free), -1)
        order = np.argsort(service, axis=1, kind="stable")
        ordered = np.take_along_axis(service, order, 1)
        growth = np.diff(ordered, prepend=0.0, axis=1)
        ends = np.cumsum(growth * np.arange(ordered.shape[1], 0, -1), axis=1)
        self._free = ends[:, -1]
        found = np.empty_like(ends)
        np.put_along_axis(found, order, ends, 1)
        return np.moveaxis(found.reshape(amounts.shape), -1, 0)

    def _service(self, size: Array, exists: NDArray[np.bool_]) -> Array:
        amount = self._shared.amount / self._shared.rate
        scaled = size if self._shared.scales else np.ones_like(size)
        return np.where(exists, amount * scaled, 0.0)
