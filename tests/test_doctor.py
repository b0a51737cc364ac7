"""`ioprof doctor` on this machine as it is, and with one thing at a time made different."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from captures import PROGRAMS
from repository import ROOT

import ioprof
from ioprof.cli import main
from ioprof.cli.doctor import show_findings
from ioprof.doctor import (
    CHECKS,
    STATES,
    Finding,
    Surroundings,
    cgroups,
    examine,
    gpus,
    kernel,
    places,
    programs,
)
from ioprof.instrument import faults, perf_events

PACKAGE: Final = Path(ioprof.__file__).parent
STATIC_PROGRAM: Final = "int main(void) { return 0; }"


@pytest.fixture
def here(tmp_path: Path) -> Surroundings:
    """This machine, with a folder of its own to look at."""
    return Surroundings(dict(os.environ), PACKAGE, sys.executable, (tmp_path,))


def machine(tmp_path: Path, files: dict[str, str], **environment: str) -> Surroundings:
    """A machine whose /proc and /sys hold only these files."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Surroundings(
        environment, PACKAGE, sys.executable, (), tmp_path / "proc", tmp_path / "sys"
    )


def only(found: Finding | Iterable[Finding]) -> Finding:
    """The one finding of a check."""
    return found if isinstance(found, Finding) else next(iter(found))


def doctor(*arguments: object, **environment: str | None) -> "subprocess.CompletedProcess[str]":
    """`ioprof doctor`, as a process with these changes to the environment."""
    changed = {
        **os.environ,
        **{name: value for name, value in environment.items() if value is not None},
    }
    changed = {
        name: value for name, value in changed.items() if environment.get(name, "") is not None
    }
    command = [sys.executable, "-m", "ioprof", "doctor", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=changed, capture_output=True, text=True, timeout=240, check=False
    )


def rows(ended: "subprocess.CompletedProcess[str]") -> dict[str, dict[str, str]]:
    """The findings by name, of `ioprof doctor --json`."""
    assert 0 == ended.returncode, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert {"schema", "host", "findings"} == found.keys()
    assert "ioprof.doctor/1" == found["schema"]
    return {row["name"]: row for row in found["findings"]}


# -------------------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def as_it_is(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What the command says of this machine, of a folder on its disk and of one in its memory."""
    data, empty, temporary = (
        tmp_path_factory.mktemp(name) for name in ("data", "empty", "temporary")
    )
    (data / "record").write_bytes(b"data")
    memory = ["/dev/shm"] if Path("/dev/shm").is_dir() else []
    found = rows(doctor("--json", data, empty, *memory, TMPDIR=str(temporary)))
    # it leaves nothing behind
    assert [data / "record"] == [
        *data.iterdir(),
        *empty.iterdir(),
        *temporary.iterdir(),
    ]
    return found


@pytest.mark.job(every=4)
def test_every_finding_says_what_to_type(as_it_is: dict[str, dict[str, str]]) -> None:
    """Each row has a state, what was seen and what it means; what is not ok says what to type, and
    what is ok does not."""
    for row in as_it_is.values():
        assert {"name", "state", "seen", "means", "to_type"} == row.keys()
        assert row["state"] in STATES
        assert row["seen"]
        assert row["means"]
        assert (row["state"] == "ok") == (row["to_type"] == ""), row
        assert "the check failed" not in row["seen"], row


@pytest.mark.job(every=4)
def test_the_findings_agree_with_this_machine(as_it_is: dict[str, dict[str, str]]) -> None:
    """What can be known in another way: the library's file, DALI, GPUs, pressure files."""
    built = any(PACKAGE.glob("_capture*.so"))
    assert built or "missing" == as_it_is["capture library"]["state"]
    assert (find_spec("nvidia.dali") is not None if find_spec("nvidia") else False) == (
        as_it_is["DALI"]["state"] == "ok"
    )
    assert Path("/proc/pressure/io").exists() == (as_it_is["pressure"]["state"] == "ok")
    assert (Path("/proc/driver/nvidia").exists()) == (as_it_is["GPU counters"]["state"] == "ok")


