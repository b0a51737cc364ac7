"""What every test gets: nothing may be left behind, no more of the machine than its tier allows,
and three folders of images."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import jsonschema
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

from ioprof.format.schema import RUN_SCHEMA, SUMMARY_SCHEMA

_ANY_SPEED: Final[dict[str, Any]] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("here", **_ANY_SPEED)
settings.register_profile("ci", **_ANY_SPEED, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

GRACE_S: Final = 5.0
"""How long a thread or a process that is already on its way out may take: multiprocessing's queue
feeders, a reaped worker."""

LIBRARY_VARIABLES: Final = {
    "PYTEST_CURRENT_TEST",  # pytest: the name of the phase that runs
    "_RJEM_MALLOC_CONF",  # polars: its allocator's settings, at import
    "TORCHINDUCTOR_CACHE_DIR",  # torch: when DistributedDataParallel first looks for its compiler
}

LIBRARY_PROCESSES: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Python's own helpers, started once by the first spawn or forkserver and kept until the
interpreter ends."""


OF_SYSTEM: Final = {
    *(
        "mount",
        "umount",
        "losetup",
        "fusermount",
        "fusermount3",
        "unshare",
        "ip",
        "mkfs.ext4",
        "mkfs.xfs",
        "mkfs.btrfs",
    ),
    *("chromium", "chromium-browser", "google-chrome", "mfsmaster", "slurmctld"),
}
"""Programs that only tests of the tier `system` start."""

_started: Final[list[str]] = []
"""What this process has started since its present test began."""


