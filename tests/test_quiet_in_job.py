"""A job says the same and ends as it does without ioprof, whatever limits it has and whatever its
own modules are named."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from compiling import compiled
from mounted import mounted
from preload import needs_library
from repository import PROGRAMS

from ioprof.instrument import preload
from ioprof.instrument.preload_trial import why_not_loaded
from ioprof.recording.command import record_command

pytestmark = needs_library

READ: Final = "exec python -c 'print(open(\"file\").read())'"
FILL: Final = """exec python -c '
import gc, os
for _ in range(3): gc.collect()
try:
    while True: os.open("/dev/null", os.O_RDONLY)
except OSError as error: print(error.strerror)
'"""
"""A program that uses all its descriptors, and keeps them to its end."""

LIMITED: Final = {
    "none": "echo out; echo err >&2; exit 3",
    "killed": "kill -TERM $$",
    "4 MB of data": "ulimit -d 4000; exec cat file",
    "60 MB of data": f"ulimit -d 60000; {READ}",
    "16 MB of addresses": "ulimit -v 16000; exec cat file",
    "64 MB of addresses": f"ulimit -v 64000; {READ}",
    "no file size": f"ulimit -f 0; {READ}",
    "no file size, and its signal": (
        "ulimit -f 0; exec python -c 'import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)'"
    ),
    "small file size": "ulimit -f 8; cat file file; cat file > copy; cat copy",
    "no locked memory": f"ulimit -l 0; {READ}",
    "no more processes": f"ulimit -u 1; {READ}",
    "small stack": f"ulimit -s 160; cat file; {READ}",
    "3 descriptors": "ulimit -n 3; exec cat file",
    "4 descriptors": "ulimit -n 4; exec cat file",
    "8 descriptors": f"ulimit -n 8; {READ}",
    "all descriptors": f"ulimit -n 40; {FILL}",
    "no standard input": f"exec <&-; cat file; {READ}",
    "no standard streams": (
        'python -c \'open("new", "w").write("mine")\' <&- >&- 2>&-; echo $?; cat new'
    ),
    "a shell without streams": "(exec <&- >&- 2>&-; echo lost; cat file > new); echo $?; cat new",
    "all closed": (
        'exec python -c \'import os; os.closerange(3, 4096); print(open("file").read(),'
        ' os.open("file", 0))\''
    ),
    "empty environment": (
        'exec env -i "$(command -v python)" -c \'import os;'
        ' print(len(os.listdir("/proc/self/fd")))\''
    ),
    "another root": (
        """
mkdir root
for path in "$(command -v cat)" $(ldd "$(command -v cat)" | grep -o '/[^ ]*' | grep -v _capture.so)
do mkdir -p "root$(dirname "$path")" && cp -L "$path" "root$path"; done
cp file root; exec chroot root "$(command -v cat)" /file"""
    ),
    "no folder": (
        "mkdir gone; cd gone; rmdir ../gone; exec python -c 'import sys; print(len(sys.path));"
        " import sitecustomize'"
    ),
}
"""Shell commands by what their processes lack."""

MODULES: Final = {
    "exits": "raise SystemExit(99)",
    "prints": "print('mine')",
    "fails": "raise ImportError('mine')",
}
"""What a module of the user's does that has the name of one of Python's."""
NAMES: Final = ("json", "random", "typing", "threading", "hashlib", "struct", "dataclasses")
SHADOWED: Final = {
    f"{name} that {does} {where}, {used}": (name, text, where, used)
    for name in NAMES
    for does, text in MODULES.items()
    for where in ("in PYTHONPATH", "beside the script")
    for used in ("used", "not used")
}