def test_text_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Every name and command of the findings is in the text, commands in one piece; it begins with
    one sentence, and with what does not work."""
    found = [
        Finding("page faults", "missing", "refused", "not seen", "sysctl -w " + "x" * 200),
        Finding("clock", "ok", "tsc", "cheap"),
    ]
    show_findings(found, json=False)
    text = capsys.readouterr().out
    assert f"\n    {found[0].to_type}\n" in text
    assert all(
        word in text for finding in found for word in (finding.name, finding.seen, finding.means)
    )
    assert text.index("page faults (missing): refused; not seen") < text.index("clock")
    assert (
        "1 of 2 things that ioprof looks at can be seen in full here; missing: page faults."
        == text.splitlines()[0]
    )
    show_findings(found, json=True)
    assert [vars(finding) for finding in found] == json.loads(capsys.readouterr().out)["findings"]


def test_a_path_that_is_not_there_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The only way to end with anything but 0."""
    assert 2 == main(["doctor", "/nonexistent/data"])
    assert "/nonexistent/data: no such file or folder" in capsys.readouterr().err


@pytest.mark.job(every=4)
def test_a_poor_environment_is_no_error(tmp_path: Path) -> None:
    """No PATH, another tracer preloaded that is not there, a TMPDIR that cannot be used: findings,
    and exit code 0."""
    ended = doctor(
        "--json",
        tmp_path,
        PATH=None,
        LD_PRELOAD="/opt/darshan/libdarshan.so",
        TMPDIR="/nonexistent",
    )
    found = rows(ended)
    assert "limited" == found["LD_PRELOAD"]["state"]
    assert "unset LD_PRELOAD" == found["LD_PRELOAD"]["to_type"]
    assert "limited" == found["spool folder"]["state"]
    assert "/nonexistent" in found["spool folder"]["seen"]


def test_a_check_that_fails_is_a_finding(here: Surroundings) -> None:
    """An error within one check costs that one finding."""

    def broken(_: Surroundings) -> Finding:
        raise OSError(5, "Input/output error")

    found = examine(here, (broken, kernel.tracing))
    assert [("broken", "limited"), ("ptrace", "ok")] == [
        (finding.name, finding.state) for finding in found
    ]


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), KeyError("fields"), TypeError("of None")]
)
def test_what_a_check_found_before_it_failed_is_kept(here: Surroundings, error: Exception) -> None:
    """A check yields its findings one by one; an exception loses no other finding."""

    def several(_: Surroundings) -> Iterator[Finding]:
        yield Finding("first", "ok", "seen", "fine")
        raise error

    assert ["first", "several", "ptrace"] == [
        finding.name for finding in examine(here, (several, kernel.tracing))
    ]


def test_a_path_that_fails_costs_no_other_path(here: Surroundings, tmp_path: Path) -> None:
    """A mount that went away is a finding of its own; the folders after it are looked at."""
    lost = tmp_path / "lost"
    found = list(places.read_sources(replace(here, paths=(lost, tmp_path))))
    assert [f"read sources of {lost}", f"read sources of {tmp_path}"] == [
        finding.name for finding in found
    ]
    assert [True, False] == ["the check failed" in finding.seen for finding in found]


# ----------------------------------------------------------------------------------------- programs


def test_without_the_capture_library_it_says_how_to_get_it(
    here: Surroundings, tmp_path: Path
) -> None:
    """An installation without a compiler has neither library nor, here, hooks."""
    bare = replace(here, package=tmp_path)
    for check in (programs.capture_library, programs.python_hooks):
        found = only(check(bare))
        assert "missing" == found.state
        assert "pip install" in found.to_type


