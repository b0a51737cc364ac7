"""The report in Markdown: short, the same answer as elsewhere, and no name in it is markup."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace
from page_runs import sample
from sample_run import sample_run
from strategies import examples

from ioprof.cli import main
from ioprof.format.run_record import Failure, Finding, Summary
from ioprof.report.texts.headline import headline
from ioprof.report.texts.markdown import escape, markdown, most_tokens

MOST_LINES = 60
MOST_TOKENS = 4000
HOSTILE = (
    "<script>alert(1)</script> [a](http://x.test) ![b](c) `d` **e** | f @octocat #12 \x1b[31m\r\n#"
    " g\n- h" + "y" * 4000
)


def with_name(name: str) -> Summary:
    base = sample().summary
    slow = tuple(replace(read, path=name) for read in base.storage.slowest)
    verdict = replace(
        base.verdict,
        text=name,
        findings=tuple(Finding("other", name, gain=1.3, error=0.1) for _ in range(30)),
    )
    run = base.run.replace(
        name=name, loader=name, status=name, failures=tuple(Failure(what=name) for _ in range(30))
    )
    capture = replace(base.capture, not_seen=(name,) * 30)
    return replace(
        base, run=run, verdict=verdict, storage=base.storage.replace(slowest=slow), capture=capture
    )


def kinds(text: str) -> Counter[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inner = (child for token in tokens for child in token.children or ())
    return Counter([token.type for token in tokens] + [token.type for token in inner])


def test_the_answer_comes_first_then_evidence_advice_and_caveats() -> None:
    text = markdown(sample().summary, sample().steps)
    assert text.startswith(f"## {escape(headline(sample().summary))}\n")
    places = [
        text.index(heading)
        for heading in ("### Evidence", "### What to change", "### Before you rely on this")
    ]
    assert places == sorted(places)
    assert "| storage |" in text
    assert "\n\nCause: storage" in text
    assert "1.31 × as fast" in text
    assert len(text.splitlines()) <= MOST_LINES
    assert kinds(text)["table_open"] == 1


@settings(max_examples=examples(60), deadline=None)
@given(
    st.just(HOSTILE)
    | st.text(st.characters(), min_size=1, max_size=80)
    | st.characters().map(lambda each: each * 2000)
    | st.text("<>[]()!`*_|#-+=.1~@\\ \n&;", min_size=1, max_size=30)
)
def test_no_name_is_markup(name: str) -> None:
    """Whatever a name holds, the document has the structure that it has with plain names, at most
    60 lines and 4,000 tokens, no HTML and no link."""
    text = markdown(with_name(name), sample().steps)
    found, plain = kinds(text), kinds(markdown(with_name("plain"), sample().steps))
    assert len(text.splitlines()) <= MOST_LINES
    assert most_tokens(text) <= MOST_TOKENS
    forbidden = (
        "html_inline",
        "html_block",
        "link_open",
        "image",
        "code_inline",
        "fence",
        "code_block",
        "em_open",
        "strong_open",
        "hr",
    )
    expected = {"strong_open": plain["strong_open"]}
    assert {kind: found[kind] for kind in forbidden if found[kind]} == expected
    for kind in (
        "heading_open",
        "list_item_open",
        "table_open",
        "tr_open",
        "td_open",
        "blockquote_open",
    ):
        assert found[kind] == plain[kind], kind
    assert "@octocat" not in text


def test_a_run_without_steps_has_an_answer() -> None:
    run = sample_run(steps=0)
    text = markdown(
        replace(run.summary, verdict=replace(run.summary.verdict, bound_by=None)), run.steps
    )
    assert text.startswith("## No step was completed")


def test_the_command_prints_markdown_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample().trace.save(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--markdown"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("## ")
    assert printed.err == ""
    assert len(printed.out.splitlines()) <= MOST_LINES
    assert main(["report", str(tmp_path / "run"), "--markdown", "--json"]) == 2
