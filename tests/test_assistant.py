"""Assistants: the tools of `ioprof mcp`, by the official client, on real runs."""

import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import stored
from hypothesis import given, settings
from hypothesis import strategies as st
from repository import ROOT
from strategies import examples

from ioprof.assistant.answers import as_json
from ioprof.assistant.folders import Folders
from ioprof.cli import main
from ioprof.errors import CommandError

DEMO = ROOT / "tests" / "data" / "demo"
MOST_CHARS = 16_100
READING = {
    "list_runs",
    "answer",
    "findings",
    "evidence",
    "whatif",
    "compare",
    "slowest_reads",
    "stacks",
}


def talk(ask: Callable[[Any], Awaitable[None]], *arguments: object) -> None:
    """Let the official client ask a server of its own."""
    mcp = pytest.importorskip("mcp", reason="needs the library mcp")
    from mcp.client.stdio import StdioServerParameters, stdio_client

    words = ["-P", "-m", "ioprof", "mcp", *map(str, arguments)]

    async def session() -> None:
        with open("/dev/null", "w") as nowhere:
            server = StdioServerParameters(command=sys.executable, args=words)
            async with mcp.Client(stdio_client(server, nowhere)) as client:
                await ask(client)

    anyio.run(session)


async def called(client: Any, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    assert not result.is_error, text
    assert len(text) <= MOST_CHARS
    return str(text)


async def refused(client: Any, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


@pytest.mark.job
def test_each_tool_answers_about_a_run_and_no_bad_argument_ends_the_server() -> None:
    """Of one session: every tool that reads, its bounds, hostile names, paths outside."""

    async def ask(client: Any) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING

        runs = json.loads(await called(client, "list_runs"))
        assert {run["run"] for run in runs["runs"]} == {"files", "lmdb", "lmdb-rgb256"}
        assert all("decode" in run["answer"] for run in runs["runs"] if run["run"] == "files")
        answer = await called(client, "answer", run="files")
        assert answer.startswith("## ")
        assert "### What to change" in answer
        found = json.loads(await called(client, "findings", run="files"))["findings"]
        assert [each["number"] for each in found] == list(range(1, len(found) + 1))
        shown = json.loads(await called(client, "evidence", run="files", finding=1))
        assert shown["finding"] == found[0]
        assert shown["cause"]["cause"] == "decode"
        predicted = await called(client, "whatif", run="files", decode="2x")
        assert "decode 2 times as fast" in predicted
        assert "files" in await called(client, "compare", runs=["files", "lmdb"])
        slowest = json.loads(await called(client, "slowest_reads", run="files", limit=3))
        assert 0 < len(slowest["reads"]) <= 3
        assert {"lines", "stacks"} == set(json.loads(await called(client, "stacks", run="files")))

        assert "outside" in await refused(client, "answer", run="../runs/own-job")
        assert "outside" in await refused(client, "answer", run="/etc")
        assert "list_runs" in await refused(client, "answer", run="nothing-here")
        assert "has the findings" in await refused(client, "evidence", run="files", finding=999)
        assert "factor" in await refused(client, "whatif", run="files", storage="fast")
        for hostile in ("", "\0", "a" * 5000, "x\n\x1b[31m", "<script>", "files/../../.."):
            assert await refused(client, "answer", run=hostile)
        for name, arguments in (
            ("answer", {}),
            ("answer", {"run": 7}),
            ("compare", {"runs": ["files"]}),
            ("slowest_reads", {"run": "files", "limit": 10**9}),
            ("whatif", {"run": "files", "workers": -1}),
            ("record", {"command": ["true"]}),
        ):
            assert await refused(client, name, **arguments)
        assert (await called(client, "answer", run="files")) == answer

    talk(ask, DEMO)


@pytest.mark.job
def test_a_command_is_recorded_where_the_server_was_started_with_leave(tmp_path: Path) -> None:
    """Its answer comes back, its output stays out of the protocol, and a command that takes too
    long is interrupted."""
    loop = "import time\nprint('noise')\nwhile True: time.sleep(0.05)"

    async def ask(client: Any) -> None:
        said = await called(client, "record", command=[sys.executable, "-c", loop], seconds=10)
        name = said.splitlines()[0].removeprefix("run: ")
        assert "noise" in (tmp_path / f"{name}.log").read_text()
        assert "No step" in said
        assert name in await called(client, "list_runs")
        assert "no such program" in await refused(client, "record", command=["no-such-program"])

    talk(ask, tmp_path, "--allow-record")


def test_a_link_out_of_the_folders_is_outside(tmp_path: Path) -> None:
    """A run that is a link, and a file of a run that is one, are refused; a root may be a link."""
    inside = tmp_path / "inside"
    shutil.copytree(DEMO / "files", inside / "run")
    (tmp_path / "root").symlink_to(inside)
    folders = Folders([tmp_path / "root"])
    assert [folders.name(each) for each in folders.runs()] == ["run"]
    assert folders.run("run") == inside / "run"
    (inside / "link").symlink_to(DEMO / "lmdb")
    with pytest.raises(CommandError, match="outside"):
        folders.run("link")
    (inside / "run" / "spans.parquet").unlink()
    (inside / "run" / "spans.parquet").symlink_to(DEMO / "files" / "spans.parquet")
    with pytest.raises(CommandError, match="link to outside"):
        folders.run("run")


@given(st.text(max_size=40) | st.from_regex(r"(\.\./|/|~|files/?){1,6}", fullmatch=True))
@settings(max_examples=examples(200), deadline=None)
def test_no_name_leads_out_of_the_folders(name: str) -> None:
    """A name is a run within the root, or an error of ioprof."""
    folders = Folders([DEMO])
    with suppress(CommandError):
        assert folders.run(name).is_relative_to(DEMO)


@given(
    st.recursive(
        st.text(max_size=300) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=200) | st.dictionaries(st.text(max_size=10), inner, max_size=6)
        ),
        max_leaves=300,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_every_answer_is_bounded(value: object) -> None:
    """Whatever a run holds; JSON that is cut says how much was left out."""
    text = as_json({"rows": [value] * 100})
    assert len(text) <= MOST_CHARS
    if "left_out" in text and text.endswith("}"):
        assert json.loads(text)["left_out"] > 0


def test_the_skill_is_printed_and_names_the_tools(capsys: pytest.CaptureFixture[str]) -> None:
    """With the head that assistants read; a server without folders says what to type."""
    assert main(["mcp", "--skill"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("---\nname: ioprof\ndescription: ")
    assert all(f"`{tool}`" in said for tool in ("answer", "findings", "whatif", "compare"))
    assert main(["mcp"]) == 2
    assert "ioprof mcp runs" in capsys.readouterr().err
    assert main(["mcp", str(stored.RECORDINGS / "nothing")]) == 2
