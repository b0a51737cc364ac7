"""The NCCL profiler plugin: called as NCCL does, by every version of its interface. No GPU and no
NCCL is needed."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from compiling import compiled, compiler, native_sources
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import NATIVE, PROGRAMS

from ioprof.format.collective_format import FUNCTIONS
from ioprof.ingest.collectives.files import CollectiveFile, read_collective_files
from ioprof.instrument import preload

pytestmark = pytest.mark.job

PLUGIN = preload.nccl_plugin()
needs_plugin = pytest.mark.skipif(
    PLUGIN is None, reason="the plugin for NCCL is not built: no C compiler"
)
VERSIONS = (1, 2, 3, 4, 5, 6)
versions = pytest.mark.parametrize("version", VERSIONS)
TIMES = {1: "network", 2: "network", 3: "kernel", 4: "gpu", 5: "gpu", 6: "gpu"}
"""How an operation is timed, by version."""

FIELDS = (
    "parent",
    "rank",
    "collective.sequence",
    "collective.function",
    "collective.count",
    "collective.datatype",
    "point_to_point.count",
    "point_to_point.peer",
)
OFFSETS = {
    1: (8, 16, 40, 48, 72, 84, 64, 72),
    2: (8, 16, 40, 48, 72, 88, 64, 72),
    3: (8, 16, 40, 48, 72, 88, 64, 72),
    4: (8, 16, 24, 32, 56, 72, 48, 56),
    5: (8, 16, 24, 32, 56, 72, 48, 56),
}
"""Where NCCL's own headers place these fields; version 6 has them where version 5 has."""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of nccl_calls.c."""
    return compiled(
        "nccl_calls.c",
        tmp_path_factory.mktemp("calls") / "calls.so",
        "-shared",
        "-fPIC",
        f"-I{NATIVE / 'nccl'}",
    )


def scenario(calls: Path, spool: Path, version: int, name: str, code: int = 0) -> Any:
    """What a scenario of nccl_events.py prints."""
    spool.mkdir(exist_ok=True)
    variables = {**os.environ, "IOPROF_SPOOL": str(spool), "NCCL_PROFILER_PLUGIN": str(PLUGIN)}
    command = [sys.executable, str(PROGRAMS / "nccl_events.py"), str(calls), str(version), name]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert code == ended.returncode, ended.stdout + ended.stderr
    return json.loads(ended.stdout) if ended.stdout else None


def the_file(spool: Path) -> CollectiveFile:
    """The one collective file there, without damage."""
    (found,) = read_collective_files(spool)
    assert not +found.damage
    return found


# ------------------------------------------------------------------------------------ the interface


