"""Work spread over processes: in order, bounded, and never hanging."""

import operator
import os
import pickle
import signal
import subprocess
import sys
from itertools import count

import psutil
import pytest
from images import jpeg
from made_datasets import record_of, tree

from ioprof.converters.pool import ordered_map
from ioprof.converters.reading import Made
from ioprof.converters.serving import SLOT_BYTES
from ioprof.dataset import Dataset
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
    children = psutil.Process().children()
    assert 2 == len(children)
    for child in children:
        child.suspend()
    results.close()
    assert [] == [child for child in children if child.is_running()]


def test_workers_are_deaf_to_what_ends_their_parent():
    """Ctrl-C, and what a batch system sends to every process: the parent leaves things in order, and ends them."""
    results = ordered_map(operator.neg, count(), 2)
    next(results)
    for child in psutil.Process().children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child.send_signal(number)
    assert [-number for number in range(1, 50)] == [next(results) for _ in range(49)]
    results.close()


# ------------------------------------------------------------------------------------------------ large results


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [0, 1, 70_000, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 3 * SLOT_BYTES])
def test_large_results_arrive_whole(monkeypatch, size, shared):
    """Whether they fit into the shared memory or not, and where there is none."""
    if not shared:
        monkeypatch.delattr(os, "memfd_create")
    tasks = [(number, size) for number in range(12)]
    found = [made._replace(data=bytes(made.data)) for made in ordered_map(record_of, tasks, 2, views=True)]
    assert list(map(record_of, tasks)) == found


def test_results_are_copies_unless_views_are_asked_for():
    """Who keeps them need not know how they came."""
    tasks = [(number, 1000) for number in range(40)]
    kept = list(ordered_map(record_of, tasks, 2))
    assert list(map(record_of, tasks)) == kept
    assert all(isinstance(made.data, bytes) for made in kept)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_record_can_be_pickled_by_any_protocol(protocol):
    """Dask chooses its own."""
    assert Made.of(b"abc") == pickle.loads(pickle.dumps(Made.of(b"abc"), protocol))


# ------------------------------------------------------------------------------------------------ who starts them


def test_a_script_is_not_run_again_by_its_workers(tmp_path):
    """It needs no `if __name__ == "__main__":`, and does what it does once."""
    source = tree(tmp_path / "source", {f"n01/{number}.JPEG": jpeg(seed=number) for number in range(20)})
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom ioprof.converters import ConvertOptions, convert\nprint('once')\n"
        "convert(Path(sys.argv[1]), Path(sys.argv[2]), ConvertOptions(workers=3))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, str(script), str(source), str(tmp_path / "dataset")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (0, "once\n", "") == (done.returncode, done.stdout, done.stderr)
    assert 20 == Dataset.load(tmp_path / "dataset").records


def test_a_worker_loads_little():
    """What takes long to load is not what its first image needs: no LMDB, no Parquet, no command line."""
    code = "import ioprof.converters.serving, ioprof.converters.reading, sys; print(' '.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    loaded = set(done.stdout.split())
    assert set() == {"lmdb", "pyarrow", "typer", "rich", "multiprocessing", "ioprof.converters.api", "ioprof.cli"} & loaded


def test_any_module_may_be_the_first_to_be_loaded():
    """A worker loads that of the work it was given, and no other comes first to break a circle."""
    code = (
        "import importlib, pathlib, sys, ioprof.converters\n"
        "for path in pathlib.Path(ioprof.converters.__file__).parent.glob('[a-z]*.py'):\n"
        "    for name in [name for name in sys.modules if name.startswith('ioprof.converters')]:\n"
        "        del sys.modules[name]\n"
        "    importlib.import_module(f'ioprof.converters.{path.stem}')\n"
        "    print(path.stem)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (0, "") == (done.returncode, done.stderr)
    assert {"conversion", "parts", "multiples", "verification", "generation"} <= set(done.stdout.split())
