"""Work spread over processes: in order, bounded, and never hanging."""

import operator
import os
import pickle
import re
import signal
import subprocess
import sys
from itertools import count

import psutil
import pytest
from images import jpeg
from made_datasets import record_of, tree
from repository import ROOT

from ioprof.converters.job.image_converter import RecordData
from ioprof.converters.job.worker_pool import ordered_map
from ioprof.converters.job.worker_process import SLOT_BYTES
from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset


@pytest.mark.job
def test_results_come_in_the_order_of_the_tasks():
    """Whichever worker was faster."""
    assert [-number for number in range(100)] == list(ordered_map(operator.neg, range(100), 3))


@pytest.mark.job
def test_only_so_many_tasks_are_in_flight():
    """Memory is bounded: tasks are taken as results are."""
    taken = []
    results = ordered_map(operator.neg, (taken.append(number) or number for number in count()), 2)
    assert [0, -1, -2] == [next(results) for _ in range(3)]
    results.close()
    assert len(taken) <= 3 + 4 * 2 + 1


@pytest.mark.job
def test_an_error_of_a_worker_is_raised_here():
    """With the place where it happened as a note."""
    with pytest.raises(ValueError, match="invalid literal") as raised:
        list(ordered_map(int, ["1", "x"], 2))
    assert "in a worker process" in raised.value.__notes__[0]


@pytest.mark.job
def test_a_worker_that_is_killed_ends_the_job():
    """As an error that says what to do, not as a hang, for any state of the other workers."""
    with pytest.raises(CommandError, match=r"died \(signal 9\).*fewer --workers") as raised:
        list(
            ordered_map(
                signal.raise_signal,
                [signal.SIGCHLD] * 20 + [signal.SIGKILL] + [signal.SIGCHLD] * 20,
                2,
            )
        )
    assert 1 == raised.value.exit_code
    with pytest.raises(CommandError, match=r"died \(exit code 3\)"):
        list(ordered_map(os._exit, [3], 2))


@pytest.mark.job
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


@pytest.mark.job
def test_workers_ignore_the_signals_that_end_their_parent():
    """Ctrl-C, and what a batch system sends to every process: the parent leaves things in order,
    and ends them."""
    results = ordered_map(operator.neg, count(), 2)
    next(results)
    for child in psutil.Process().children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child.send_signal(number)
    assert [-number for number in range(1, 50)] == [next(results) for _ in range(49)]
    results.close()


# ------------------------------------------------------------------------------------ large results


@pytest.mark.job
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "size", [0, 1, 70_000, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 3 * SLOT_BYTES]
)
def test_large_results_arrive_whole(monkeypatch, size, shared):
    """Whether they fit into the shared memory or not, and where there is none."""
    if not shared:
        monkeypatch.delattr(os, "memfd_create")
    tasks = [(number, size) for number in range(12)]
    found = [
        made._replace(data=bytes(made.data))
        for made in ordered_map(record_of, tasks, 2, views=True)
    ]
    assert list(map(record_of, tasks)) == found


@pytest.mark.job
def test_results_are_copies_unless_views_are_asked_for():
    """Who keeps them need not know how they came."""
    tasks = [(number, 1000) for number in range(40)]
    kept = list(ordered_map(record_of, tasks, 2))
    assert list(map(record_of, tasks)) == kept
    assert all(isinstance(made.data, bytes) for made in kept)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_record_can_be_pickled_by_any_protocol(protocol):
    """Dask chooses its own."""
    assert RecordData.of(b"abc") == pickle.loads(pickle.dumps(RecordData.of(b"abc"), protocol))


# ---------------------------------------------------------------------------------- who starts them


@pytest.mark.job
def test_a_script_is_not_run_again_by_its_workers(tmp_path):
    """It needs no `if __name__ == "__main__":`, and does what it does once."""
    source = tree(
        tmp_path / "source", {f"n01/{number}.JPEG": jpeg(seed=number) for number in range(20)}
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom ioprof.converters import ConvertOptions,"
        " convert\nprint('once')\nconvert(Path(sys.argv[1]), Path(sys.argv[2]),"
        " ConvertOptions(workers=3))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, str(script), str(source), str(tmp_path / "dataset")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (0, "once\n", "") == (done.returncode, done.stdout, done.stderr)
    assert 20 == Dataset.load(tmp_path / "dataset").records


@pytest.mark.job
def test_a_worker_loads_little():
    """What takes long to load is not what its first image needs: no LMDB, no Parquet, no command
    line."""
    code = (
        "import ioprof.converters.job.worker_process, ioprof.converters.job.image_converter, sys;"
        " print(' '.join(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    loaded = set(done.stdout.split())
    assert (
        set()
        == {
            "lmdb",
            "pyarrow",
            "typer",
            "rich",
            "multiprocessing",
            "ioprof.converters.api",
            "ioprof.cli",
        }
        & loaded
    )


@pytest.mark.job
def test_any_module_may_be_the_first_to_be_loaded():
    """A worker imports the module of its function first, so no import cycle may depend on another
    order."""
    code = (
        "import importlib, pathlib, sys, ioprof.converters\nfolder ="
        " pathlib.Path(ioprof.converters.__file__).parent\nfor path in [*folder.glob('[a-z]*.py'),"
        " *folder.glob('*/[a-z]*.py')]:\n    for name in [name for name in sys.modules if"
        " name.startswith('ioprof.converters')]:\n        del sys.modules[name]\n   "
        " importlib.import_module('.'.join(['ioprof.converters',"
        " *path.relative_to(folder).with_suffix('').parts]))\n    print(path.stem)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert {"conversion", "parts", "multiples", "verification", "generation", "registry"} <= set(
        done.stdout.split()
    )


def test_the_subpackages_of_converters_import_one_way():
    """A subpackage imports those before it only, so there is no cycle between them."""
    order = ["options", "manifests", "images", "sources", "layouts", "job", "api"]
    folder = ROOT / "converters"
    for path in (*folder.glob("*.py"), *folder.glob("*/*.py")):
        own = path.relative_to(folder).with_suffix("").parts[0]
        imported = set(
            re.findall(
                r"^\s*(?:from|import) ioprof\.converters\.(\w+)", path.read_text(), re.MULTILINE
            )
        )
        if own in order:
            assert imported <= set(order[: order.index(own) + 1]), path
