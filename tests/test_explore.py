"""A run as notebooks and programs see it: a card, tables in milliseconds, figures, and errors that
name what was meant."""

import re
import subprocess
import sys
from functools import cache

import polars as pl
import pytest
from page_runs import PAYLOADS, hostile_run
from repository import PROGRAMS, ROOT

import ioprof
from ioprof.errors import CommandError
from ioprof.format.schema import CAUSES
from ioprof.report.run import Run as AnalysedRun
from ioprof.report.texts.headline import headline

DEMO = ROOT / "tests" / "data" / "demo"


@cache
def demo() -> ioprof.Run:
    return ioprof.load(DEMO / "files")


def test_a_run_is_one_line_and_a_card() -> None:
    """Both say what the report says: the same headline, the same shares, the first advice."""
    assert repr(demo()) == f"files: {headline(demo().summary)}"
    card = demo()._repr_html_()
    assert headline(demo().summary).replace("'", "&#x27;") in card
    assert demo().summary.verdict.findings[0].action.split(":")[0] in card
    assert card.count("<div") == card.count("</div>")


def test_tables_are_in_milliseconds() -> None:
    """The causes of a step sum to its time; spans that are selected are those of the trace."""
    steps = demo().steps
    sums = steps.select(pl.sum_horizontal([pl.col(f"{cause}_ms") for cause in CAUSES])).to_series()
    assert sums.to_list() == pytest.approx(steps["took_ms"].to_list())
    decoded = demo().trace.spans.filter(pl.col("kind") == "decode", pl.col("rank") == 1)
    found = demo().where(kind="decode", rank=1)
    assert (len(decoded), (decoded["end_ns"] - decoded["start_ns"]).sum() / 1e6) == (
        len(found),
        pytest.approx(found["took_ms"].sum()),
    )
    assert demo().causes["took_ms"].sum() == pytest.approx(steps["took_ms"].sum())
    overlap = demo().overlap.drop_nulls("took_ms")
    assert (overlap["hidden_ms"] + overlap["exposed_ms"]).to_list() == pytest.approx(
        overlap["took_ms"].to_list()
    )


def test_sql_answers_as_the_tables_do() -> None:
    """Each table by its name; what is wrong with a query is one line."""
    run = demo()
    read = run.where(kind="read", source="storage")
    found = run.sql("select count(*) as n from spans where kind = 'read' and source = 'storage'")
    assert [(len(read),)] == found.rows()
    longest = run.sql("select step from steps order by took_ms desc limit 1").item()
    assert longest == run.steps.sort("took_ms", descending=True)["step"][0]
    for name in ("counters", "causes", "overlap", "blocks", "files"):
        assert run.sql(f"select * from {name}").columns
    with pytest.raises(CommandError, match=r"sql: .*reads.*\(tables: blocks, "):
        run.sql("select * from reads")


def test_a_step_has_its_causes_and_the_reads_of_its_batches() -> None:
    """Of all ranks; the reads are those that the workers made for the batches that the step
    used."""
    step = demo().step(14)
    assert step.causes["rank"].to_list() == [0, 1]
    longest = demo().steps.filter(pl.col("step") == 14).sort("took_ms").row(-1, named=True)
    assert repr(step).startswith(
        f"step 14: rank {longest['rank']} took {longest['took_ms']:.1f} ms"
    )
    batches = (
        demo()
        .trace.spans.filter(pl.col("kind") == "wait", pl.col("step") == 14)
        .select("rank", "batch")
    )
    reads = (
        demo()
        .trace.spans.filter(pl.col("kind").is_in(["read", "fault"]))
        .join(batches, on=["rank", "batch"])
    )
    assert len(step.reads) == len(reads) > 0
    assert "compute_ms" in step._repr_html_()


def test_what_is_not_known_is_named_with_what_was_meant() -> None:
    """Kinds, sources, ranks and steps."""
    for call, said in (
        (lambda: demo().where(kind="reed"), "kind 'reed': not known; did you mean 'read'?"),
        (lambda: demo().where(source="pagecache"), "did you mean 'page_cache'?"),
        (lambda: demo().timeline(ranks=[7]), "rank '7': not known; there are 0, 1"),
        (lambda: demo().step(100), "step 100: the run has the steps 0 to 99"),
        (lambda: demo().timeline(step=1, around=2.0), "give step= or around=, not both"),
        (lambda: demo().whatif(gpu=2), "its speed cannot be changed; choose from storage"),
    ):
        with pytest.raises(CommandError, match=re.escape(said)):
            call()


