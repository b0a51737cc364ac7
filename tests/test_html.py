"""The report as a page: its numbers, its size, and what a real browser makes of it, offline and
with hostile names."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from faults.agreement import MOST_WORDS
from hypothesis import given
from hypothesis import strategies as st
from page_runs import (
    EMPTY,
    PAYLOADS,
    hostile_run,
    long_run,
    numbers_of,
    parts_of,
    sample,
    stalled_run,
)
from sample_run import BASIS, sample_run

from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.selection import look
from ioprof.format.run_record import CauseShare, EpochReads, FileReads, ReadGroup, Reads, Trend
from ioprof.format.schema import CAUSES
from ioprof.report import figures, lanes, views
from ioprof.report.page import encoding, markup, stalls
from ioprof.report.page import payload as payloads
from ioprof.report.page.html import page, write_html
from ioprof.report.page.storage_section import storage_section
from ioprof.report.path_demand import ProbedPath
from ioprof.report.run import Run
from ioprof.report.texts.headline import headline
from ioprof.report.texts.statements import cause_rows, statements

LARGEST_PAGE = 2_000_000


def text_of(page_text: str) -> str:
    """What a page says, without plotly, data and tags."""
    visible = re.sub(r"<(script|style)\b.*?</\1>", "", page_text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", visible)).split())


# ----------------------------------------------------------------------------------------- the file


def test_the_page_says_the_same_numbers_as_the_summary() -> None:
    said = text_of(page(*parts_of(sample())))
    for row in cause_rows(sample().summary.steps.causes):
        assert f"{row.cause} {row.seconds} {row.share} {row.basis}" in said
    for fact in statements(sample().summary):
        assert " ".join(fact.text.split()) in said
    assert (
        f"total {sum(entry.seconds or 0 for entry in sample().summary.steps.causes):,.3f} 100.0"
        in said
    )
    assert sample().summary.verdict.text in said


def test_storage_shows_epochs_what_was_not_timed_the_probe_and_the_slowest() -> None:
    """The numbers are those of the summary; reads and files lead to their moment, or say where they
    are."""
    epochs = tuple(
        EpochReads(number, 100, 0.05, 0.01, 500, (2 - number) * 10_000_000, number * 10_000_000, 0)
        for number in (0, 1)
    )
    files = (FileReads("/data/slow/n01/large.JPEG", 7, 1_400_000, 0.5, 0.25, 0, 3),)
    groups = (ReadGroup("storage", None, 700, 30_000_000, 2.0, 0.001, 0.01, 0.02, 0.25),)
    summary = sample().summary
    changed = summary.replace(
        findings=summary.findings.replace(
            trend=Trend(epochs, None, None, None), reads=Reads(groups, files)
        ),
        capture=summary.capture.replace(mapped_bytes_untimed=12_300_000),
    )
    trace, reading = sample().trace, views.ReadingTime()
    look(trace, reading)
    probed = ProbedPath("/lustre/me", "random", 8, 150_000_000.0, 1500.0)
    found = storage_section(changed, views.latency_bins(trace), reading.seconds, probed)
    said = text_of(found)
    assert "epoch 0 500 20.0 MB 0 B 0 B" in said
    assert "epoch 1 500 10.0 MB 10.0 MB 0 B" in said
    assert "not timed (12.3 MB)" in said
    assert "/lustre/me can deliver, by ioprof probe 150 MB/s" in said
    assert "500 ms 25.0% /data/slow/n01/large.JPEG 7 1.40 MB 250 ms" in said
    slowest = summary.storage.slowest[0]
    assert f"from={slowest.start_ns / 1e9:.7f}".rstrip("0") in found


def test_every_emulated_cause_wears_the_word() -> None:
    text = page(*parts_of(sample()))
    bar = text_of(text[text.index('class="keys"') :].split("</ul>")[0])
    shares = {entry.cause: entry.share or 0 for entry in sample().summary.steps.causes}
    for cause, basis in BASIS.items():
        if shares[cause] >= 0.005:
            words = re.search(rf"{cause.replace('_', ' ')} [\d.]+%( emulated)?", bar)
            assert words
            assert (words[1] is not None) == (basis == "emulated")


def test_the_answer_is_short_and_agrees_with_the_table() -> None:
    summary = sample().summary
    rows = {row.cause: row.share for row in cause_rows(summary.steps.causes)}
    waits = sum(Decimal(share) for cause, share in rows.items() if cause in LEAVES)
    named = max((cause for cause in LEAVES), key=lambda cause: Decimal(rows[cause]))
    exchange = Decimal(rows["exchange"])
    second = (
        f"gradient exchange ({exchange}%)"
        if exchange > waits
        else f"waiting for batches ({waits}%: {named} {rows[named]}%)"
    )
    expected = f"Mostly emulated compute ({rows['compute']}%), then {second}."
    assert expected == headline(summary)
    for bound in (None, *CAUSES):
        words = headline(summary.replace(verdict=summary.verdict.replace(bound_by=bound))).split()
        assert len(words) <= MOST_WORDS


def test_only_the_script_of_the_page_may_run_and_nothing_may_be_fetched() -> None:
    text = page(*parts_of(sample()))
    policy = html.unescape(
        re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    )
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    ]
    assert len(scripts) == 1
    assert policy.startswith(f"default-src 'none'; script-src {' '.join(hashes)};")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)


@given(st.text(st.characters()))
def test_text_cannot_become_markup(text: str) -> None:
    """Whatever a string holds, between tags and in an attribute it reads back as one string with no
    tag in it."""
    made = markup.element("td", text, title=text)
    inside = re.fullmatch(r'<td title="([^"<>]*)">([^"<>]*)</td>', made)
    assert inside
    assert html.unescape(inside[1]) == html.unescape(inside[2])
    assert made.isprintable()


@given(st.text(st.characters()))
def test_text_cannot_become_markup_in_a_chart(text: str) -> None:
    """Plotly reads tags and entities in its texts, and replaces %{...} in its templates."""
    shown = figures.escape(text)
    assert not re.search(r"[<>]|%\{", shown)
    assert shown.isprintable()
    assert len(json.dumps(figures.escape_path(text))) <= 100


def test_hostile_names_stay_text_in_the_file() -> None:
    text = page(*parts_of(hostile_run()))
    blocks = text.count('<script type="application/json"') + text.count('<script type="text/plain"')
    assert len(re.findall(r"<script\b", text)) == blocks + 1
    assert "<img" not in text
    for payload in PAYLOADS[:5]:
        assert payload not in text


def test_the_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write_html(*parts_of(sample()), path)
    assert path.read_text().endswith("</html>\n")
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        write_html(*parts_of(sample_run(steps=3)), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_same_run_gives_the_same_page() -> None:
    assert page(*parts_of(sample())) == page(*parts_of(sample()))


def test_a_long_run_makes_a_small_page_that_still_shows_the_stall() -> None:
    run = long_run(ranks=4)
    text = page(*parts_of(run))
    assert len(text.encode()) <= LARGEST_PAGE
    said = text_of(text)
    assert "step 77777 of rank" in said.lower()
    assert "each point is the longest of 625 consecutive steps" in said
    assert "are exact; elsewhere the shares of time" in said
    assert views.step_rows(run.steps)["wall_ns"].max() == 9_000_000_000
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', text, flags=re.DOTALL)[1])
    start, end, step, *_ = facts["stalls"][0]
    assert step == 77_777
    assert any(since <= start and end <= until for since, until in facts["windows"])
    assert sum(count for block in facts["counts"] for _, count in block) <= payloads.MOST_SPANS


def test_a_large_run_without_steps_is_shown_in_parts_of_its_time() -> None:
    run = sample_run(steps=40)
    spans = run.trace.spans.filter(pl.col("kind") != "step")
    with pytest.MonkeyPatch.context() as patch:
        for module in (payloads, stalls):
            patch.setattr(module, "MOST_SPANS", len(spans) // 2)
        text = page(*parts_of(Run.of(replace(run.trace, spans=spans))))
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', text, flags=re.DOTALL)[1])
    shown = sum(count for block in facts["counts"] for _, count in block)
    assert len(spans) // 10 < shown <= len(spans) // 2
    assert facts["windows"][-1][0] > facts["end"] / 2, "not only the start of the run"


@pytest.mark.parametrize("name", EMPTY)
def test_a_run_with_something_missing_is_still_a_page_that_says_so(name: str) -> None:
    said = text_of(page(*parts_of(sample_run(**EMPTY[name]))))
    expected = {
        "no step": "no step was recorded",
        "one step of one rank": "one rank: nothing to exchange",
        "no reads": "no read was recorded",
        "killed": "the run did not complete (status: failed)",
        "nothing known of the run": "ioprof run Timeline",
    }
    assert expected[name] in said


def test_null_causes_are_drawn_as_nothing_not_as_zero() -> None:
    steps = sample_run(ranks=1, steps=4).steps
    names = [trace.name for trace in figures.time_by_cause(steps).data]
    assert "exchange" not in names
    assert "compute" in names


def test_figures_are_labelled_for_notebooks() -> None:
    run = sample()
    window = lanes.Window(*views.around_longest(run.steps, 3))
    drawn = figures.timeline(run.trace, window, emulated=True)
    assert {"compute (emulated)", "copy to the device (emulated)", "read from storage"} <= {
        trace.name for trace in drawn.data
    }
    assert "rank 0 · compute, emulated" in drawn.layout.yaxis.ticktext
    rate = figures.throughput(run.steps, 24, 919.5, emulated=True)
    assert [trace.name for trace in rate.data] == [
        "rank 0",
        "rank 1",
        "one device alone: 919.5 samples/s, emulated",
    ]
    assert rate.layout.yaxis.title.text == "samples/s of one rank, emulated"


def test_the_page_has_all_spans_around_what_was_asked_for() -> None:
    run = stalled_run(steps=90_000)
    wanted = stalls.around_step(run.steps, 45_678)
    assert wanted is not None
    facts = json.loads(
        re.search(r'id="facts">(.*?)</script>', page(*parts_of(run), wanted), flags=re.DOTALL)[1]
    )
    assert facts["wanted"] == [edge / 100 for edge in wanted]
    assert any(
        since <= wanted[0] / 100 and wanted[1] / 100 <= until for since, until in facts["windows"]
    )
    assert stalls.around_step(run.steps, 90_000) is None
    moment = stalls.around_moment(run.steps, 5_000_000_000)
    assert moment[0] < 5_000_000_000 < moment[1]


def test_numbers_survive_their_coding() -> None:
    values = np.array([0, 1, 127, 128, 300, 1 << 40, 5])
    assert numbers_of(encoding.varints(values)) == values.tolist()
    assert encoding.zigzag(np.array([0, -1, 1, -2])).tolist() == [0, 1, 2, 3]


def test_no_cause_share_is_lost_between_table_and_chart() -> None:
    causes: list[CauseShare] = list(sample().summary.steps.causes)
    chart = figures.time_by_cause(sample().steps)
    drawn = {trace.name: trace.x[0] for trace in chart.data}
    assert drawn == pytest.approx(
        {entry.cause: (entry.share or 0) * 100 for entry in causes if entry.seconds}, rel=1e-5
    )
