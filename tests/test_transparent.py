"""The command finds what it would find without ioprof, and its caller finds what it would find of
the command: each row both ways.

A row is a few lines of bash. `$RUN` is first nothing, and `ioprof record ... --` then; output,
messages and status are the same.
"""

import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from preload import needs_library
from repository import PROGRAMS

pytestmark = [pytest.mark.job, needs_library]
IOPROF: Final = Path(sys.executable).with_name("ioprof")
SIGNALS: Final = f"{sys.executable} {PROGRAMS / 'show_signals.py'}"
DESCRIPTORS: Final = (  # which a shell would not tell: it has pipes of its own meanwhile
    'ls -l /proc/self/fd | cut -d" " -f9- | grep -v /proc/ | sed "s/\\[.*//"'
)

ROWS: Final = {
    # What the command returns.
    "success": "$RUN true",
    "failure": "$RUN false",
    "exit code 42": "$RUN bash -c 'exit 42'",
    "exit code 255": "$RUN bash -c 'exit 255'",
    "no such program": "$RUN ./no-such-program 2>/dev/null",
    "a file that may not be executed": "touch plain; chmod 644 plain; $RUN ./plain 2>/dev/null",
    "a folder as the program": "mkdir folder; $RUN ./folder 2>/dev/null",
    "a script without an interpreter": "printf 'echo $0 \"$@\"; exit 5' >script; chmod +x script; $RUN ./script a 'b c'",
    "a script with an unknown interpreter": "printf '#!/no/such\\n' >script; chmod +x script; $RUN ./script 2>/dev/null; echo $(($? > 125))",
    "killed by SIGKILL": "$RUN bash -c 'kill -KILL $$' 2>/dev/null",
    "killed by SIGTERM": "$RUN bash -c 'kill -TERM $$' 2>/dev/null",
    "killed by SIGSEGV": "$RUN bash -c 'kill -SEGV $$' 2>/dev/null",
    "killed by SIGABRT": "$RUN bash -c 'kill -ABRT $$' 2>/dev/null",
    "killed by SIGUSR1": "$RUN bash -c 'kill -USR1 $$' 2>/dev/null",
    "killed by a real-time signal": "$RUN bash -c 'kill -RTMIN+3 $$' 2>/dev/null",
    "killed by SIGPIPE": "$RUN bash -c 'kill -PIPE $$' 2>/dev/null",
    "killed by SIGKILL, as its caller sees it": "exec $RUN bash -c 'kill -KILL $$'",
    "killed by SIGTERM, as its caller sees it": "exec $RUN bash -c 'kill -TERM $$'",
    # Arguments.
    "words with spaces, quotes and newlines": "$RUN printf '<%s>' 'a b' \"c'd\" $'e\\nf' '' -- --out -n",
    "arguments that are no UTF-8": "$RUN printf '%s\\n' $'\\xff\\xfe' $'a\\xe9b'",
    "a program whose name is no UTF-8": "cp /bin/echo $'ec\\xffho'; $RUN ./$'ec\\xffho' hello",
    "a script whose name is no UTF-8": "echo 'import sys; print(ascii(sys.argv))' >$'s\\xff.py'; $RUN python3 $'s\\xff.py' $'\\xfe'",
    "many arguments": "$RUN printf '%s' $(seq 20000) | md5sum",
    "a long argument": "$RUN printf '%s' $(head -c 120000 /dev/zero | tr '\\0' x) | md5sum",
    # Input and output.
    "input": "echo hello | $RUN cat",
    "much input": "seq 200000 | $RUN md5sum",
    "output and messages": "$RUN bash -c 'echo out; echo err >&2'",
    "a reader that goes": "$RUN yes | head -n 1; echo ${PIPESTATUS[0]}",
    "no standard input": "$RUN bash -c 'cat 2>/dev/null; echo $?' <&-",
    "no standard output": "$RUN bash -c 'echo lost 2>/dev/null; exit 3' >&-",
    "no standard error": "$RUN bash -c 'echo kept; echo lost >&2; exit 3' 2>&-",
    "none of the three": "$RUN bash -c 'exit 9' <&- >&- 2>&-",
    "output to a full disk": "$RUN bash -c 'echo lost 2>/dev/null || exit 4' >/dev/full",
    "messages to a full disk": "$RUN bash -c 'echo lost >&2; exit 42' 2>/dev/full",
    "output is appended": "echo first >log; $RUN echo second >>log; cat log",
    # Descriptors.
    "process substitution": "$RUN cat <(echo hello)",
    "two process substitutions": "$RUN paste <(seq 3) <(seq 4 6)",
    "a numbered descriptor": "echo data >file; exec 9<file; $RUN bash -c 'cat <&9'",
    "a descriptor above 200": "echo data >file; exec 233<file; $RUN bash -c 'cat <&233'",
    "a descriptor to write to": "exec 7>file; $RUN bash -c 'echo written >&7'; cat file",
    "a pipe's writer": "exec 8> >(wc -c); $RUN bash -c 'echo 12345 >&8'; exec 8>&-; wait $!",
    "all descriptors": f"exec 5</dev/null 17>/dev/null; $RUN {DESCRIPTORS} | sort",
    "a lock by descriptor": "exec 6>lock; $RUN flock -n 6 -c true; flock 6; $RUN flock -n lock true; echo $?",
    # Signals that are ignored or blocked.
    **{
        f"SIG{name} ignored": f"trap '' {name}; $RUN grep -E 'Sig(Ign|Blk)' /proc/self/status"
        for name in (
            "HUP",
            "INT",
            "QUIT",
            "TERM",
            "USR1",
            "USR2",
            "ALRM",
            "PIPE",
            "XFSZ",
            "CHLD",
            "WINCH",
            "XCPU",
            "RTMIN",
        )
    },
    "many signals ignored": "trap '' PIPE CHLD INT HUP; $RUN grep -E 'Sig(Ign|Blk)' /proc/self/status",
    "no signal ignored": "$RUN grep -E 'Sig(Ign|Blk)' /proc/self/status",
    "SIGPIPE ignored, as the command sees it": "trap '' PIPE; $RUN yes 2>/dev/null | head -n 1; echo ${PIPESTATUS[0]}",
    "SIGCHLD ignored, and the exit code": "trap '' CHLD; $RUN bash -c 'exit 11'",
    "nohup": "nohup $RUN grep SigIgn /proc/self/status 2>/dev/null </dev/null",
    # Limits and other properties of a process.
    "all limits": "ulimit -n 300; ulimit -c 0; ulimit -s 4096; ulimit -u 5000; $RUN cat /proc/self/limits",
    "a limit of file sizes": "ulimit -f 1; $RUN head -c 5000 /dev/zero >file 2>/dev/null; echo $?; wc -c <file",
    "a limit of data": "ulimit -d 60000; $RUN bash -c 'echo hello; exit 6'",
    "a limit of data, smaller": "ulimit -d 40000; $RUN bash -c 'echo hello; exit 6'",
    "a limit of data, larger": "ulimit -d 120000; $RUN bash -c 'echo hello; exit 6' 2>/dev/null",
    "a limit of the address space": "ulimit -v 4000000; $RUN bash -c 'ulimit -v; exit 6'",
    "few descriptors": "ulimit -n 24; $RUN bash -c 'ulimit -n; exec 3</dev/null 4</dev/null; exit 6'",
    "the umask": "umask 027; $RUN bash -c 'umask; >new'; stat -c %a new",
    "nice": "nice -n 7 $RUN nice",
    "affinity": "taskset -c 0 $RUN taskset -p $BASHPID | sed 's/.*://'; taskset -c 0 $RUN nproc",
    "the working directory": "mkdir -p a/b; cd a/b; $RUN pwd",
    "a working directory that is a link": "mkdir real; ln -s real link; cd link; $RUN bash -c pwd",
    "a working directory that is gone": "mkdir gone; cd gone; rmdir ../gone; $RUN bash -c 'echo here; exit 3' 2>/dev/null",
    "a working directory that is no UTF-8": "mkdir $'d\\xff'; cd $'d\\xff'; $RUN pwd",
    "the process group and session": '$RUN bash -c \'ps -o pgid=,sid= -p $$\' | { read g s; p=$(ps -o pgid=,sid= -p $$); echo $(("$g $s" == "$p")) 2>/dev/null || [ "$g $s" = "$(echo $p)" ] && echo same; }',
    # The environment.
    "the environment": "$RUN env -0 | tr '\\0' '\\n' | grep -vE '^(LD_PRELOAD|PYTHONPATH|IOPROF_|KINETO_LOG_LEVEL|RUN=|_=)' | sort",
    "odd names of variables": "env 'a.b=1' 'BASH_FUNC_f%%=() { echo of a function; }' '=x' $RUN bash -c 'f; env' | grep -aE 'a.b|of a'",
    "values that are no UTF-8": "V=$'\\xff\\xfe' $RUN bash -c 'printf %s \"$V\"' | od -c",
    "almost no environment": 'env -i PATH="$PATH" TMPDIR="$TMPDIR" $RUN bash -c \'echo ${HOME-no home}\'',
    "the locale C": "env -u LC_ALL -u LC_CTYPE LANG=C $RUN env | grep -c LC_CTYPE",
    "a sitecustomize of the user's": "mkdir p; echo 'print(\"customized\")' >p/sitecustomize.py; PYTHONPATH=p $RUN python3 -c 'print(1)'",
    "another Python's numpy": "mkdir -p p/numpy; echo 'raise ImportError(1)' >p/numpy/__init__.py; PYTHONPATH=$PWD/p $RUN bash -c 'exit 5'",
    "another Python's polars": "mkdir -p p/polars; echo 'raise OSError(1)' >p/polars/__init__.py; PYTHONPATH=$PWD/p $RUN bash -c 'exit 5'",
    "a json.py that exits": "mkdir p; echo 'raise SystemExit(99)' >p/json.py; PYTHONPATH=$PWD/p $RUN bash -c 'exit 5'",
    "a typing.py that exits": "mkdir p; echo 'raise SystemExit(99)' >p/typing.py; PYTHONPATH=$PWD/p $RUN bash -c 'exit 5'",
    "a json.py in the working directory": "echo 'raise SystemExit(99)' >json.py; $RUN bash -c 'exit 5'",
    "another Python's home": "PYTHONHOME=/no/such $RUN bash -c 'echo $PYTHONHOME; exit 5'",
    "warnings are errors": "PYTHONWARNINGS=error $RUN python3 -c 'import sys; print(sys.warnoptions); exit(5)'",
    "an interactive Python": "echo 'print(6 * 7)' | PYTHONINSPECT=1 $RUN python3 -c 'print(1)' 2>/dev/null",
    "a Python without a site": "$RUN python3 -I -S -c 'import sys; print(sys.flags.isolated, sys.flags.no_site); exit(5)'",
    # What fails of ioprof itself once the command runs.
    "the run folder becomes a file": '$RUN bash -c \'rm -rf "$OUT"; >"$OUT"; exit 42\'',
    "the run folder goes": "$RUN bash -c 'rm -rf \"$OUT\"; exit 42'",
    "TMPDIR is cleaned": "$RUN bash -c 'rm -rf \"$TMPDIR\"/*; exit 42'",
    "TMPDIR goes": "$RUN bash -c 'rm -rf \"$TMPDIR\"; exit 42'",
    "no file may grow": "ulimit -f 0; $RUN bash -c 'exit 42'",
    "the making of the run is killed": "$RUN bash -c '(sleep 0.3; pkill -KILL -P $PPID) & exit 42' 2>/dev/null",
    "the making of the run is told to end": "$RUN bash -c '(sleep 0.3; pkill -TERM -P $PPID) & exit 42' 2>/dev/null",
}
SAID: Final = ("run folder: ", "ioprof: ")