def prepare(folder: Path) -> dict[str, str]:
    """A folder for each command, which by their names; `python` is one without packages, which
    import Python's modules at start."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "python"], check=True)
    commands = {**LIMITED, **dict.fromkeys(SHADOWED, "")}
    for number, name in enumerate(commands):
        own = folder / str(number)
        own.mkdir()
        (own / "file").write_text("some text\n")
        if name in SHADOWED:
            module, text, where, used = SHADOWED[name]
            (own / "path").mkdir()
            (own / ("path" if where == "in PYTHONPATH" else ".") / f"{module}.py").write_text(
                text + "\n"
            )
            (own / "script.py").write_text(
                "import sys; print(len(sys.path) >"
                f" 2)\n{f'import {module}' if used == 'used' else ''}\n"
            )
            commands[name] = 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}path" exec python script.py'
    return commands


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[object]]]:
    """How each command ended, its standard output and standard error: bare, and in a recorded
    job."""
    found = {}
    for how in ("bare", "recorded"):
        folder = tmp_path_factory.mktemp(how)
        (folder / "commands.json").write_text(json.dumps(prepare(folder)))
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "IOPROF_DEBUG")
        }
        environment["PATH"] = f"{folder / 'python' / 'bin'}:{environment['PATH']}"
        environment["TMPDIR"] = str(folder)
        job = [sys.executable, str(PROGRAMS / "each_in_turn.py"), "commands.json", "results.json"]
        if how == "recorded":
            job = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", "run", "--", *job]
        subprocess.run(job, cwd=folder, env=environment, check=True)
        found[how] = json.loads(
            (folder / "results.json").read_text().replace(str(folder), "FOLDER")
        )
    return found


@pytest.mark.job
@pytest.mark.parametrize("name", [*LIMITED, *SHADOWED])
def test_a_program_says_the_same_and_ends_as_without_ioprof(
    ended: dict[str, dict[str, list[object]]], name: str
) -> None:
    """Exit code, standard output and standard error."""
    assert ended["bare"][name] == ended["recorded"][name]


@pytest.mark.job
@pytest.mark.parametrize("program", ["cat", "script"])
def test_a_library_that_cannot_be_loaded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], program: str
) -> None:
    """The job starts without it, the dynamic linker reports nothing, and the record has the
    reason."""
    (tmp_path / "file").write_text("some text\n")
    (tmp_path / "script").write_text("#!/bin/sh\nexec cat file\n")
    (tmp_path / "script").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert why_not_loaded(program, os.environ) is None
    monkeypatch.setattr(preload, "library", lambda package=None: tmp_path / "file")
    run = record_command([program, "file"], tmp_path / "run", os.environ)
    assert ("some text\n", "") == capfd.readouterr()
    capture = run.trace.run.capture
    assert (False, False, 0) == (capture.library, capture.reads, run.trace.run.exit_code)
    assert "cannot be preloaded" in (capture.reads_reason or "")


@pytest.mark.parametrize("program", ["missing", "static", "text", "cut"])
def test_of_a_program_without_a_dynamic_linker_nothing_is_said(
    tmp_path: Path, program: str
) -> None:
    """The library is not loaded there; the job itself finds out what cannot be started."""
    beginning = Path("/bin/cat").read_bytes()[:100]
    (tmp_path / "static").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(200))
    (tmp_path / "text").write_text("echo\n")
    (tmp_path / "cut").write_bytes(beginning)
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    assert why_not_loaded(program, {"PATH": str(tmp_path)}) is None


def in_spool(spool: Path, *command: object) -> "subprocess.CompletedProcess[str]":
    """A program under the library and the hooks, recorded into that spool."""
    environment = preload.environment(spool, {**os.environ, "TMPDIR": str(spool)}, hooks=True)
    return subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.job
def test_the_smallest_stack_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library needs less than 6 KB of a thread's stack: for paths, pipes, starts of
    programs."""
    program = compiled("small_stack.c", tmp_path / "small_stack")
    (tmp_path / "spool").mkdir()
    (tmp_path / "file").write_text("some text\n")
    monkeypatch.chdir(tmp_path)  # a relative path is where the library needs most
    ended = in_spool(tmp_path / "spool", program, "file")
    assert (0, "", f"read 8, 1\nreceived {64 << 16}\nstarted 0\n") == (
        ended.returncode,
        ended.stderr,
        ended.stdout,
    )


USES: Final = """
import gc, shutil, sys, tempfile, threading
if sys.argv[1] == "removes": shutil.rmtree(tempfile.gettempdir())
for _ in range(3000): open(sys.argv[2] + "/file").read()
threads = [threading.Thread(target=open, args=(sys.argv[2] + "/file",)) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for _ in range(3): gc.collect()
print("done")
"""
"""A program that the library and the hooks record much of; it may remove its folder of temporary
files first."""


@pytest.mark.job
def test_a_spool_that_is_removed_meanwhile_does_not_disturb_the_job(tmp_path: Path) -> None:
    """A job may clean TMPDIR, where the spool is."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "file").write_text("some text\n")
    ended = in_spool(tmp_path / "spool", sys.executable, "-c", USES, "removes", tmp_path)
    assert (0, "", "done\n") == (ended.returncode, ended.stderr, ended.stdout)
    assert not (tmp_path / "spool").exists()


@pytest.mark.system
@pytest.mark.parametrize("size", ["4k", "64k", "300k", "600k"])
def test_a_full_spool_does_not_disturb_the_job(tmp_path: Path, size: str) -> None:
    """Room for nothing, for headers, for one capture file."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "file").write_text("some text\n")
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with mounted(tmp_path / "spool", "none", "-t", "tmpfs", "-o", f"size={size}") as spool:
        ended = in_spool(spool, sys.executable, "-c", USES, "stays", tmp_path)
    assert (0, "", "done\n") == (ended.returncode, ended.stderr, ended.stdout)