@pytest.mark.job
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_library_that_records_nothing_is_limited(here: Surroundings, tmp_path: Path) -> None:
    """The finding is what a trial gave: a library that loads and sees no byte is not called ok."""
    source, library = tmp_path / "empty.c", tmp_path / "_capture.so"
    source.write_text("int ioprof_test_of_nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    found = programs.capture_library(replace(here, package=tmp_path))
    assert ("limited", "0 of 1,048,576 bytes") == (found.state, found.seen[:20])


@pytest.mark.job
def test_a_library_that_breaks_programs_is_missing(here: Surroundings, tmp_path: Path) -> None:
    """One built for another machine is refused by the linker, which says so; programs go on, and
    nothing is recorded."""
    (tmp_path / "_capture.so").write_bytes(b"\x7fELF no library")
    found = programs.capture_library(replace(here, package=tmp_path))
    assert found.state in ("limited", "missing")
    assert "_capture.so" in found.seen


@pytest.mark.job
@pytest.mark.skipif(
    not any(PACKAGE.glob("_capture*.so")), reason="the capture library is not built"
)
@pytest.mark.parametrize(
    "path", [os.environ.get("PATH", ""), "/nonexistent"], ids=["cat", "no cat"]
)
def test_the_capture_library_is_tried_for_real(here: Surroundings, path: str) -> None:
    """Every byte that a program reads is recorded; without `cat`, Python reads."""
    found = programs.capture_library(replace(here, environment={**here.environment, "PATH": path}))
    assert ("ok", "1,048,576 of 1,048,576 bytes") == (found.state, found.seen[:28])


@pytest.mark.job
def test_hooks_that_do_not_record_are_missing(here: Surroundings, tmp_path: Path) -> None:
    """The finding is what a trial gave: a sitecustomize.py that starts nothing is not called ok."""
    (tmp_path / "instrument" / "site").mkdir(parents=True)
    (tmp_path / "instrument" / "site" / "sitecustomize.py").write_text("")
    found = programs.python_hooks(replace(here, package=tmp_path))
    assert ("missing", True) == (found.state, "does not record" in found.seen)


@pytest.mark.parametrize(
    ("value", "state"),
    [
        ("", "ok"),
        ("libjemalloc.so.2", "ok"),
        ("/opt/nowhere/libx.so", "limited"),
        ("libc.so.6:libdarshan.so", "limited"),
    ],
)
def test_other_preloaded_libraries(here: Surroundings, value: str, state: str) -> None:
    """Allocators stay; another tracer, or a library that is not there, is named."""
    found = programs.preloaded(replace(here, environment={"LD_PRELOAD": value}))
    assert (state, True) == (found.state, all(name in found.seen for name in value.split(":")[-1:]))


@pytest.mark.job
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_static_interpreter_cannot_be_reached(here: Surroundings, tmp_path: Path) -> None:
    """A program without a dynamic linker loads nothing of ours; one with it is named with its
    linker."""
    source, program = tmp_path / "static.c", tmp_path / "static"
    source.write_text(STATIC_PROGRAM)
    built = subprocess.run(
        ["cc", "-static", "-o", program, source], capture_output=True, check=False
    )
    if built.returncode:
        pytest.skip("no static C library")
    assert "missing" == programs.interpreter(replace(here, python=str(program))).state
    assert "ld-" in (programs.dynamic_linker(Path(sys.executable).resolve()) or "")


@pytest.mark.job
@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="no musl")
def test_a_musl_interpreter_is_limited(here: Surroundings, tmp_path: Path) -> None:
    """The capture library is made for glibc."""
    source, program = tmp_path / "musl.c", tmp_path / "musl"
    source.write_text(STATIC_PROGRAM)
    subprocess.run(["musl-gcc", "-o", program, source], check=True, capture_output=True)
    assert "limited" == programs.interpreter(replace(here, python=str(program))).state


# --------------------------------------------------------------------------------------- the kernel


@pytest.mark.parametrize(
    ("error", "paranoid", "seen", "to_type"),
    [
        (
            errno.EACCES,
            3,
            "kernel.perf_event_paranoid is 3",
            "sysctl -w kernel.perf_event_paranoid=2",
        ),
        (errno.EPERM, 2, "forbidden, as containers do by seccomp", "docker run --cap-add PERFMON"),
        (
            errno.EPERM,
            None,
            "forbidden, as containers do by seccomp",
            "docker run --cap-add PERFMON",
        ),
        (errno.EINVAL, 2, "too old for it", "Linux 4.3 or newer"),
        (errno.ENOSYS, None, "no perf events", "a kernel built with CONFIG_PERF_EVENTS=y"),
        (errno.EMFILE, 2, "too few file descriptors", "ulimit -n 4096"),
        (errno.EIO, 2, os.strerror(errno.EIO), "dmesg"),
    ],
)
def test_why_page_faults_are_refused(
    here: Surroundings, error: int, paranoid: int | None, seen: str, to_type: str
) -> None:
    """The finding is the recorder's own refusal, in two parts: what stands in the way, and what to
    type."""
    refused = perf_events.explain_refusal(error, paranoid)
    found = kernel.page_faults(here, lambda: refused)
    assert ("missing", refused.seen, refused.to_type) == (found.state, found.seen, found.to_type)
    assert (True, True) == (seen in found.seen, found.to_type.startswith(to_type))
    assert (
        str(refused)
        == f"page faults of mapped files cannot be recorded: {found.seen}; what would allow it:"
        f" {found.to_type}"
    )