def outcome(script: str, folder: Path, run: str) -> tuple[int, bytes, list[bytes]]:
    """Status, output and messages of a row, without what ioprof says; `run` is `$RUN`."""
    for name in ("work", "tmp"):
        (folder / name).mkdir(parents=True)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))
    }
    environment = {**kept, "RUN": run, "TMPDIR": f"{folder}/tmp", "OUT": f"{folder}/out"}
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    messages = [
        re.sub(rb"(line \d+: ) *\d+ ", rb"\1", line)
        for line in ended.stderr.splitlines()
        if not line.startswith(tuple(word.encode() for word in SAID))
    ]
    own = str(folder).encode()
    return (
        ended.returncode,
        ended.stdout.replace(own, b"FOLDER"),
        [line.replace(own, b"FOLDER") for line in messages],
    )


@pytest.mark.job(every=4)
@pytest.mark.parametrize("script", ROWS.values(), ids=ROWS.keys())
def test_a_row_is_the_same_recorded(script: str, tmp_path: Path) -> None:
    """Status, standard output and standard error, byte by byte."""
    bare = outcome(script, tmp_path / "0", "")
    recorded = outcome(
        script, tmp_path / "1", f"{IOPROF} record --quiet --force --out {tmp_path}/1/out --"
    )
    assert bare == recorded


