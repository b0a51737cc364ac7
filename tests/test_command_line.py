"""What every command of `ioprof` has in common: version, help, groups, shell completion, and
loading no more than it needs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

import ioprof
from ioprof.cli import COMMANDS, PANELS, main
from ioprof.cli.console import reporter
from ioprof.reporter import ignore_progress, note

PROGRAM = [sys.executable, "-m", "ioprof"]


def shown(capsys, *arguments):
    """What a command prints that ends with 0."""
    assert 0 == main(list(arguments))
    return capsys.readouterr().out


def complete(words):
    """What bash would offer after these words, the last of which is not finished."""
    environment = {
        "_IOPROF_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    program = "import sys; from ioprof.cli import program; sys.exit(program())"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout.split()


def test_the_version(capsys):
    """One line: name and version."""
    assert f"ioprof {ioprof.__version__}\n" == shown(capsys, "--version")


@pytest.mark.job
@pytest.mark.parametrize(("how", "is_frozen"), [("program", True), ("main", False)])
def test_a_program_ends_without_a_search_for_cycles(how, is_frozen):
    """What it registered to be done at its end is done; a process that calls a command and goes on
    is left as it is."""
    program = (
        f"import atexit, gc, sys; from ioprof.cli import {how}; sys.argv[1:] = ['--version']\n"
        f"atexit.register(print, 'done'); {how}(); print(gc.get_freeze_count() > 10_000)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT
    )
    assert [
        f"ioprof {ioprof.__version__}",
        str(is_frozen),
        "done",
    ] == ended.stdout.splitlines(), ended.stderr


def test_the_help_groups_all_commands(capsys):
    """Each panel with its commands, in the order of the table."""
    text = shown(capsys, "--help")
    found = re.findall(
        rf"^╭─ ({'|'.join(PANELS)}) |^│ ({'|'.join(COMMANDS)}) ", text, flags=re.MULTILINE
    )
    expected = [word for panel, commands in PANELS.items() for word in (panel, *commands)]
    assert expected == [panel or command for panel, command in found]


@pytest.mark.parametrize(
    "command", ["", *COMMANDS, "convert imagenet", "convert merge", "generate imagenet"]
)
def test_the_short_option_for_help(capsys, command):
    """`-h` is `--help`, of every command and every verb."""
    assert shown(capsys, *command.split(), "-h") == shown(capsys, *command.split(), "--help")
    assert "Usage: ioprof" in shown(capsys, *command.split(), "-h")


@pytest.mark.job
def test_the_help_of_a_recorded_command_is_its_own(tmp_path):
    """What follows the command's name is the command's, `-h` too."""
    line = [*PROGRAM, "record", "--quiet", "--out", str(tmp_path / "run"), sys.executable, "-h"]
    ended = subprocess.run(line, capture_output=True, text=True)
    assert (0, True) == (ended.returncode, ended.stdout.startswith("usage: ")), ended.stderr


def test_progress_says_what_the_work_is_doing(capsys):
    """A note comes with the next line; a callback that cannot show it is called without."""
    with reporter.progress("job", 20) as advance:
        note(advance, "starting workers")
        note(advance, "waiting for batches 60% of the time")
        for _ in range(4):
            advance(5)
    note(ignore_progress, "nowhere")
    expected = [
        f"job: {done} of 20, waiting for batches 60% of the time" for done in (5, 10, 15, 20)
    ]
    assert expected == capsys.readouterr().err.splitlines()


@pytest.mark.job(every=4)
def test_completion_knows_commands_verbs_and_options():
    """Of all commands, although one that is asked for is loaded alone."""
    assert ["run", "record", "report"] == complete("ioprof r")
    assert ["--stage-to", "--stage-mode"] == complete("ioprof run --stage")
    assert ["imagenet"] == complete("ioprof convert i")


@pytest.mark.job
def test_completion_is_shown_and_installed(tmp_path):
    """For the shell that it is asked from: a script, and the same in the user's own files."""
    environment = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    for option in ("--show-completion", "--install-completion"):
        # the shell stays, for its name to be found
        line = f"{sys.executable} -m ioprof {option}; exit $?"
        ended = subprocess.run(
            ["bash", "-c", line], env=environment, cwd=ROOT, capture_output=True, text=True
        )
        assert 0 == ended.returncode, ended.stderr
        if option == "--show-completion":
            assert "_IOPROF_COMPLETE=complete_bash" in ended.stdout
    written = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and "_IOPROF_COMPLETE" in path.read_text()
    ]
    assert [] != written


LOADED = """
import contextlib, io, os, sys
import numpy, polars, plotly, rich, typer  # of all commands, imported once
from ioprof.cli import COMMANDS, main
for command in COMMANDS:
    if os.fork() == 0:
        with contextlib.redirect_stdout(io.StringIO()):
            main([command, "--help"])
        modules = {name.rpartition(".")[2].rstrip("_") for name in sys.modules if name.startswith("ioprof.cli.")}
        print(command, *[name for name in COMMANDS if name in modules], flush=True)
        os._exit(0)
    os.wait()
"""  # noqa: E501


@pytest.mark.job(every=4)
def test_a_command_loads_no_other():
    """Naming one command imports its module, and none of the others."""
    ended = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, cwd=ROOT, check=True
    )
    loaded = {command: set(names) for command, *names in map(str.split, ended.stdout.splitlines())}
    assert {command: {command} for command in COMMANDS} == loaded, ended.stderr
