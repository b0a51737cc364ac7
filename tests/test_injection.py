"""The library and the hooks get into every process of the job, whatever wrappers do to its
environment; else the report says so."""

import ctypes.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import jobs
import pytest
from preload import LIBRARY, captured, needs_library, run_captured, run_python
from repository import PROGRAMS

from ioprof.analysis.capture import gaps
from ioprof.format.trace import Trace
from ioprof.instrument import preload
from ioprof.report.run import Run
from ioprof.report.texts.catalogue.answer import gap_texts

pytestmark = [pytest.mark.job, needs_library]

REPORT: Final = PROGRAMS / "report_start.py"


def record(spool: Path, *command: object, **changes: str) -> tuple[str, Trace]:
    """What a command prints that runs under the library and the hooks, and what was recorded."""
    spool.mkdir()
    variables = {**preload.environment(spool, os.environ, hooks=True), **changes}
    ended = subprocess.run(
        [str(word) for word in command], env=variables, capture_output=True, text=True, timeout=100
    )
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout, captured(spool)


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-uE", "-Wdefault -I", "-X utf8 -S", "-P"])
def test_interpreters_that_ignore_the_environment(option: str, tmp_path: Path) -> None:
    """Hooks start in a script, a module and a command, also where Python reads neither PYTHONPATH
    nor site."""
    options = option.split()
    for words in ([REPORT], ["-c", REPORT.read_text()]):
        printed, trace = record(tmp_path / f"spool{len(words)}", sys.executable, *options, *words)
        assert "hooked\n" == printed
        assert all(
            "python program" not in process.reads.noted
            for process in trace.run.processes
            if process.reads
        )


def test_an_isolated_interpreter_is_the_same(tmp_path: Path) -> None:
    """Modules that are the job's, names of __main__, flags and search path are those without
    recording."""
    program = (
        "import sys; print(sorted(globals()), sys.path, sys.flags, [name for name in sys.modules if"
        " 'sitecustom' in name])"
    )
    plain = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert plain == record(tmp_path / "spool", sys.executable, "-I", "-c", program)[0]


@pytest.mark.parametrize("word", ["-I", "-S"])
def test_an_option_of_the_script_is_none_of_python(word: str, tmp_path: Path) -> None:
    """`python script.py -I` is started once, by PYTHONPATH."""
    assert "hooked\n" == record(tmp_path / "spool", sys.executable, REPORT, word)[0]


@pytest.mark.parametrize(
    "wrapper",
    [
        "env -i",
        "nohup",
        "timeout 60",
        "nice",
        "taskset -c 0",
        "numactl --localalloc",
        "stdbuf -oL",
        "setsid --wait",
        "xargs -a /dev/null",
    ],
)
def test_wrappers(wrapper: str, tmp_path: Path) -> None:
    """Programs that start the job with their own idea of an environment."""
    words = wrapper.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} on this machine")
    assert "hooked\n" == record(tmp_path / "spool", *words, sys.executable, REPORT)[0]


@pytest.mark.parametrize("way", ["env", "bash", "unset", "python"])
def test_variables_that_the_job_overwrites(way: str, tmp_path: Path) -> None:
    """LD_PRELOAD of another allocator, and a PYTHONPATH of the job's own, keep their place behind
    ioprof's."""
    allocator = ctypes.util.find_library("jemalloc")
    if allocator is None:
        pytest.skip("no jemalloc on this machine")
    program = (
        "import os; print(os.environ['LD_PRELOAD'], os.environ['PYTHONPATH']);"
        f" exec(open({str(REPORT)!r}).read())"
    )
    inner = [sys.executable, "-c", program]
    set_both = [f"LD_PRELOAD={allocator}", f"PYTHONPATH={tmp_path}"]
    script = (
        f'{" ".join(set_both)} exec "$@"'
        if way == "bash"
        else 'unset LD_PRELOAD PYTHONPATH; exec "$@"'
    )
    python = (
        "import os, sys; os.execve(sys.argv[1], sys.argv[1:], dict(item.split('=') for item in"
        f" {set_both!r}))"
    )
    command = {
        "env": ["env", *set_both, *inner],
        "bash": ["bash", "-c", script, "-", *inner],
        "unset": ["sh", "-c", script, "-", *inner],
        "python": [sys.executable, "-c", python, *inner],
    }[way]
    printed, _ = record(tmp_path / "spool", *command)
    libraries, path, answer = printed.split()
    others = ([], []) if way == "unset" else ([allocator], [str(tmp_path)])
    assert "hooked" == answer
    assert [str(LIBRARY), *others[0]] == libraries.split(":")
    assert [str(preload.site()), *others[1]] == path.split(":")


@pytest.mark.parametrize("way", ["subprocess", "posix_spawn", "fork"])
def test_children_with_an_environment_of_their_own(way: str, tmp_path: Path) -> None:
    """Ways in which Python starts a program with an empty environment."""
    program = {
        "subprocess": "import subprocess, sys; subprocess.run(sys.argv[1:], env={}, check=True)",
        "posix_spawn": (
            "import os, sys; os.waitpid(os.posix_spawn(sys.argv[1], sys.argv[1:], {}), 0)"
        ),
        "fork": (
            "import os, sys\nif os.fork() == 0: os.execve(sys.argv[1], sys.argv[1:], {})\nos.wait()"
        ),
    }[way]
    printed, trace = record(
        tmp_path / "spool", sys.executable, "-c", program, sys.executable, REPORT
    )
    assert "hooked\n" == printed
    assert 2 == len(trace.run.processes)