# ------------------------------------------------------------------------------------------ signals


def received(
    before: str, run: str, folder: Path, send: Callable[[subprocess.Popen[bytes]], None]
) -> tuple[int, bytes]:
    """Status and output of a program that tells which signals it received; `before` stands in front
    of the command."""
    line = f"exec {before} {run} {SIGNALS} 20"
    how = {
        "env": {**os.environ, "TMPDIR": str(folder)},
        "start_new_session": True,
        "stdout": subprocess.PIPE,
    }
    with subprocess.Popen(["bash", "-c", line], stderr=subprocess.DEVNULL, **how) as process:
        assert process.stdout is not None
        assert b"ready\n" == process.stdout.readline()
        send(process)
        return process.wait(60), process.stdout.read()


def to_group(*numbers: int) -> Callable[[subprocess.Popen[bytes]], None]:
    """As Slurm, systemd, `timeout` and a terminal do."""
    return lambda process: [os.killpg(process.pid, number) for number in numbers][:0]


def to_one(*numbers: int) -> Callable[[subprocess.Popen[bytes]], None]:
    """As `kill PID` does."""
    return lambda process: [process.send_signal(number) for number in numbers][:0]


def to_each(number: int) -> Callable[[subprocess.Popen[bytes]], None]:
    """To the process and all below it, one after the other, as a scheduler does that lists them."""

    def send(process: subprocess.Popen[bytes]) -> None:
        found = [process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        for pid in found:
            os.kill(pid, number)

    return send


def nothing(_process: subprocess.Popen[bytes]) -> None:
    """Something else sends it."""


SENT: Final = {
    **{
        f"SIG{name} to the group": ("", to_group(getattr(signal, f"SIG{name}")))
        for name in ("TERM", "HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "CONT", "WINCH")
    },
    **{
        f"SIG{name} to the process": ("", to_one(getattr(signal, f"SIG{name}")))
        for name in (
            "TERM",
            "HUP",
            "INT",
            "QUIT",
            "USR1",
            "USR2",
            "ALRM",
            "VTALRM",
            "PROF",
            "XCPU",
            "IO",
            "PWR",
            "WINCH",
        )
    },
    "a real-time signal to the group": ("", to_group(signal.SIGRTMIN + 5)),
    "a real-time signal to the process": ("", to_one(signal.SIGRTMIN + 5)),
    "two signals to the group": ("", to_group(signal.SIGUSR1, signal.SIGTERM)),
    "two signals to the process": ("", to_one(signal.SIGUSR1, signal.SIGTERM)),
    "SIGTERM to each process": ("", to_each(signal.SIGTERM)),
    "timeout": ("timeout 3", nothing),
    "timeout in the foreground": ("timeout --foreground 3", nothing),
    "timeout with another signal": ("timeout -s USR1 3", nothing),
}


@pytest.mark.job(every=4)
@pytest.mark.parametrize(("before", "send"), SENT.values(), ids=SENT.keys())
def test_signals_are_received_as_without_ioprof(
    before: str, send: Callable[[subprocess.Popen[bytes]], None], tmp_path: Path
) -> None:
    """Each once, whoever sends it to whom; and the status is that of the command."""
    runs = "", f"{IOPROF} record --quiet --force --out {tmp_path}/out --"
    bare, recorded = (received(before, run, tmp_path, send) for run in runs)
    if before:  # `timeout` sends its signal to the process, and then to the group: the process may see one or two
        bare, recorded = (
            (status, b" ".join(sorted({*seen.split()}))) for status, seen in (bare, recorded)
        )
    assert bare == recorded


EARLY: Final = """
import os, signal, subprocess, sys
from ioprof.recording.signal_forwarding import forwarded_signals

with forwarded_signals() as forwarder:
    forwarder.start()
    for number in map(int, sys.argv[1].split()):
        os.killpg(0, number)
    forwarder.process_starts()
    process = subprocess.Popen(["sleep", "60"])
    forwarder.forward_to(process)
    sys.stdout.write(str(process.wait()))
"""
"""Starts a process in a group that has just received signals."""


@pytest.mark.job
def test_what_a_group_received_before_the_process_was_there_reaches_it() -> None:
    """As it had reached the command itself."""
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 3):
        words = [sys.executable, "-c", EARLY, str(int(number))]
        ended = subprocess.run(words, capture_output=True, start_new_session=True, timeout=60)
        assert str(-number).encode() == ended.stdout, ended.stderr


def in_terminal(command: str, typed: dict[str, bytes], folder: Path) -> tuple[int, bytes]:
    """Status and output of a command of a shell with job control, in a terminal; what is typed once
    a text is shown."""
    environment = {**os.environ, "TMPDIR": str(folder), "PS1": "", "TERM": "dumb"}
    pid, terminal = pty.fork()
    if pid == 0:
        # set -m: the command is a group of its own
        os.execve("/bin/bash", ["bash", "-c", f"set -m; {command}"], environment)
    shown = b""
    left = dict(typed)
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # its last process has ended
            break
        if not piece:
            break
        shown += piece
        for text in [text for text in left if text.encode() in shown]:
            time.sleep(0.3)
            os.write(terminal, left.pop(text))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    lines = [
        line
        for line in shown.splitlines()
        if not line.startswith(tuple(word.encode() for word in SAID))
    ]
    return status, b"\n".join(lines)


IN_TERMINAL: Final = {
    "Ctrl-C": (f"$RUN {SIGNALS} 20", {"ready": b"\x03"}),
    "Ctrl-backslash": (f"$RUN {SIGNALS} 20", {"ready": b"\x1c"}),
    "is a terminal": (
        "$RUN python3 -c 'import os; print([os.isatty(each) for each in range(3)], os.get_terminal_size())'",
        {},
    ),
    "reads from the terminal": (
        "$RUN bash -c 'echo name?; read name; echo hello $name'",
        {"name?": b"you\n"},
    ),
    "the foreground group": (
        "$RUN python3 -c 'import os; print(os.tcgetpgrp(0) == os.getpgrp())'",
        {},
    ),
    "stopped and continued": (
        "$RUN bash -c 'echo on; sleep 1; echo end; exit 4'; jobs; fg >/dev/null",
        {"on": b"\x1a"},
    ),
}


@pytest.mark.job(every=4)
@pytest.mark.parametrize(("command", "typed"), IN_TERMINAL.values(), ids=IN_TERMINAL.keys())
def test_a_terminal_is_the_commands(command: str, typed: dict[str, bytes], tmp_path: Path) -> None:
    """Keys reach it once, it reads and writes there, and it can be stopped and continued."""
    recorded = f"{IOPROF} record --quiet --force --out {tmp_path}/out --"
    both = [in_terminal(command.replace("$RUN", run), typed, tmp_path) for run in ("", recorded)]
    shown = [
        (status, text.replace(recorded.encode(), b"").replace(b"  ", b" ")) for status, text in both
    ]
    assert shown[0] == shown[1]


# ---------------------------------------------------------------- what ioprof says, and its command


def record(folder: Path, *command: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`ioprof record` of a command into `folder`/out, with a TMPDIR of its own."""
    (folder / "tmp").mkdir(exist_ok=True)
    line = [IOPROF, "record", "--quiet", "--out", folder / "out", "--", *command]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), **variables}
    return subprocess.run(
        [str(word) for word in line], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.job(every=4)
def test_a_run_folder_that_cannot_be_made_loses_nothing(tmp_path: Path) -> None:
    """One line says where the recording is and what to type; that makes the run folder, with the
    command's exit code."""
    out = tmp_path / "out"
    ended = record(
        tmp_path, "bash", "-c", f"cat /etc/passwd >/dev/null; rm -rf {out}; >{out}; exit 42"
    )
    assert 42 == ended.returncode
    (line,) = ended.stderr.splitlines()
    (spool,) = (tmp_path / "tmp").glob("ioprof-*")
    typed = f"ioprof gather {spool} --out RUN"
    assert line.startswith(f"ioprof: {out}/")
    assert line.endswith(f"(the capture files stay in {spool}; make the run folder with: {typed})")
    gathered = subprocess.run(
        [IOPROF, *typed.split()[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (0, 42) == (
        gathered.returncode,
        json.loads((tmp_path / "RUN" / "run.json").read_text())["exit_code"],
    ), gathered.stderr
    assert not spool.exists()


def test_a_recording_that_the_command_removed_is_named(tmp_path: Path) -> None:
    """One line; nothing is left that looks like a run."""
    ended = record(tmp_path, "bash", "-c", f"rm -rf {tmp_path}/tmp/*; exit 42")
    (line,) = ended.stderr.splitlines()
    assert (42, True) == (ended.returncode, "was removed while the job ran" in line)
    assert [] == os.listdir(tmp_path / "out")


def test_what_cannot_be_recorded_is_run_once(tmp_path: Path) -> None:
    """As where no file may have a byte; one line says that it is not recorded."""
    line = [
        str(IOPROF),
        "record",
        "--quiet",
        "--out",
        str(tmp_path / "out"),
        "--",
        "bash",
        "-c",
        "echo once; exit 7",
    ]
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert (7, "once\n") == (ended.returncode, ended.stdout)
    assert [True] == [
        each.endswith(": the command runs without being recorded")
        for each in ended.stderr.splitlines()
    ]


def test_a_job_of_a_scheduler_does_not_fail_for_its_run_folder(tmp_path: Path) -> None:
    """If another recording has it, the job is recorded into the next one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recording.json").write_text(json.dumps({"spool": "/nowhere"}))
    ended = record(tmp_path, "bash", "-c", "exit 7", SLURM_JOB_ID="9")
    assert (7, True) == (ended.returncode, (tmp_path / "out-2" / "run.json").is_file()), (
        ended.stderr
    )


def test_the_command_finds_the_python_of_its_packages(tmp_path: Path) -> None:
    """Beside it, isolated; else, as for `pip install --user`, the one on the PATH of the version
    whose packages have ioprof."""
    for name in ("bin", "path"):
        (tmp_path / name).mkdir()
    shutil.copy(IOPROF, tmp_path / "bin" / "ioprof")
    (tmp_path / "lib/python3.77/site-packages/ioprof").mkdir(parents=True)
    (tmp_path / "lib/python3.77/site-packages/ioprof/__init__.py").touch()
    shown = f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n"
    for place in ("path/python3.77", "bin/python3"):
        (tmp_path / place).write_text(shown)
        (tmp_path / place).chmod(0o755)
        is_beside = place.startswith("bin")
        environment = {**os.environ, "PATH": f"{tmp_path}/path:{os.environ['PATH']}"}
        how = {"env": environment, "capture_output": True, "text": True, "check": True}
        ended = subprocess.run(
            [tmp_path / "bin" / "ioprof", "report", "a b"], restore_signals=True, **how
        )
        options = [
            "-X",
            "ioprof_ignored=+",
            *(["-E"] if is_beside else []),
            "-P",
            "-m",
            "ioprof",
            "report",
            "a b",
        ]
        assert f"{options}\n" == ended.stdout
        # Python ignores both
        ended = subprocess.run([tmp_path / "bin" / "ioprof"], restore_signals=False, **how)
        assert "ioprof_ignored=13+25" in ended.stdout
