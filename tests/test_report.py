"""The report in words: rounding that adds up, names that stay harmless, caveats, and the tables
behind the figures."""

import json
import re
import subprocess
import sys
from decimal import Decimal
from io import StringIO
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from page_runs import sample
from repository import ROOT
from rich.cells import cell_len
from rich.console import Console
from sample_run import sample_run, steps_summary
from strategies import examples

from ioprof.analysis.ranks.stragglers import late_ranks
from ioprof.format.run_record import (
    CauseShare,
    Clocks,
    DatasetRecord,
    Failure,
    FailureCode,
    Finding,
    Summary,
)
from ioprof.format.schema import CAUSES, SUMMARY_SCHEMA
from ioprof.report import views
from ioprof.report.run import Run
from ioprof.report.texts import units
from ioprof.report.texts.brief import brief_text
from ioprof.report.texts.caveats import caveats
from ioprof.report.texts.headline import headline
from ioprof.report.texts.statements import failures, statements
from ioprof.report.texts.text import WIDTH, comparison_text, summary_text

shares_with_gaps = st.lists(
    st.none() | st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=len(CAUSES)
)
any_text = st.text(st.characters(), max_size=200)


def printed(renderable: Any, width: int = WIDTH) -> str:
    console = Console(
        file=StringIO(), width=width, color_system=None, force_terminal=False, highlight=False
    )
    console.print(renderable)
    return console.file.getvalue()


def with_causes(summary: Summary, shares: list[float | None]) -> Summary:
    known = sum(share or 0 for share in shares)
    causes = tuple(
        CauseShare(
            cause,
            share,
            None if share is None else share / known if known else 0.0,
            "measured",
            None if share is not None else "why",
        )
        for cause, share in zip(CAUSES, [*shares, *[None] * len(CAUSES)], strict=False)
    )
    return replace(summary, steps=replace(summary.steps, causes=causes))


# -------------------------------------------------------------------------------- numbers and names


@given(shares_with_gaps)
def test_printed_shares_add_up_to_exactly_100(values: list[float | None]) -> None:
    shown = units.shares(values)
    known = [Decimal(text) for text in shown if text != units.MISSING]
    assert [text == units.MISSING for text in shown] == [value is None for value in values]
    assert sum(known) == (Decimal("100.0") if sum(value or 0 for value in values) > 0 else 0)


@given(shares_with_gaps)
def test_a_printed_share_is_off_by_less_than_its_last_decimal(values: list[float | None]) -> None:
    total = sum(value or 0 for value in values)
    for text, value in zip(units.shares(values), values, strict=True):
        if value is not None and total:
            assert abs(float(text) - 100 * value / total) <= 0.1 + 1e-9


@given(shares_with_gaps)
def test_the_largest_share_is_printed_as_a_sentence_names_it(values: list[float | None]) -> None:
    """Of equal ones at least one is."""
    total = sum(value or 0 for value in values)
    largest = max((value or 0 for value in values), default=0)
    off = [
        abs(float(text) - 100 * largest / total)
        for text, value in zip(units.shares(values), values, strict=True)
        if total and value == largest
    ]
    assert not off or min(off) <= 0.05 + 1e-9


@settings(max_examples=examples(40))
@given(shares_with_gaps)
def test_the_table_of_causes_in_the_terminal_adds_up(shares: list[float | None]) -> None:
    summary = with_causes(sample().summary, shares)
    lines = printed(summary_text(summary)).split("\ntotal")[0].splitlines()
    rows = {
        line.split()[0]: line.split()[2]
        for line in lines
        if line.split() and line.split()[0] in CAUSES and line[0] != " "
    }
    total = sum(Decimal(share) for share in rows.values() if share not in (units.MISSING, ""))
    assert total == (100 if sum(share or 0 for share in shares) > 0 else 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (0.0, "0 s"), (1.5e-9, "1.50 ns"), (2e-7, "200 ns"), (0.00123, "1.23 ms"), (0.99996, "1.00 s"), (87.44, "87.4 s"),  # noqa: E501
     (12345, "12,345 s")],
)  # fmt: skip
def test_durations_have_three_digits_and_the_unit_that_fits(
    value: float | None, expected: str
) -> None:
    assert units.duration(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1e3, "1.00 kB"), (123_456_789, "123 MB")],
)
def test_amounts_are_decimal(value: float | None, expected: str) -> None:
    assert units.amount(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (0.0, "0.0%"),
        (0.0001, "< 0.1%"),
        (0.5, "50.0%"),
        (0.99999, "> 99.9%"),
        (1.0, "100.0%"),
        (1.04, "104.0%"),
    ],
)
def test_what_is_not_quite_nothing_or_all_never_reads_as_it(
    value: float | None, expected: str
) -> None:
    assert units.percent(value) == expected


