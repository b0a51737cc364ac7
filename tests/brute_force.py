"""A slow simulation of a loader on shared cores, in exact arithmetic: looks at every process in
every step, and has nothing in common with `ioprof.model.engine` but the rules.

    * The loop sends workers x prefetch tasks at the start, and one more for each batch that it has
      taken, to the workers in turn.
    * A worker does its tasks in the order in which they were sent. Each is a list of (resource,
      seconds).
    * The loop takes batches in the order of their tasks, and works after each.
    * Of n who compute, each gets min(1, cores / n) of a core; of n who read, each gets 1 / n of the
      storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

DELAY, CORES, STORAGE = range(3)
Work = Sequence[tuple[int, Fraction]]


@dataclass
class _Process:
    """What it still has to do, and with what."""

    left: list[tuple[int, Fraction]] = field(default_factory=list)
    task: int | None = None
    tasks: list[int] = field(default_factory=list)


def taken_at(
    workers: int, prefetch: int, tasks: Sequence[Work], after: Sequence[Work], cores: int
) -> list[Fraction]:
    """When the loop has each batch."""
    made = set[int]()
    processes = [_Process() for _ in range(workers)]
    loop, taken, now, sent = _Process(), list[Fraction](), Fraction(0), 0

    def send(count: int) -> None:
        nonlocal sent
        for number in range(sent, min(sent + count, len(tasks))):
            processes[number % workers].tasks.append(number)
            sent = number + 1

    send(workers * prefetch)
    while len(taken) < len(tasks) or loop.left:
        progress = True
        while progress:  # all that takes no time
            progress = False
            for each in processes:
                each.left = _without_done(each.left)
                if each.task is not None and not each.left:
                    made.add(each.task)
                    each.task, progress = None, True
                if each.task is None and each.tasks:
                    each.task = each.tasks.pop(0)
                    each.left, progress = list(tasks[each.task]), True
            loop.left = _without_done(loop.left)
            if not loop.left and len(taken) < len(tasks) and len(taken) in made:
                loop.left, progress = list(after[len(taken)]), True
                taken.append(now)
                send(1)
        busy = [each for each in (*processes, loop) if each.left]
        if not busy:
            break
        users = [
            sum(each.left[0][0] == resource for each in busy)
            for resource in (DELAY, CORES, STORAGE)
        ]
        rates = (
            Fraction(1),
            min(Fraction(1), Fraction(cores, max(1, users[CORES]))),
            Fraction(1, max(1, users[STORAGE])),
        )
        step = min(each.left[0][1] / rates[each.left[0][0]] for each in busy)
        for each in busy:
            resource, seconds = each.left[0]
            each.left[0] = (resource, seconds - step * rates[resource])
        now += step
    return taken


def _without_done(left: list[tuple[int, Fraction]]) -> list[tuple[int, Fraction]]:
    while left and left[0][1] <= 0:
        left = left[1:]
    return left
