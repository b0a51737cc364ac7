"""The command line: one file per command. The only part of ioprof that prints and exits."""

import gc
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import ioprof
from ioprof.cli.console import error_line, guarded, output
from ioprof.configuration import FILE, Options, read_defaults
from ioprof.errors import CommandError
from ioprof.extension import require_extension
from ioprof.process import end_by_signal
from ioprof.report.texts.units import visible

PANELS: Final = {
    "Measure": ("run", "presets", "study", "record", "gather", "demo"),
    "Data": ("generate", "convert", "verify", "inspect", "stage"),
    "Storage": ("probe", "doctor"),
    "Look": (
        "report",
        "open",
        "compare",
        "history",
        "whatif",
        "prove",
        "extrapolate",
        "simulate",
        "size",
        "watch",
        "snapshot",
        "export",
        "import",
        "mcp",
    ),
}
"""The commands by their panel of `ioprof --help`, in its order."""
COMMANDS: Final = {command: panel for panel, commands in PANELS.items() for command in commands}
"""Each is a module of this package (`import` is `import_`) or of a folder in it (`FOLDERS`);
several verbs under one name are a `typer.Typer` called `app`."""
FOLDERS: Final = {
    **dict.fromkeys(("extrapolate", "simulate", "size"), "simulator."),
    "mcp": "assistants.",
    "history": "store.",
}
"""Of commands that are not at the top of this package."""
_STDERR: Final = 2


def program() -> int:
    """`main` as all that a process does: what the command `ioprof` calls.

    When a process ends, Python looks several times for reference cycles among all objects of all
    libraries, which takes 0.2 s of CPU time. Frozen objects are left out; all else happens as
    usual.
    """
    _open_standard_streams()
    try:
        code = main()
        return code if code >= 0 else end_by_signal(-code)
    finally:
        _drop_unread_messages()
        gc.freeze()


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad usage or bad input, 130
    interrupted.

    That of `record` is the recorded command's, and negative where a signal ended that.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        require_extension()
    except CommandError as error:
        if given[:1] == ["record"] and "--" in given:
            # `__main__` then runs the command without a recording
            raise ImportError(str(error)) from None
        error_line(str(error))
        return error.exit_code
    commands = (
        given[:1] if given and given[0] in COMMANDS else () if given == ["--version"] else COMMANDS
    )
    app = _app(commands)
    try:
        return guarded(lambda: _run(app, given))
    except typer.Abort:
        error_line("interrupted")
        return 130
    except Exception as error:
        return _usage_error(error)


def _run(app: typer.Typer, given: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    defaults = read_defaults(Path(FILE), COMMANDS, _options_of(command))
    result = app(given, prog_name="ioprof", standalone_mode=False, default_map=defaults)
    return result if isinstance(result, int) else 0


def _options_of(group: Any) -> Options:
    """Of each command: its long options without dashes, and its verbs."""
    return {
        name: {
            **(_options_of(command) if hasattr(command, "commands") else {}),
            **{
                option.removeprefix("--"): parameter.name
                for parameter in command.params
                for option in parameter.opts
                if option.startswith("--")
            },
        }
        for name, command in group.commands.items()
    }


def _drop_unread_messages() -> None:
    """Messages that nobody reads any more are no reason for Python to end with exit code 120."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end


def _open_standard_streams() -> None:
    """Open those that the caller closed, so that no file of ioprof gets their numbers; programs
    that it starts find them closed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _STDERR:
        pass
    os.close(descriptor)


class _CommandGroup(TyperGroup):
    """Lists the commands in the order of `PANELS`; typer would list those with verbs of their own
    last.
    """

    def list_commands(self, ctx: object) -> list[str]:
        return [command for command in COMMANDS if command in self.commands]


def _app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """An app of those commands alone: importing the modules of all takes a second."""
    app = typer.Typer(
        cls=_CommandGroup,
        help=(
            "What a training job waits for: compute, gradient exchange, copies, preprocessing or"
            " storage."
        ),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    with _unchanged_environment():
        modules = {
            name: importlib.import_module(
                f"ioprof.cli.{FOLDERS.get(name, '')}{name}{'_' * iskeyword(name)}"
            )
            for name in commands
        }
    for name, module in modules.items():
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, rich_help_panel=COMMANDS[name])
        else:
            settings = getattr(module, "CONTEXT", None)
            app.command(name, context_settings=settings, rich_help_panel=COMMANDS[name])(
                getattr(module, name)
            )
    return app


@contextmanager
def _unchanged_environment() -> Iterator[None]:
    """Undo what libraries change in the environment while they are imported (polars does), since a
    job would inherit it.

    numpy's OpenBLAS starts a thread for each core as it is imported, and ends the process where a
    limit forbids that.
    """
    before = dict(os.environ)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name in [name for name, value in before.items() if os.environ.get(name) != value]:
        os.environ[name] = before[name]


def _print_version(asked: bool) -> None:
    if asked:
        output.print(f"ioprof {ioprof.__version__}", markup=False)
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """The options before the command."""


def _usage_error(error: Exception) -> int:
    # typer keeps the classes of its usage errors private; they carry a one-line message and the
    # context of the command.
    if not hasattr(error, "format_message"):
        raise error
    context = getattr(error, "ctx", None)
    if message := _of_value(error) or error.format_message().rstrip("."):
        command = context.command_path if context else "ioprof"
        if getattr(error, "option_name", None) == "-o" and _has_out(context):
            message += " (the folder to make is given by --out)"
        error_line(f"{message}; see: {command} --help")
    return 2


_KINDS: Final = {"int": "a whole number", "float": "a number"}


def _of_value(error: Exception) -> str:
    """For a number that is none, or out of range: option, value, and what it takes."""
    option: Any = getattr(error, "param", None)
    cause: Any = error.__cause__
    if not hasattr(option, "bare_type") or not hasattr(cause, "errors"):
        return ""
    kind = _KINDS.get(option.bare_type())
    if kind is None:
        return ""
    low, high = option.min, option.max
    bounds = (
        f" from {low:g} to {high:g}"
        if low is not None and high is not None
        else f", {low:g} or more"
        if low is not None
        else ""
    )
    return f"{option.opts[0]} {visible(str(cause.errors()[0]['input']))}: give {kind}{bounds}"


def _has_out(context: Any) -> bool:
    return any("--out" in each.opts for each in context.command.params)
