"""The command line: one file per command. The only part of ioprof that prints, exits, or reads the arguments."""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import typer

from ioprof.cli.console import error_line
from ioprof.errors import IoprofError

COMMANDS: Final = (
    "generate",
    "convert",
    "verify",
    "inspect",
    "probe",
    "stage",
    "run",
    "record",
    "gather",
    "report",
    "compare",
    "demo",
    "doctor",
)
"""Each is a module of this package; those with several verbs under one name hold a `typer.Typer` called `app`."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad usage or bad input, 130 interrupted."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        commands = given[:1] if given and given[0] in COMMANDS else COMMANDS
        result = _app(commands)(given, prog_name="ioprof", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except IoprofError as error:
        error_line(str(error))
        return error.exit_code
    except typer.Abort:
        return _interrupted()
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return 1
    except OSError as error:
        error_line(f"{error.filename or 'input/output'}: {error.strerror or error}")
        return 1
    except Exception as error:
        return _usage_error(error)


def _app(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """Those commands alone: what the others import takes a second."""
    app = typer.Typer(
        help="What a training job waits for: compute, gradient exchange, copies, preprocessing or storage.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)  # or one command alone would be taken for the whole, without a name
    with _environment_as_it_is():
        modules = {name: importlib.import_module(f"ioprof.cli.{name}") for name in commands}
    for name, module in modules.items():
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))
    return app


@contextmanager
def _environment_as_it_is() -> Iterator[None]:
    """What libraries put there for themselves while they are imported (polars does) is not for the job that we start."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name in [name for name, value in before.items() if os.environ.get(name) != value]:
        os.environ[name] = before[name]


def _nothing() -> None:
    """What comes before a command: no options."""


def _usage_error(error: Exception) -> int:
    # typer keeps the classes of its usage errors private; they carry a one-line message and the context of the command.
    if not hasattr(error, "format_message"):
        raise error
    message, context = error.format_message(), getattr(error, "ctx", None)
    if message:
        command = context.command_path if context else "ioprof"
        error_line(f"{message.rstrip('.')}; see: {command} --help")
    return 2


def _interrupted() -> int:
    error_line("interrupted")
    return 130
