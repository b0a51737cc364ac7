"""A server of the Model Context Protocol (https://modelcontextprotocol.io) over standard input and
output, by the protocol's own library for Python.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from importlib.resources import files
from pathlib import Path
from typing import Any

from ioprof import __version__
from ioprof.assistant.folders import Folders
from ioprof.errors import CommandError, IoprofError
from ioprof.report.texts.units import clean


def skill() -> str:
    """How an assistant uses ioprof, as Markdown: the file that assistants load as a skill."""
    return files("ioprof.assistant").joinpath("SKILL.md").read_text()


def serve(
    roots: Sequence[Path], environment: Mapping[str, str], *, allows_recording: bool = False
) -> None:
    """Answer requests until standard input ends.

    Raises CommandError where the library is not installed, or a root is no folder.
    """
    folders = Folders(roots)
    try:
        import anyio.to_thread
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise CommandError(
            f"ioprof mcp needs the library of the protocol ({error}); install it with:"
            " pip install 'ioprof[mcp]'"
        ) from None
    from ioprof.assistant.tools import RECORDING_TOOL, TOOLS, Tools

    server = MCPServer("ioprof", instructions=skill(), version=__version__, log_level="WARNING")
    tools = Tools(folders, environment)
    one_at_a_time = anyio.CapacityLimiter(1)

    def in_thread(function: Callable[..., str]) -> Callable[..., Any]:
        """The server goes on answering pings; analyses of two runs at once would use twice the
        memory.
        """

        @wraps(function)
        async def call(**arguments: Any) -> str:
            work = partial(function, **arguments)
            try:
                return await anyio.to_thread.run_sync(work, limiter=one_at_a_time)
            except (IoprofError, OSError) as error:  # of others the client learns no text
                raise ToolError(clean(str(error), 2000)) from None

        return call

    for name in (*TOOLS, *((RECORDING_TOOL,) if allows_recording else ())):
        server.add_tool(in_thread(getattr(tools, name)), name=name, structured_output=False)
    server.run("stdio")