@pytest.mark.job
def test_page_faults_are_tried_for_real(here: Surroundings) -> None:
    """What the trial says is what a recording would find, here and where a container's filter
    forbids the call."""
    found, refused = kernel.page_faults(here), faults.refusal()
    assert (found.state == "ok") == (refused is None)
    # that would be a mistake of ours, not of the machine
    assert refused is None or "too old" not in refused.seen
    program = f"""
import runpy
runpy.run_path({str(PROGRAMS / "without_perf_events.py")!r}, run_name="__main__")
from ioprof.doctor import kernel
print(kernel.page_faults(None).seen)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "forbidden" in ended.stdout.splitlines()[-1]


def test_page_faults_need_their_rings(here: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that can be opened are of no use where no memory may be locked for what they say."""
    if faults.refusal() is not None:
        pytest.skip("page faults cannot be recorded here")
    monkeypatch.setattr(perf_events, "_map", lambda *_: None)
    before = os.listdir("/proc/self/fd")
    found = kernel.page_faults(here)
    assert ("missing", True) == (found.state, "no locked memory" in found.seen)
    assert before == os.listdir("/proc/self/fd")


@pytest.mark.parametrize(
    ("mountinfo", "hidden"),
    [
        ("22 1 0:21 / /proc rw,nosuid - proc proc rw", "0"),
        ("22 1 0:21 / /proc rw,nosuid - proc proc rw,hidepid=invisible", "invisible"),
        ("22 1 0:21 / /proc rw,hidepid=2 shared:5 - proc proc rw", "2"),
        ("", "0"),
    ],
)
def test_hidden_processes(mountinfo: str, hidden: str) -> None:
    """The option as the kernel prints it, among the options of the mount or of the file system."""
    assert hidden == kernel.hidepid(mountinfo)


def test_a_machine_without_anything(tmp_path: Path) -> None:
    """An empty /proc and /sys: each check says what is missing, and raises nothing."""
    empty = machine(tmp_path, {})
    assert "missing" == kernel.pressure(empty).state
    assert "missing" == kernel.io_counters(empty).state
    assert "limited" == kernel.block_delay(empty).state
    assert "limited" == kernel.clock(empty).state
    assert ["no cgroup with a memory controller"] == [cgroups.memory_limit(empty).seen]
    found = [only(check(empty)) for check in CHECKS if check.__module__ == kernel.__name__]
    assert all(finding.to_type for finding in found if finding.state != "ok")


@pytest.mark.parametrize(
    ("current", "state"),
    [("tsc", "ok"), ("arch_sys_counter", "ok"), ("hpet", "limited"), ("xen", "limited")],
)
def test_slow_clocks(tmp_path: Path, current: str, state: str) -> None:
    """A clock source that needs a system call is limited, and the fast one is named where there is
    one."""
    folder = "sys/devices/system/clocksource/clocksource0"
    files = {
        f"{folder}/current_clocksource": f"{current}\n",
        f"{folder}/available_clocksource": "tsc hpet acpi_pm\n",
    }
    found = kernel.clock(machine(tmp_path, files))
    assert state == found.state
    assert state == "ok" or found.to_type.startswith("echo tsc > ")


def test_restricted_gpu_profiling(tmp_path: Path) -> None:
    """The driver's list of parameters shows whether users may profile."""
    for value, state in ((1, "limited"), (0, "ok")):
        files = {
            "proc/driver/nvidia/params": (
                f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {value}\n"
            )
        }
        assert state == gpus.restriction(machine(tmp_path, files)).state


# -------------------------------------------------------------------------------- places and groups


def test_mounts_are_those_that_psutil_names(tmp_path: Path) -> None:
    """Of folders on different mounts; that of a file is that of its folder."""
    (tmp_path / "file").touch()
    known = {
        partition.mountpoint: partition.fstype for partition in psutil.disk_partitions(all=True)
    }
    for path in (Path("/proc"), Path("/dev/shm"), tmp_path, tmp_path / "file"):
        if path.exists():
            holders = [point for point in known if path.is_relative_to(point)]
            assert known[max(holders, key=len)] == places.file_system_of(path)


def test_memory_file_systems_need_no_question(here: Surroundings) -> None:
    """tmpfs answers no RWF_NOWAIT, and need not: what it holds is in memory."""
    if places.file_system_of(Path("/dev/shm")) != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs")
    found = only(places.read_sources(replace(here, paths=(Path("/dev/shm"),))))
    assert ("ok", "tmpfs: files are in memory") == (found.state, found.seen)


@pytest.mark.parametrize("content", [None, b"data"])
def test_read_sources_are_tried_for_real(
    here: Surroundings, tmp_path: Path, content: bytes | None
) -> None:
    """With a file of the folder, or where it is empty with a nameless one, RWF_NOWAIT is what it is
    for any other program."""
    if content:
        (tmp_path / "file").write_bytes(content)
    found = only(places.read_sources(here))
    expected = (
        "ok" if places.file_system_of(tmp_path) in ("ext4", "xfs", "btrfs", "tmpfs") else "limited"
    )
    assert expected == found.state


