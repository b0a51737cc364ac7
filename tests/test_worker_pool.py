"""Work spread over processes: in order, bounded, and never hanging."""

import multiprocessing
import operator
import os
import signal
from itertools import count

import pytest

from ioprof.converters.pool import ordered_map
from ioprof.errors import CommandError


def test_results_come_in_the_order_of_the_tasks():
    """Whichever worker was faster."""
    assert [-number for number in range(100)] == list(ordered_map(operator.neg, range(100), 3))


def test_only_so_many_tasks_are_in_flight():
    """Memory is bounded: tasks are taken as results are."""
    taken = []
    results = ordered_map(operator.neg, (taken.append(number) or number for number in count()), 2)
    assert [0, -1, -2] == [next(results) for _ in range(3)]
    results.close()
    assert len(taken) <= 3 + 4 * 2 + 1


def test_an_error_of_a_worker_is_raised_here():
    """With the place where it happened as a note."""
    with pytest.raises(ValueError, match="invalid literal") as raised:
        list(ordered_map(int, ["1", "x"], 2))
    assert "in a worker process" in raised.value.__notes__[0]


def test_a_worker_that_is_killed_ends_the_job():
    """As an error that says what to do, not as a hang, and whatever the others do meanwhile."""
    with pytest.raises(CommandError, match=r"died \(signal 9\).*fewer --workers") as raised:
        list(ordered_map(signal.raise_signal, [signal.SIGCHLD] * 20 + [signal.SIGKILL] + [signal.SIGCHLD] * 20, 2))
    assert 1 == raised.value.exit_code
    with pytest.raises(CommandError, match=r"died \(exit code 3\)"):
        list(ordered_map(os._exit, [3], 2))


def test_a_stopped_worker_does_not_hold_up_the_end():
    """One that a debugger or a batch system stopped takes no SIGTERM; it is killed."""
    results = ordered_map(operator.neg, count(), 2)
    next(results)
    children = multiprocessing.active_children()
    for child in children:
        os.kill(child.pid, signal.SIGSTOP)
    results.close()
    assert [] == multiprocessing.active_children()
