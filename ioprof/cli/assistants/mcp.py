"""`ioprof mcp`: answers about runs as tools of an assistant."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.assistant.server import serve, skill
from ioprof.cli.console import output
from ioprof.errors import CommandError
from ioprof.process import started_environment


def mcp(
    folders: Annotated[
        list[Path] | None,
        Argument(help="Folders whose runs may be read, and no others.", show_default=False),
    ] = None,
    allow_record: Annotated[
        bool,
        Option(
            "--allow-record",
            help="Let the assistant run and record any command, as you, in the first folder.",
        ),
    ] = False,
    print_skill: Annotated[
        bool,
        Option("--skill", help="Print SKILL.md, which tells an assistant how to use ioprof."),
    ] = False,
) -> int:
    """Serve runs to an assistant by the Model Context Protocol, over standard input and output."""
    if print_skill:
        output.file.write(skill())
        return 0
    if not folders:
        raise CommandError("mcp: give the folders whose runs may be read: ioprof mcp runs")
    serve(folders, started_environment(), allows_recording=allow_record)
    return 0