@pytest.mark.parametrize(
    ("file_system", "answer", "state", "word"),
    [
        ("ext4", "", "ok", "exactly"),
        ("lustre", "Operation not supported", "limited", "counters"),
        ("fuse.sshfs", "Operation not supported", "limited", "unknown"),
    ],
)
def test_what_a_file_system_means_for_reads(
    tmp_path: Path, file_system: str, answer: str, state: str, word: str
) -> None:
    """Exact, by counters, or unknown: as the capture library classifies reads there."""
    found = places.read_source("reads", tmp_path, file_system, lambda _: answer)
    assert (state, True) == (found.state, word in found.means)


@pytest.mark.parametrize(
    ("error", "state"),
    [("", "ok"), ("Function not implemented", "missing"), ("Operation not permitted", "missing")],
)
def test_why_residency_is_refused(here: Surroundings, error: str, state: str) -> None:
    """An old kernel and another user's file call for different things."""
    found = only(places.residency(here, lambda _: error))
    assert state == found.state
    assert (error.startswith("Function")) == ("6.5" in found.to_type)


@pytest.mark.parametrize(("gone", "asked"), [(1, "data"), (2, "ioprof")])
@pytest.mark.parametrize("after", ["scandir", "access"])
def test_a_file_that_goes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, gone: int, asked: str
) -> None:
    """In a folder that others use, such as /dev/shm, the next file is asked, or where there is none
    a nameless one."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("data")
    entries = list(os.scandir(tmp_path))
    doomed = [entry.path for entry in entries[:gone]]

    def scandir(_: Path) -> AbstractContextManager[list[os.DirEntry[str]]]:
        for path in doomed:
            Path(path).unlink()
        return nullcontext(entries)

    def access(path: str, _: int) -> bool:
        if path in doomed:
            Path(path).unlink()
        return True

    monkeypatch.setattr(os, after, {"scandir": scandir, "access": access}[after])
    assert asked == places.find_refusal(
        tmp_path, lambda descriptor: os.pread(descriptor, 10, 0).decode()
    )


@pytest.mark.job
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_folder_that_may_not_be_read_is_no_error(tmp_path: Path) -> None:
    """Another user's private data: no file in it can be read."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    code = f"""
import os, sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from ioprof.doctor.places import find_refusal, try_nowait
os.setuid(65534)
print(find_refusal(Path({str(private)!r}), try_nowait))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "no file in it can be read\n" == ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("file_system", "free_bytes", "state", "word"),
    [
        ("ext4", 1 << 40, "ok", "space"),
        ("nfs4", 1 << 40, "limited", "network"),
        ("ext4", 1 << 20, "limited", "fill"),
    ],
)
def test_spool_folders(
    tmp_path: Path, file_system: str, free_bytes: int, state: str, word: str
) -> None:
    """A spool folder must be local and have space."""
    found = places.assess_spool(tmp_path, file_system, free_bytes)
    assert (state, True) == (found.state, word in found.means)


def test_the_spool_folder_is_assessed_for_real(here: Surroundings, tmp_path: Path) -> None:
    """By its own file system and its free space."""
    found = only(places.spool_folder(replace(here, environment={"TMPDIR": str(tmp_path)})))
    expected = places.assess_spool(
        tmp_path, places.file_system_of(tmp_path), shutil.disk_usage(tmp_path).free
    )
    assert (expected.state, expected.seen.partition(",")[0]) == (
        found.state,
        found.seen.partition(",")[0],
    )


def test_a_memory_limit_can_be_had_in_three_ways(tmp_path: Path) -> None:
    """A writable group of version 2 with the memory controller, the user's own systemd, or not at
    all."""
    group = tmp_path / "group"
    files = {
        "proc/self/mountinfo": f"30 1 0:26 / {group} rw - cgroup2 cgroup2 rw",
        "proc/self/cgroup": "0::/",
    }
    without = machine(tmp_path, files | {"group/cgroup.subtree_control": "cpu io"})
    assert "missing" == cgroups.memory_limit(without).state
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd" / "private").touch()
    assert (
        "systemd-run --user"
        in cgroups.memory_limit(
            replace(without, environment={"XDG_RUNTIME_DIR": str(tmp_path)})
        ).seen
    )
    (group / "cgroup.subtree_control").write_text("cpu io memory")
    assert "ok" == cgroups.memory_limit(without).state


def test_every_check_is_explained() -> None:
    """Checks have names of their own and docstrings; the list holds each once."""
    names: list[Callable[..., object]] = list(CHECKS)
    assert len(names) == len({check.__name__ for check in CHECKS})
    assert all(check.__doc__ for check in CHECKS)