def _note_start(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook (PEP 578)."""
    if event == "subprocess.Popen":
        words = arguments[1]
        _started.append(
            str(words if isinstance(words, str | bytes | os.PathLike) else next(iter(words)))
        )  # type: ignore[call-overload]
    elif event in ("os.fork", "os.forkpty", "os.posix_spawn"):
        _started.append(event)


sys.addaudithook(_note_start)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--whole`, and `--budget` for `make quick`."""
    parser.addoption(
        "--whole", action="store_true", help="run all tests, also those whose turn is another day"
    )
    parser.addoption(
        "--budget",
        type=float,
        metavar="S",
        help="leave out the tests that would begin later than so many seconds",
    )


def pytest_configure() -> None:
    """Note the day, by which some tests rotate, for all processes. Take signals as a terminal's
    foreground job does, whoever started pytest: `nohup` and a shell's `&` have some ignored, and
    what is ignored stays so in every process that a test starts.
    """
    os.environ.setdefault("IOPROF_TESTS_DAY", str(int(time.time() // 86400)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: waiting is not the test's time
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Where several processes share the tests, one that compares rates or times and is marked
    `alone` waits until the others' tests have ended, and they wait for it."""
    if not hasattr(item.config, "workerinput"):  # pytest-xdist's
        return (yield)
    with open(__file__) as gate, open(Path(__file__).with_name("repository.py")) as room:
        # one behind the other, or those who may share would never let in one who may not
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            # not by closing it: a test's processes may hold copies
            fcntl.flock(room, fcntl.LOCK_UN)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out those whose turn is another day: of `pytest.mark.job(every=4)` each test runs on
    one day in four."""
    if config.getoption("--whole"):
        return
    day = int(os.environ["IOPROF_TESTS_DAY"])
    left_out = [item for item in items if (day + zlib.crc32(item.nodeid.encode())) % _every(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _every(item: pytest.Item) -> int:
    marks = chain(item.iter_markers("job"), item.iter_markers("system"))
    return max((mark.kwargs.get("every", 1) for mark in marks), default=1)


_BEGAN_S: Final = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a test for which there is no time."""
    budget_s = item.config.getoption("--budget")
    if budget_s is not None and time.monotonic() - _BEGAN_S > budget_s:
        pytest.skip(f"its {budget_s:.0f} s were over; `make test` runs it")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Note which fixtures that tests share start processes: each of these tests is of the tier
    `job` at least."""
    before = len(_started)
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _started_by[fixturedef.baseid, fixturedef.argname] = _started[before:]


_started_by: Final[dict[tuple[str, str], list[str]]] = {}
"""By the file and the name of a fixture that tests share."""


def _shared_fixtures(item: pytest.Function) -> Iterator[tuple[str, str]]:
    """The keys of `_started_by`. Two files may have fixtures of one name, and a parameter of a
    third may be called like them."""
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from ((definition.baseid, definition.argname) for definition in definitions[-1:])


@pytest.fixture(autouse=True)
def tier_fits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that starts a process and has neither mark, and one that changes the machine and
    is not of the tier `system`."""
    _started.clear()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    yield
    started = [
        *_started,
        *chain.from_iterable(_started_by.get(key, ()) for key in _shared_fixtures(request.node)),
    ]
    if resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt != before:
        started.append("a process of multiprocessing")  # which no audit event tells
    marks = {mark.name for mark in request.node.iter_markers()} & {"job", "system"}
    of_system = [program for program in started if Path(program).name in OF_SYSTEM]
    assert "system" in marks or not of_system, (
        f"{of_system[0]} is started: mark the test with pytest.mark.system"
    )
    assert marks or not started, (
        f"a process is started ({started[0]}): mark the test with pytest.mark.job"
    )


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves recording on, a child process, a thread, an environment variable or
    another working directory."""
    assert not _is_recording(), "recording was on before the test began"
    before = set(threading.enumerate()), _children(), dict(os.environ), Path.cwd()
    yield
    threads, children, environment, folder = before
    left = [*_left_recording(), *_changed_environment(environment), *_changed_folder(folder)]
    left += [*_left_children(children), *_left_threads(threads)]
    assert not left, "the test left behind: " + "; ".join(left)


@pytest.fixture(autouse=True)
def run_folders_fit_their_schemas(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that made a run.json or summary.json in its `tmp_path` which does not fit its
    JSON schema."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        wrong = list(_schema_errors(folder))
        assert not wrong, "the test made files that do not fit their schemas: " + "; ".join(wrong)


def _schema_errors(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not Path(place, name).is_mount()]
        for name in {"run.json", "summary.json"}.intersection(names):
            try:
                content = json.loads(Path(place, name).read_bytes())
            except (OSError, ValueError):
                continue  # a test about damaged files
            if isinstance(content, dict) and content.get("schema") in (RUN_SCHEMA, SUMMARY_SCHEMA):
                yield from (
                    f"{place}/{name}: {error.json_path}: {error.message[:200]}"
                    for error in _errors(name, content)
                )


def _errors(name: str, content: object) -> Iterator[jsonschema.ValidationError]:
    errors: Iterator[jsonschema.ValidationError] = _validator(name).iter_errors(content)
    return errors


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    from ioprof.format.run_record.json_schema import FILES, json_schema

    return jsonschema.Draft202012Validator(
        json_schema(FILES[name.replace(".json", ".schema.json")])
    )


@pytest.fixture(scope="session")
def sample() -> Path:
    """500 real ImageNet images, `<wnid>/<name>.JPEG`, in the folder that the environment variable
    names."""
    path = os.environ.get("IOPROF_IMAGENET_SAMPLE")
    if not path:
        pytest.skip("no ImageNet sample: IOPROF_IMAGENET_SAMPLE is not set")
    return Path(path)


@pytest.fixture(scope="session")
def small_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 small JPEGs in 4 class folders, alike on every machine; for reading only, since all tests
    share it."""
    root = tmp_path_factory.mktemp("small_tree")
    random = np.random.default_rng(0)
    for wnid in ("n01440764", "n01443537", "n02084071", "n04146614"):
        (root / wnid).mkdir()
        for number in range(9):
            width, height = (int(side) for side in random.integers(24, 96, 2))
            pixels = random.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((width, height)).save(
                root / wnid / f"{wnid}_{number}.JPEG", quality=90
            )
    return root


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """72 generated photographs in two classes; for reading only, since all tests share it."""
    from ioprof.converters import GenerateOptions, generate

    folder = tmp_path_factory.mktemp("images") / "images"
    generate(folder, GenerateOptions(images=72, classes=2, workers=1))
    return folder


def _is_recording() -> bool:
    recorder = sys.modules.get("ioprof.instrument.recorder")  # never imported, never on
    return recorder is not None and recorder.is_recording()


def _left_recording() -> Iterator[str]:
    if _is_recording():
        sys.modules["ioprof.instrument.recorder"].stop()
        yield "recording on"


def _children() -> set[int]:
    """Process ids of the children. psutil looks at all processes of the machine for that, which
    every test would wait for twice."""
    lists = []
    for path in Path("/proc/self/task").glob("*/children"):  # of each thread, those that it started
        with suppress(OSError):  # the thread ended meanwhile
            lists.append(path.read_text())
    if not lists:  # the kernel was built without these files
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for pids in lists for pid in pids.split()}


def _left_children(before: set[int]) -> Iterator[str]:
    new = [psutil.Process(pid) for pid in _children() - before if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(
        [child for child in new if not _is_library_process(child)], timeout=GRACE_S
    )
    for child in alive:
        yield f"child process {child.pid} ({_command(child)[:100]})"
        child.kill()
        child.wait(GRACE_S)  # else the next tests see a zombie


def _is_library_process(process: psutil.Process) -> bool:
    return any(name in _command(process) for name in LIBRARY_PROCESSES)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ended meanwhile
        return ""


def _left_threads(before: set[threading.Thread]) -> Iterator[str]:
    for thread in set(threading.enumerate()) - before:
        thread.join(GRACE_S)
        if thread.is_alive():
            yield f"thread {thread.name}"


def _changed_environment(before: dict[str, str]) -> Iterator[str]:
    after = dict(os.environ)
    for name in sorted((before.keys() | after.keys()) - LIBRARY_VARIABLES):
        if before.get(name) != after.get(name):
            yield f"environment variable {name} (was {before.get(name)!r}, is {after.get(name)!r})"
            os.environ.pop(name, None)
            os.environ.update({name: before[name]} if name in before else {})


def _changed_folder(before: Path) -> Iterator[str]:
    if Path.cwd() != before:
        yield f"working directory {Path.cwd()}"
        os.chdir(before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a file system of so many bytes, and of so many files if that is given; skips where
    that is not allowed."""
    mounted: list[Path] = []

    def mount(size_bytes: int, files: int | None = None) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        options = f"size={size_bytes}" + (f",nr_inodes={files}" if files else "")
        ended = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True
        )
        if ended.returncode:
            pytest.skip(
                f"a small file system cannot be mounted: {ended.stderr.strip() or 'needs root'}"
            )
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)