def test_uv(tmp_path: Path) -> None:
    """`uv run` starts the interpreter that it was given."""
    uv = pytest.importorskip("uv", reason="uv is not installed")
    words = [
        uv.find_uv_bin(),
        "run",
        "--offline",
        "--no-project",
        "--quiet",
        "--python",
        sys.executable,
        "python",
        REPORT,
    ]
    assert "hooked\n" == record(tmp_path / "spool", *words, UV_CACHE_DIR=str(tmp_path / "cache"))[0]


def test_another_interpreter(tmp_path: Path) -> None:
    """The interpreter of the system, with the pure-Python recorder where the extension is none of
    its version."""
    python = next(
        (path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()),
        None,
    )
    if python is None:
        pytest.skip("no other interpreter on this machine")
    for options in ([], ["-I"]):
        assert "hooked\n" == record(tmp_path / f"spool{len(options)}", python, *options, REPORT)[0]


def test_hooks_that_are_off_stay_off(tmp_path: Path) -> None:
    """Reads are recorded in an isolated interpreter, and nothing is imported there."""
    assert "not hooked\n" == run_captured(tmp_path / "spool", sys.executable, "-I", REPORT)


def test_a_launcher_is_named_with_what_to_type(tmp_path: Path) -> None:
    """Programs that start a command elsewhere: the report names them."""
    launcher = tmp_path / "docker"
    launcher.write_text("#!/bin/sh\nexit 0\n")
    launcher.chmod(0o755)
    program = f"import subprocess; subprocess.run([{str(launcher)!r}, 'run', 'image'], check=True)"
    run_python(tmp_path / "spool", program)
    said = [
        sentence
        for sentence in gap_texts(gaps(captured(tmp_path / "spool")))
        if "launcher" in sentence
    ]
    does = "its command may run where it is not recorded; type:"
    assert [
        f"{launcher} was started, a launcher: {does} {launcher} ... ioprof record -- COMMAND"
    ] == said


@pytest.mark.system(every=4)
def test_processes_that_do_not_see_the_folder_of_the_recording(tmp_path: Path) -> None:
    """As in a container with a /tmp of its own: they are named, with what to type."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces cannot be made here: needs root")
    job = (
        f"mount -t tmpfs none {tmp_path}/tmp; {sys.executable} -c 'import time; time.sleep(2.5)';"
        " true"
    )
    ended = jobs.ioprof(
        "record",
        "--quiet",
        "--out",
        "run",
        "--",
        "unshare",
        "--mount",
        "sh",
        "-c",
        job,
        cwd=tmp_path,
    )
    assert 0 == ended.code, ended.err
    run = Run.load(tmp_path / "run")
    [said] = [sentence for sentence in run.summary.capture.not_seen if "TMPDIR=" in sentence]
    assert said.startswith("nothing was recorded of 1 process (python"), said
    counted = [
        process.reads.io_rchar for process in run.trace.run.processes if process.reads is not None
    ]
    assert all(-(1 << 40) < (number or 0) < 1 << 40 for number in counted), (
        "children of vfork are not subtracted twice"
    )


# -------------------------------------------------------------------------- workers that are killed


@pytest.mark.job(every=4)
def test_a_killed_worker_is_named_with_its_batch(tmp_path: Path) -> None:
    """The worker kills itself in its third batch, as the kernel does when memory is short."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import multiprocessing, os, signal, sys
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __len__(self):
                return 40

            def __getitem__(self, index):
                if index == 21:
                    os.kill(os.getpid(), signal.SIGKILL)
                return torch.zeros(4)

        if __name__ == "__main__":
            try:
                for batch in DataLoader(Data(), 4, num_workers=2):
                    pass
            finally:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise again
                for worker in multiprocessing.active_children():  # it may wait for a lock that the killed one held
                    worker.kill()
                os._exit(0)  # torch raises its error from a signal handler, wherever the process is
        """)  # noqa: E501
    )
    _, trace = record(tmp_path / "spool", sys.executable, program)
    killed = [process for process in trace.run.processes if process.killed_in_batch is not None]
    assert [(5, 1)] == [(process.killed_in_batch, process.worker) for process in killed]
    (failure,) = trace.run.failures
    assert (0, f"worker 1 (pid {killed[0].pid}) was killed while it made batch 5") == (
        failure.rank,
        failure.what,
    )


def test_a_ring_of_a_library_that_was_loaded_later_is_followed(tmp_path: Path) -> None:
    """liburing's own entry, in a process that closes its ring: nothing was missed."""
    library = ctypes.util.find_library("uring")
    if library is None:
        pytest.skip("no liburing on this machine")
    program = f"""
import ctypes
uring = ctypes.CDLL({library!r})
ring = ctypes.create_string_buffer(4096)
print(uring.io_uring_queue_init(8, ring, 0))
uring.io_uring_queue_exit(ring)
"""
    printed = run_python(tmp_path / "spool", program)
    if printed != "0\n":
        pytest.skip("this kernel refuses io_uring")
    trace = captured(tmp_path / "spool")
    assert "io_uring" not in trace.run.processes[0].reads.noted