@given(any_text, st.integers(8, 80))
def test_a_cleaned_name_is_short_printable_and_on_one_line(text: str, length: int) -> None:
    shown = units.clean(text, length)
    assert len(shown) <= length
    assert shown.isprintable()
    shown.encode("utf-8")


def test_a_long_name_keeps_its_ends() -> None:
    assert units.clean("train-" + "x" * 300 + "-end.tar", 20) == "train-xxx…xx-end.tar"


def test_cleaning_leaves_an_ordinary_name_alone() -> None:
    assert units.clean("/data/größe/画像_1.JPEG") == "/data/größe/画像_1.JPEG"


# ----------------------------------------------------------------------------------------- terminal


def test_the_verdict_comes_first_and_the_causes_in_order() -> None:
    text = printed(summary_text(sample().summary))
    assert text.startswith(headline(sample().summary))
    places = [text.index(f"\n{cause} ") for cause in CAUSES]
    assert places == sorted(places)


def test_every_emulated_number_says_so() -> None:
    lines = printed(summary_text(sample().summary)).split("\n")
    assert all(
        "emulated" in line
        for line in lines
        if line.split()[:1] in (["compute"], ["h2d"], ["exchange"])
    )
    rows = {fact.label: fact for fact in statements(sample().summary)}
    assert {label for label, fact in rows.items() if fact.basis == "emulated"} == {
        "throughput",
        "steps",
        "overlap",
        "demand",
    }


def test_failures_stand_above_everything() -> None:
    killed = sample_run(
        steps=4,
        run={"status": "failed", "failures": [{"rank": 1, "what": "was killed by SIGKILL"}]},
    ).summary
    first, second, *_ = printed(summary_text(killed)).splitlines()
    assert (
        first
        == "FAILED: the run did not complete (status: failed); the numbers cover what was recorded"
    )
    assert second == "FAILED: rank 1: was killed by SIGKILL"
    assert failures(sample().summary) == ()


def test_a_thousand_failures_are_not_a_thousand_lines() -> None:
    failed = [{"rank": rank, "what": "ended without saying why"} for rank in range(1000)]
    assert (
        failures(sample_run(steps=1, run={"status": "failed", "failures": failed}).summary)[-1]
        == "and 980 more"
    )


def test_a_cause_that_was_not_measured_is_a_dash_with_its_reason() -> None:
    text = printed(summary_text(sample_run(ranks=1, steps=8).summary))
    row = next(line for line in text.splitlines() if line.startswith("exchange"))
    assert row.split() == ["exchange", "–", "–"]
    assert "– exchange: one rank: nothing to exchange" in text


HOSTILE = "[bold]x[/bold]\x1b[31m\u202e\r\n\tname" + "y" * 300


@settings(max_examples=examples(40))
@given(st.just(HOSTILE) | any_text)
def test_names_from_data_cannot_write_to_the_terminal(name: str) -> None:
    run = {
        "name": name,
        "dataset": DatasetRecord(name=name, layout=name),
        "loader": name,
        "device": name,
        "status": name,
        "failures": (Failure(what=name), Failure(rank=0, what=name)),
    }
    base = sample().summary
    summary = replace(
        base,
        run=base.run.replace(**run),
        capture=replace(base.capture, not_seen=(name,)),
        clocks=Clocks(name, 5),
        verdict=replace(base.verdict, text=name, bound_by=None),
    )
    for text in (printed(summary_text(summary)), printed(comparison_text([summary, base]))):
        assert all(character.isprintable() for line in text.split("\n") for character in line)
        assert all(cell_len(line) <= WIDTH for line in text.split("\n"))