def test_structures_lie_where_nccl_has_them(tmp_path: Path) -> None:
    """The plugin declares NCCL's structures itself: the offsets of NCCL's own headers (2.23 to
    2.30) are the facts."""
    values = {
        version: ", ".join(f"offsetof(struct event_v{version}, {name})" for name in FIELDS)
        for version in OFFSETS
    }
    rows = [
        f'printf("%d{" %zu" * len(FIELDS)}\\n", {version}, {places});'
        for version, places in values.items()
    ]
    source = tmp_path / "offsets.c"
    source.write_text(
        '#include "profiler_api.h"\n#include <stdio.h>\nint main(void) {\n'
        + "\n".join(rows)
        + "\nreturn 0;\n}\n"
    )
    program = compiled(str(source), tmp_path / "offsets", f"-I{NATIVE / 'nccl'}")
    lines = subprocess.run(
        [program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = {int(line.split()[0]): tuple(map(int, line.split()[1:])) for line in lines}
    assert found == OFFSETS


@needs_plugin
def test_the_plugin_needs_no_other_library() -> None:
    """It loads where there is neither CUDA nor NCCL, and exports the versions alone."""
    words = subprocess.run(["ldd", str(PLUGIN)], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^\s*(lib\w+)", words, re.MULTILINE)) <= {"libc", "libpthread", "linux"}
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(PLUGIN)], capture_output=True, text=True
    )
    if symbols.returncode == 0:
        assert {f"ncclProfiler_v{version}" for version in VERSIONS} == {
            line.split()[-1] for line in symbols.stdout.splitlines()
        }


@needs_plugin
@versions
def test_every_operation_comes_with_its_bytes_and_times(
    version: int, calls: Path, tmp_path: Path
) -> None:
    """Function, elements times size, communicator and rank, and 4 ms of kernel or transfers, after
    the enqueue."""
    expected = scenario(calls, tmp_path, version, "one_of_each")
    found = the_file(tmp_path)
    operations = found.operations
    assert expected == [
        [FUNCTIONS[function], size]
        for function, size in operations.select("function", "bytes").iter_rows()
    ]
    assert [TIMES[version]] == operations["times"].unique().to_list()
    assert [(0xABC, 3)] == [(each.hash, each.rank) for each in found.communicators]
    assert {4 if version >= 4 else 0} == {each.ranks for each in found.communicators}
    assert all(each.closed_ns > found.operations["end_ns"].max() for each in found.communicators)
    took = (operations["end_ns"] - operations["start_ns"]).to_list()
    assert min(took) >= 2_000_000
    after = operations["start_ns"] - operations["enqueue_ns"]
    assert after.min() >= -1000  # the GPU's times are converted
    assert found.api == version


@needs_plugin
@versions
def test_a_quiet_folder_gets_nothing(version: int, calls: Path, tmp_path: Path) -> None:
    """Where nothing is recorded the plugin asks for no event, whether or not there is a folder."""
    for spool in ("", str(tmp_path / "missing"), "relative"):
        variables = {**os.environ, "IOPROF_SPOOL": spool, "NCCL_PROFILER_PLUGIN": str(PLUGIN)}
        command = [
            sys.executable,
            str(PROGRAMS / "nccl_events.py"),
            str(calls),
            str(version),
            "mask",
        ]
        assert (
            "0\n"
            == subprocess.run(
                command, env=variables, capture_output=True, text=True, check=True
            ).stdout
        )


@needs_plugin
def test_only_what_is_needed_is_asked_for(calls: Path, tmp_path: Path) -> None:
    """Proxy steps only where there are no kernel channels, and never the control of the proxy,
    which has no end."""
    asked = {
        version: scenario(calls, tmp_path / str(version), version, "mask") for version in VERSIONS
    }
    assert {
        1: 0b11110,
        2: 0b11110,
        3: 0b1000110,
        4: 0b1000110,
        5: 0b1000110,
        6: 0b1000001000110,
    } == asked


# --------------------------------------------------------------------------------------- odd orders


@needs_plugin
@versions
def test_more_communicators_than_the_table_has(version: int, calls: Path, tmp_path: Path) -> None:
    """Operations of 256 are recorded, of 44 counted."""
    scenario(calls, tmp_path, version, "many_communicators")
    found = the_file(tmp_path)
    assert (256, 44) == (len(found.operations), found.untracked)
    assert 256 == len(found.communicators)


@needs_plugin
@pytest.mark.parametrize("version", [4, 6])
@on_a_quiet_machine
def test_channels_may_begin_after_others_have_ended(
    version: int, calls: Path, tmp_path: Path
) -> None:
    """The last stop counts; an operation is not ended by the end of another's communicator."""
    late_ns = scenario(calls, tmp_path, version, "out_of_order")
    operations = the_file(tmp_path).operations
    assert 2 == len(operations.drop_nulls(["start_ns", "end_ns"]))
    assert 0 <= operations["end_ns"][0] - late_ns
    with comparing_times():
        assert operations["end_ns"][0] - late_ns < 1_000_000


@needs_plugin
@versions
def test_a_communicator_may_be_aborted(version: int, calls: Path, tmp_path: Path) -> None:
    """What had begun has a start and no end, what had not begun has neither; the proxy that never
    ends is not reported."""
    scenario(calls, tmp_path, version, "aborted")
    found = the_file(tmp_path)
    starts, ends = found.operations["start_ns"], found.operations["end_ns"]
    begun = version >= 3  # proxies are reported when the last of them ends
    assert [begun, False] == starts.is_not_null().to_list()
    assert [False, False] == ends.is_not_null().to_list()
    closed = [bool(each.closed_ns) for each in found.communicators]
    assert [True, False] == closed


@needs_plugin
@versions
def test_nothing_is_lost_by_a_kill(version: int, calls: Path, tmp_path: Path) -> None:
    """What was recorded until a SIGKILL is there."""
    scenario(calls, tmp_path, version, "killed", code=-signal.SIGKILL)
    found = the_file(tmp_path)
    assert [True, False] == found.operations["end_ns"].is_not_null().to_list()
    assert [True, version >= 3] == found.operations["start_ns"].is_not_null().to_list()


@needs_plugin
@versions
def test_a_forked_child_has_a_file_of_its_own(version: int, calls: Path, tmp_path: Path) -> None:
    """It adds nothing to its parent's, and records communicators that it makes itself."""
    child = scenario(calls, tmp_path, version, "forked")
    found = {each.pid == child: each for each in read_collective_files(tmp_path)}
    assert {True: 2, False: 2} == {
        is_child: len(each.operations) for is_child, each in found.items()
    }
    assert [TIMES[version]] == found[True].operations["times"].unique().to_list()


@needs_plugin
@versions
def test_the_plugin_may_be_unloaded(version: int, calls: Path, tmp_path: Path) -> None:
    """NCCL does so with the last communicator; what comes later is in the same file."""
    scenario(calls, tmp_path, version, "unloaded")
    found = the_file(tmp_path)
    assert (3, 3) == (len(found.operations), len(found.communicators))


@needs_plugin
@pytest.mark.parametrize("version", [1, 2])
def test_events_of_another_process_are_ignored(version: int, calls: Path, tmp_path: Path) -> None:
    """The number of an operation there may be that of another one here."""
    scenario(calls, tmp_path, version, "of_another_process")
    assert ["none"] == the_file(tmp_path).operations["times"].to_list()


@needs_plugin
def test_operations_that_never_end_keep_their_slots(calls: Path, tmp_path: Path) -> None:
    """Later ones are counted as not recorded, instead of getting times of others."""
    scenario(calls, tmp_path, 6, "too_many")
    found = the_file(tmp_path)
    assert (16384, 20000 - 16384) == (len(found.operations), found.untracked)


@needs_plugin
@on_a_quiet_machine
def test_a_graph_enqueues_each_time_that_it_runs(calls: Path, tmp_path: Path) -> None:
    """And not when the call was made that it captured."""
    scenario(calls, tmp_path, 6, "graph")
    operations = the_file(tmp_path).operations
    assert [1, 1, 1] == operations["flags"].to_list()
    with comparing_times():
        assert (operations["start_ns"] - operations["enqueue_ns"]).max() < 5_000_000


@needs_plugin
def test_collectives_by_copy_engines_have_no_times(calls: Path, tmp_path: Path) -> None:
    """NCCL reports their enqueue alone; version 5 does not report them at all."""
    for version in (5, 6):
        scenario(calls, tmp_path / str(version), version, "copies")
    assert 0 == len(the_file(tmp_path / "5").operations)
    assert [("none", 2, 28)] == the_file(tmp_path / "6").operations.select(
        "times", "flags", "bytes"
    ).rows()


@needs_plugin
def test_a_file_grows(calls: Path, tmp_path: Path) -> None:
    """By windows that are mapped before they are needed."""
    num_operations = scenario(calls, tmp_path, 5, "large")
    found = the_file(tmp_path)
    assert (num_operations, 0, 0) == (
        len(found.operations.drop_nulls("end_ns")),
        found.lost,
        found.untracked,
    )


@needs_plugin
def test_a_full_disk_loses_records_and_nothing_else(calls: Path, tmp_path: Path) -> None:
    """A limit of the file's size, which would end the process by SIGXFSZ."""
    tmp_path.joinpath("spool").mkdir()
    variables = {
        **os.environ,
        "IOPROF_SPOOL": str(tmp_path / "spool"),
        "NCCL_PROFILER_PLUGIN": str(PLUGIN),
    }
    command = f"ulimit -f 2000; exec {sys.executable} {PROGRAMS / 'nccl_events.py'} {calls} 6 large"
    assert (
        "40000\n"
        == subprocess.run(
            ["bash", "-c", command], env=variables, capture_output=True, text=True, check=True
        ).stdout
    )
    found = the_file(tmp_path / "spool")
    assert 160_000 - 65_536 == found.lost
    assert found.operations["end_ns"].is_not_null().sum() > 16_000


# ------------------------------------------------------------------------------------------ threads


@needs_plugin
@pytest.mark.parametrize("sanitizer", ["none", "thread", "address,undefined"])
def test_threads_need_no_lock(sanitizer: str, calls: Path, tmp_path: Path) -> None:
    """Twelve communicators with two threads each, one of them destroyed while operations are open;
    as the sanitizers see it."""
    options = [f"-I{NATIVE / name}" for name in ("nccl", "ring")]
    sanitized = (
        [] if sanitizer == "none" else [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    )
    sources = [*native_sources("nccl"), NATIVE / "ring" / "ring_file.c"]
    built = subprocess.run(
        [
            compiler(),
            "-std=gnu11",
            "-O1",
            "-g",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            *options,
            *sanitized,
            *sources,
            "-o",
            tmp_path / "plugin.so",
        ],
        capture_output=True,
        text=True,
    )
    if "cannot find" in built.stderr:
        pytest.skip(f"the C compiler lacks the library of -fsanitize={sanitizer}")
    assert (0, "") == (built.returncode, built.stderr)
    program = compiled(
        "nccl_threads.c", tmp_path / "program", str(PROGRAMS / "nccl_calls.c"), *options, *sanitized
    )
    for version in (2, 3, 6):
        spool = tmp_path / str(version)
        spool.mkdir()
        variables = {**os.environ, "IOPROF_SPOOL": str(spool), "ASAN_OPTIONS": "detect_leaks=0"}
        command = [str(program), str(tmp_path / "plugin.so"), str(version), "12", "300"]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        if "FATAL: ThreadSanitizer" in ended.stderr:
            pytest.skip("the thread sanitizer cannot run under this kernel's address randomisation")
        assert (0, "") == (ended.returncode, ended.stderr)
        found = the_file(spool)
        assert (3600, 0, 0) == (len(found.operations), found.lost, found.untracked)
        never_ended = 3 * 12 if version >= 3 else 0
        assert never_ended == found.operations["end_ns"].null_count()
        per_communicator = found.operations.group_by("communicator").len()["len"].unique().to_list()
        assert [300] == per_communicator
        assert found.operations.filter(pl.col("end_ns") < pl.col("start_ns")).is_empty()


# --------------------------------------------------------------------------------- the real library


def _library() -> Path | None:
    """NCCL's library: that of IOPROF_LIBNCCL, or of NVIDIA's package, which comes with torch for
    CUDA."""
    named = os.environ.get("IOPROF_LIBNCCL")
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        package = None
    folders = package.submodule_search_locations if package else None
    places = [
        *([Path(named)] if named else []),
        *(Path(folder, "lib/libnccl.so.2") for folder in folders or ()),
    ]
    return next((place for place in places if place.is_file()), None)


@needs_plugin
def test_the_real_nccl_reports_a_collective(tmp_path: Path) -> None:
    """It loads the plugin with the newest version that it knows, and its own code reports an
    all-reduce of 4 kB and 4 ms."""
    library = _library()
    if library is None:
        pytest.skip("NCCL is not installed: pip install nvidia-nccl-cu13, or set IOPROF_LIBNCCL")
    if not (shutil.which("gdb") and shutil.which("nm")):
        pytest.skip("gdb and nm are needed to call functions that NCCL does not export")
    variables = {
        **os.environ,
        "IOPROF_SPOOL": str(tmp_path),
        "NCCL_PROFILER_PLUGIN": str(PLUGIN),
        "NCCL_DEBUG": "INFO",
    }
    command = [sys.executable, str(PROGRAMS / "load_nccl.py"), str(library)]
    output = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    version = next(int(line) for line in output.splitlines() if line.isdigit()) // 100 % 100
    found = the_file(tmp_path)
    assert {23: 1, 24: 2, 25: 2, 26: 3, 27: 4, 28: 5}.get(version, 6) == found.api
    assert [(0x1234ABCD, 5)] == [(each.hash, each.rank) for each in found.communicators]
    (operation,) = found.operations.to_dicts()
    assert (FUNCTIONS.index("AllReduce"), 4000, TIMES[found.api]) == (
        operation["function"],
        operation["bytes"],
        operation["times"],
    )
    if found.api >= 4:
        assert 8 == found.communicators[0].ranks
        assert operation["end_ns"] - operation["start_ns"] == pytest.approx(4_000_000, rel=1e-3)