def test_figures_show_the_run() -> None:
    """Lanes of the ranks that were asked for; the rate of the device and the demand as lines."""
    drawn = demo().timeline(step=14, ranks=[1])
    assert {"compute, emulated", "worker 0", "wait"} <= set(drawn.layout.yaxis.ticktext)
    rates = [trace.name for trace in demo().throughput().data]
    assert any(re.match(r"one device alone: [\d,.]+ samples/s, emulated", each) for each in rates)
    bandwidth = {trace.name: trace for trace in demo().bandwidth().data}
    need = next(trace for name, trace in bandwidth.items() if name.startswith("the devices need"))
    assert need.y[0] == pytest.approx((demo().summary.demand.bytes_per_s or 0) / 1e6)
    end_s = demo().spans["end_ns"].max() / 1e9
    read_mb = (
        sum(sum(trace.y) for name, trace in bandwidth.items() if "from" in name) * end_s / 1024
    )
    assert read_mb == pytest.approx(demo().summary.storage.bytes / 1e6, rel=0.01)


def test_hostile_names_do_nothing_in_a_notebook() -> None:
    """They are text in the card, in the card of a comparison, and in the line."""
    found = hostile_run()
    run = ioprof.Run.of(AnalysedRun(found.trace, found.steps, found.summary))
    assert repr(run).isprintable()
    for card in (run._repr_html_(), ioprof.compare(run, run)._repr_html_()):
        assert not [payload for payload in PAYLOADS[:5] if payload in card]
        assert "<script" not in card
        card.encode()


def test_a_comparison_as_a_page(tmp_path) -> None:
    """It has no script; its words, causes and numbers are those of the comparison; hostile names
    are text."""
    comparison = ioprof.compare(*(DEMO / name for name in ("files", "lmdb", "lmdb-rgb256")))
    comparison.write_html(tmp_path / "compare.html")
    text = (tmp_path / "compare.html").read_text()
    assert "<script" not in text
    for line in str(comparison).splitlines()[-3:-1]:
        assert line.strip().split(":")[0].capitalize() in text or line.split(":")[0] in text
    found = hostile_run()
    run = ioprof.Run.of(AnalysedRun(found.trace, found.steps, found.summary))
    ioprof.compare(run, run).write_html(tmp_path / "hostile.html")
    hostile = (tmp_path / "hostile.html").read_text()
    assert not [payload for payload in PAYLOADS[:5] if payload in hostile]


@pytest.mark.job
def test_hostile_names_of_files_do_nothing_anywhere(tmp_path) -> None:
    """What the kernel allows in a name, invalid UTF-8 included: in the terminal, the page and the
    notebook it is text."""
    command = [
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--out",
        tmp_path / "run",
        "--",
        sys.executable,
    ]
    (tmp_path / "names").mkdir()
    program = PROGRAMS / "read_hostile_names.py"
    ended = subprocess.run(
        [*command, program, tmp_path / "names"], capture_output=True, text=True, check=True
    )
    run = ioprof.load(tmp_path / "run")
    found = run.where(kind="read", path=str(tmp_path / "names"))["path"].unique().to_list()
    if not found:
        pytest.skip("reads were not captured on this machine")
    assert 4 == len(found)
    assert [path for path in found if "\\xff\\xfe<img" in path]
    full = subprocess.run(
        [*command[:3], "report", "--full", tmp_path / "run"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for text in (ended.stderr, full):
        assert all(character.isprintable() for line in text.split("\n") for character in line)
    # but for the lines with the paths of the folder
    wrapped = [line for line in ended.stderr.splitlines() if str(tmp_path) not in line]
    assert max(map(len, wrapped)) <= 80
    run.write_html(tmp_path / "page.html")
    texts = [
        run._repr_html_(),
        (tmp_path / "page.html").read_text(),
        run.files.slowest()._repr_html_(),
    ]
    for text in texts:
        assert "<img" not in text
        assert "\x1b" not in text