def test_markup_of_the_terminal_library_is_shown_not_obeyed() -> None:
    base = sample().summary
    text = printed(summary_text(replace(base, run=base.run.replace(name="[bold]x[/bold]"))))
    assert "[bold]x[/bold]" in text


@pytest.mark.parametrize("number", [1, 2, 4, 5, 9])
def test_a_comparison_shows_every_run_in_order_within_the_width(number: int) -> None:
    runs = [
        replace(sample().summary, run=sample().summary.run.replace(name=f"run-{place}"))
        for place in range(number)
    ]
    text = printed(comparison_text(runs))
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    names = [word for line in text.splitlines() for word in line.split() if word.startswith("run-")]
    assert list(dict.fromkeys(names)) == [f"run-{place}" for place in range(number)]
    assert "emulated" in text


def test_a_comparison_gives_rates_against_the_first_run() -> None:
    base = sample().summary
    faster = replace(
        base,
        throughput=replace(
            base.throughput, steady_samples_per_s=(base.throughput.steady_samples_per_s or 0) * 1.5
        ),
    )
    line = next(
        line
        for line in printed(comparison_text([base, faster])).splitlines()
        if line.startswith("against the first")
    )
    assert line.split()[-4:] == ["1.00", "×", "1.50", "×"]


@pytest.mark.parametrize(
    "run", [{"ranks": 1, "steps": 0}, {"ranks": 1, "steps": 1}, {"images": 0, "steps": 5}]
)
def test_a_run_with_next_to_nothing_is_still_reported(run: dict[str, int]) -> None:
    text = printed(summary_text(sample_run(**run).summary))
    assert ("total" in text) is bool(run.get("steps"))
    assert ("few steps" if run.get("steps") else "no steps") in text


@pytest.mark.job
def test_the_text_report_does_not_load_the_figures_library() -> None:
    program = (
        "import sys, ioprof.report.texts.text; print([name for name in ('plotly', 'torch') if name"
        " in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------ caveats


def changed(**parts: dict[str, Any]) -> Summary:
    summary = replace(
        sample_run(steps=40, run={"device": "cuda", "device_basis": "measured"}).summary
    )
    return replace(
        summary,
        **{name: replace(getattr(summary, name), **values) for name, values in parts.items()},
    )


def test_a_clean_run_has_no_caveat() -> None:
    assert caveats(changed()) == ()


@pytest.mark.parametrize(
    ("name", "parts", "number"),
    [
        ("few steps", {"steps": {"count": 12, "warmup": 2}}, "10 steps"),
        ("spans lost", {"capture": {"lost": 7}}, "7 spans"),
        ("reads missing", {"capture": {"coverage_ratio": 0.9}}, "90.00%"),
        ("recording cost", {"capture": {"overhead_ratio": 0.03}}, "3.0%"),
        ("clocks uncertain", {"clocks": {"uncertainty_ns": 5_000_000}}, "5.00 ms"),
        (
            "storage not tested",
            {
                "storage": {
                    "bytes": 100,
                    "bytes_from_cache": 100,
                    "bytes_from_storage": 0,
                    "bytes_unknown": 0,
                }
            },
            "100.0%",
        ),
        (
            "sources unknown",
            {
                "storage": {
                    "bytes": 100,
                    "bytes_from_cache": 50,
                    "bytes_from_storage": 0,
                    "bytes_unknown": 50,
                }
            },
            "50.0%",
        ),
    ],
)
def test_each_caveat_appears_when_it_holds_and_says_the_number(
    name: str, parts: dict[str, dict[str, Any]], number: str
) -> None:
    found = caveats(changed(**parts))
    assert [caveat.name for caveat in found] == [name]
    assert number in found[0].seen
    assert name in printed(summary_text(changed(**parts)))


KILLED = (Failure(rank=0, what="was killed by SIGKILL", code=FailureCode.KILLED, signal="SIGKILL"),)


@pytest.mark.parametrize(
    ("names", "run"),
    [
        (["run not complete"], {"status": "interrupted"}),
        (["run not complete", "process killed"], {"status": "failed", "failures": KILLED}),
        (["emulated device"], {"device": "emulated:v100", "device_basis": "emulated"}),
    ],
)
def test_caveats_of_the_run_itself(names: list[str], run: dict[str, Any]) -> None:
    summary = changed()
    assert [
        caveat.name for caveat in caveats(replace(summary, run=summary.run.replace(**run)))
    ] == names


def test_unexplained_time_is_a_caveat() -> None:
    shares = [0.5, *[0.0] * (len(CAUSES) - 2), 0.5]
    assert [caveat.name for caveat in caveats(with_causes(changed(), shares))] == [
        "time not explained"
    ]


# ----------------------------------------------------------------------------------------- commands


@pytest.fixture
def run_folder(tmp_path: Any) -> Any:
    sample().trace.save(tmp_path / "run")
    return tmp_path / "run"


def command(*arguments: object) -> int:
    from ioprof.cli import main

    return main([str(argument) for argument in arguments])


def test_report_prints_the_summary_and_the_next_command(
    run_folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", run_folder, "--full") == 0
    out, err = capsys.readouterr()
    assert "total" in out
    assert err.splitlines()[-1] == f"next: ioprof open {run_folder}"


def test_report_fits_on_one_screen_unless_it_is_asked_for_all(
    run_folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", run_folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 26  # 24, and a second line of each further change
    assert max(map(cell_len, lines)) <= 80
    assert lines[0].startswith("Mostly emulated compute")
    assert "Where to look" in lines


def test_the_brief_report_folds_what_took_little_and_loses_nothing() -> None:
    """Its shares add up to 100.0, and no cause below 0.5 % has a row."""
    run = sample()
    said = printed(brief_text(run.summary, run.steps))
    shares = [
        float(share)
        for share in re.findall(r"^\S+(?: others?)? +([\d.]+)%", said, flags=re.MULTILINE)
    ]
    assert sum(shares) == pytest.approx(100.0)
    causes = [entry for entry in run.summary.steps.causes if entry.share]
    rows = [entry for entry in causes if re.search(rf"^{entry.cause} ", said, flags=re.MULTILINE)]
    assert min(entry.share or 0 for entry in rows) >= 0.005
    assert f"{len(causes) - len(rows)} others" in said


def test_the_brief_report_shows_the_largest_causes() -> None:
    """The bound comes before what is no wait for a batch, and no cause without a row is larger than
    one that has a row."""
    run = Run.load(ROOT / "tests" / "data" / "demo" / "files")
    shares = {entry.cause: entry.share or 0.0 for entry in run.summary.steps.causes}
    for bound in ("decode", "straggler", "host", "exchange", "storage"):
        summary = run.summary.replace(verdict=run.summary.verdict.replace(bound_by=bound))
        said = printed(brief_text(summary, run.steps))
        rows = re.findall(rf"^({'|'.join(CAUSES)}) +[\d.]+%", said, flags=re.MULTILINE)
        folded = [share for cause, share in shares.items() if cause not in rows]
        assert max(folded) <= min(shares[cause] for cause in rows if cause != bound)
        assert bound == next(
            row for row in rows if row == bound or row not in ("compute", "straggler")
        )
    assert re.search(
        r"^host .*stragglers",
        printed(brief_text(waiting(run.summary, "host"), run.steps)),
        flags=re.MULTILINE,
    )


@pytest.mark.parametrize(
    ("waits_s", "rank", "by"),
    [
        ({"0": {"host": 2.0, "delivery": 1.5, "decode": 1.0}}, 0, "delivery"),
        ({"0": {"host": 2.0, "delivery": 1.0, "decode": 1.0, "page_cache": 1.0}}, 0, "batches"),
        ({"0": {"host": 2.0}, "1": {"page_cache": 3.0}}, 1, "page cache"),
        ({"0": {"host": 2.0, "storage": 1.0}, "1": {"compute": 2.0}}, 0, "host"),
    ],
)
def test_the_slowest_rank_is_late_by_one_cause_wherever_it_is_named(
    waits_s: dict[str, dict[str, float]], rank: int, by: str
) -> None:
    """Waits for batches are one, in the headline, beside the bar and in the advice."""
    run = Run.load(ROOT / "tests" / "data" / "demo" / "files")
    causes = tuple(
        entry.replace(share=0.5) if entry.cause == "straggler" else entry
        for entry in run.summary.steps.causes
    )
    steps = run.summary.steps.replace(causes=causes, straggler_wait_s=waits_s)
    summary = run.summary.replace(steps=steps)
    lines = printed(brief_text(summary, run.steps)).splitlines()
    assert f": {by})" in " ".join(lines[:3])
    row = next(line for line in lines if line.startswith("straggler"))
    assert row.endswith(f"rank {rank}: {by}")
    late = late_ranks(waits_s)
    assert (str(rank), by) == (late[0].rank, late[0].by.replace("_", " "))
    assert sorted((each.waited_s for each in late), reverse=True) == [
        each.waited_s for each in late
    ]
    assert all(each.by_s <= each.waited_s for each in late)


def waiting(summary: Summary, bound: str) -> Summary:
    """A run whose ranks waited for rank 0, because of what bounds it."""
    steps = summary.steps.replace(straggler_wait_s={"0": {bound: 1.0}})
    return summary.replace(steps=steps, verdict=summary.verdict.replace(bound_by=bound))


@given(any_text)
@settings(max_examples=examples(30))
def test_the_brief_report_shows_hostile_names_as_text(text: str) -> None:
    run = sample()
    slowest = tuple(read.replace(path=text) for read in run.summary.storage.slowest)
    verdict = run.summary.verdict.replace(
        findings=(Finding("other", text), *run.summary.verdict.findings)
    )
    summary = run.summary.replace(run=run.summary.run.replace(name=text), verdict=verdict)
    said = printed(
        brief_text(summary.replace(storage=run.summary.storage.replace(slowest=slowest)), run.steps)
    )
    assert all(line.isprintable() for line in said.split("\n"))


def test_report_as_json_prints_nothing_else(
    run_folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", run_folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["schema"] == SUMMARY_SCHEMA


def test_report_never_replaces_a_file_unasked(
    run_folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    page = run_folder.parent / "report.html"
    page.write_text("mine")
    assert command("report", run_folder, "--html", page) == 2
    assert page.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert command("report", run_folder, "--html", page, "--force") == 0
    assert page.read_text().startswith("<!doctype html>")


def test_a_page_of_ioprof_is_written_anew(run_folder: Any) -> None:
    """It can be made again, so that nothing is lost; one that somebody changed the kind of is
    theirs."""
    page = run_folder.parent / "report.html"
    assert command("report", run_folder, "--html", page) == 0
    before = page.stat().st_ino
    assert command("report", run_folder, "--html", page) == 0
    assert page.stat().st_ino != before
    page.write_text("<!doctype html>\n<html><p>My page about ioprof</p></html>")
    assert command("report", run_folder, "--html", page) == 2


@pytest.mark.parametrize("place", ["", "missing/report.html"])
def test_report_checks_the_output_path_before_work(
    run_folder: Any, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", run_folder / "nowhere", "--html", run_folder / place) == 2
    assert "--html" in capsys.readouterr().err


def test_report_of_a_folder_that_is_no_run_is_one_line(
    run_folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", run_folder.parent) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_compare_needs_two_runs_and_shows_both(
    run_folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("compare", run_folder) == 2
    assert "two runs" in capsys.readouterr().err
    assert command("compare", run_folder, run_folder) == 0
    assert "against the first" in capsys.readouterr().out
    assert command("compare", run_folder, run_folder, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_the_summary_of_the_sample_holds_together() -> None:
    """The made-up run must itself obey the laws that its reports are checked against."""
    steps = sample().steps
    causes = (
        steps.select(pl.sum_horizontal([f"{cause}_ns" for cause in CAUSES])).to_series().to_list()
    )
    assert causes == steps.select(views.wall_ns()).to_series().to_list()
    assert sum(entry.share or 0 for entry in steps_summary(steps).causes) == pytest.approx(1)
