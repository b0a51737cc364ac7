"""The first screen of a terminal says what ran, how it ended, what to do, and where the page is."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from sample_run import SampleRun, sample_run
from test_report import command, printed

from ioprof.analysis.gpu_time import gpu_time
from ioprof.format.run_record import CpuEvidence, Finding, NoGain, Summary
from ioprof.report.page.page_file import is_page
from ioprof.report.texts.brief import WIDTH, brief_text
from ioprof.report.texts.headline import headline

COMMAND = "python train.py --data /scratch/imagenet --epochs 3"


def screen(summary: Summary, run: SampleRun | None = None) -> list[str]:
    """What `ioprof report` prints on a terminal of 80 columns."""
    steps = (run or sample_run()).steps
    return printed(brief_text(summary, steps), WIDTH).splitlines()


def words(lines: list[str]) -> str:
    """The text without line breaks and indentation."""
    return " ".join(" ".join(lines).split())


def with_run(summary: Summary, **fields: Any) -> Summary:
    return summary.replace(run=summary.run.replace(**fields))


def without_steps(**capture: Any) -> SampleRun:
    """A job that read, and stepped no optimizer."""
    found = sample_run()
    causes = tuple(each.replace(seconds=None, share=None) for each in found.summary.steps.causes)
    steps = found.summary.steps.replace(
        count=0, warmup=0, mean_s=None, p50_s=None, p95_s=None, causes=causes, per_rank=()
    )
    verdict = found.summary.verdict.replace(bound_by=None, findings=(), doubts=())
    summary = found.summary.replace(
        steps=steps, verdict=verdict, capture=found.summary.capture.replace(**capture)
    )
    return dataclasses.replace(found, steps=found.steps.clear(), summary=summary)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of an emulated device."""
    sample_run().trace.save(tmp_path / "run")
    return tmp_path / "run"


def test_the_script_and_its_arguments_are_on_the_first_screen():
    """The command stands whole beside the run's name, in the short and in the long report."""
    summary = with_run(sample_run().summary, command=COMMAND)
    assert f"{summary.run.name}: {COMMAND}" in words(screen(summary))


def test_no_line_is_cut():
    """Finding, setting and limits are wrapped at 80 columns, and nothing of them is left out."""
    long = "Decode less of " + " ".join(f"image{number}" for number in range(40)) + " at the end."
    found = sample_run().summary
    summary = with_run(
        found.replace(verdict=found.verdict.replace(findings=(Finding("other", long),))),
        command=COMMAND,
        loader="a loader with a name",
        libraries=("torch 2.13.0", "lightning 2.5.1", "torchvision 0.24.0", "webdataset 1.0.2"),
    )
    lines = screen(summary)

    assert long in words(lines)
    assert "webdataset 1.0.2" in words(lines)
    assert "…" not in "".join(lines)
    assert max(map(cell_len, lines)) <= WIDTH


def test_a_change_with_a_gain_stands_beside_one_without():
    """Whatever else is on the screen: what the reader can choose by is there."""
    found = sample_run().summary
    known, unknown = (
        Finding(
            "other", f"Change {name}, which is said in a sentence of a few lines" + ", really" * 9
        )
        for name in ("this", "that")
    )
    unknown = unknown.replace(no_gain=NoGain.NOT_OF_STEPS, reason="it is time outside of steps")
    known = known.replace(gain=2.0, low=1.8, high=2.2, basis="derived")
    for findings in ((unknown, known), (known, unknown)):
        text = words(screen(found.replace(verdict=found.verdict.replace(findings=findings))))
        assert "Change this" in text
        assert ("Change that" in text) == (findings[0] is unknown)


@pytest.mark.parametrize(
    ("delay", "workers", "told"),
    [
        (0.24, 0.8, ", short of cores: workers use them for decode)"),
        (0.24, None, ", short of cores)"),
        (0.05, 0.8, None),
        (None, 0.8, None),
    ],
)
def test_a_job_that_computes_says_how_long_its_loop_waited_for_a_core(delay, workers, told):
    """Where its workers had the cores, and what they did: computing takes less where they do
    less."""
    found = sample_run().summary
    cpu = CpuEvidence(host="node1", rank_run_delay_ratio=delay, worker_running_threads=workers)
    causes = tuple(
        each.replace(workers_share=0.7 if each.cause == "decode" else None)
        for each in found.steps.causes
    )
    run = found.run.replace(device="cpu", device_basis="measured")
    found = found.replace(cpu=cpu, run=run, steps=found.steps.replace(causes=causes))
    assert ("short of cores" in headline(found)) == (told is not None)
    assert (told or "") in headline(found)
    shown = words(screen(found))
    assert ("without a core 24.0% of its runnable time" in shown) == (told is not None)


def test_changes_that_have_no_room_are_two_lines_each():
    """With what they bring, if that is something."""
    found = sample_run().summary
    gains = {"first": 2.0, "second": 1.5, "third": 1.01}
    findings = tuple(
        Finding("other", f"Change {name}, which is told" + ", really" * 40, gain=gain, low=1.0)
        for name, gain in gains.items()
    )
    lines = screen(found.replace(verdict=found.verdict.replace(findings=findings)))
    place = next(place for place, line in enumerate(lines) if line.startswith("  2. "))
    assert "  2. 1.50 ×: Change second, which is told, really, really, really," in lines[place]
    assert lines[place + 1].startswith("     really, ")
    assert lines[place + 1].endswith("…")
    assert "really" not in lines[place + 2]
    assert "Change third" not in words(lines)


def test_a_job_without_steps_is_told_what_to_do_and_what_it_read():
    """The remedy and the sums of its reads stand on the first screen."""
    run = without_steps()
    lines = screen(run.summary, run)

    assert "for batch in ioprof.batches(loader)" in words(lines)
    assert re.search(r"^storage +[\d,]+ accesses, .*% storage", "\n".join(lines), re.MULTILINE)
    assert len(lines) <= 24


def test_steps_among_lost_spans_are_no_reason_to_wrap_a_loader():
    """Where spans were lost, the disk is named instead."""
    run = without_steps(lost=59219)
    text = words(screen(run.summary, run))

    assert "59,219 spans" in text
    assert "TMPDIR" in text
    assert "ioprof.batches" not in text


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (61, "Stopped after 61 steps of each rank; the numbers cover what was recorded."),
        (0, "Stopped before a step was completed."),
    ],
)
def test_a_job_that_was_stopped_did_not_fail(steps: int, text: str):
    """After Ctrl-C the report says after how many steps, and nowhere that the job failed."""
    run = sample_run() if steps else without_steps()
    summary = run.summary.replace(steps=run.summary.steps.replace(count=steps))
    lines = screen(with_run(summary, status="interrupted"), run)

    assert lines[0] == text
    assert "FAILED" not in words(lines)


def test_gpu_time_of_causes_and_of_the_rest_is_that_of_the_job():
    """Compute, what is lost to each cause, and the time outside of steps sum to ranks times the
    job's duration."""
    run = sample_run()
    ranks = len(run.summary.steps.per_rank)
    wall_s = 2 * sum(rank.wall_s for rank in run.summary.steps.per_rank) / ranks
    summary = run.summary.replace(ledger=run.summary.ledger.replace(wall_s=wall_s))
    found = gpu_time(with_run(summary, device="cuda", device_basis="measured"))

    assert found is not None
    assert found.job_s == pytest.approx(ranks * wall_s)
    assert found.compute_s + found.lost_s == pytest.approx(found.job_s)
    assert found.lost_s == pytest.approx(sum(found.by_cause.values()) + found.outside_s)
    assert "compute" not in found.by_cause


def test_without_an_accelerator_no_gpu_time_is_lost():
    """A job that computes on the CPU has none."""
    summary = with_run(sample_run().summary, device="cpu", device_basis="measured")
    assert gpu_time(summary) is None


def test_money_is_hours_times_the_price(capsys: pytest.CaptureFixture[str], run_folder: Path):
    """`--price-per-gpu-hour` shows what the job cost and what of it was lost, by cause."""
    assert command("report", run_folder, "--price-per-gpu-hour", "3600") == 0
    text = words(capsys.readouterr().out.splitlines())

    found = re.search(r"cost ([\d.,]+) of ([\d.,]+) lost", text)
    assert found, text
    assert 0 < float(found[1].replace(",", "")) < float(found[2].replace(",", ""))
    assert "3,600.00 per GPU-hour" in text


@pytest.mark.parametrize("price", ["-1", "nan", "inf"])
def test_a_price_is_a_number_that_is_not_negative(
    capsys: pytest.CaptureFixture[str], run_folder: Path, price: str
):
    """What cannot be a price is refused, with what to type."""
    assert command("report", run_folder, f"--price-per-gpu-hour={price}") == 2
    assert "--price-per-gpu-hour 2.50" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------- open


@pytest.fixture
def nothing_to_show_on(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A terminal without a display."""
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.job
def test_open_gives_the_page_to_the_browser(
    tmp_path: Path, run_folder: Path, nothing_to_show_on: pytest.MonkeyPatch
):
    """A browser that the environment names gets the page's address; the page is made first."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o700)
    nothing_to_show_on.setenv("BROWSER", f"{browser} %s")

    assert command("open", run_folder) == 0
    page = run_folder / "report.html"
    assert is_page(page)
    assert f"{page.as_uri()}\n" == (tmp_path / "opened").read_text()


def test_open_without_a_display_says_where_the_page_is(
    capsys: pytest.CaptureFixture[str], run_folder: Path, nothing_to_show_on: pytest.MonkeyPatch
):
    """The path stands alone on standard output; over ssh the command that copies it is printed."""
    nothing_to_show_on.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")

    assert command("open", run_folder) == 0
    printed_lines = capsys.readouterr()
    assert f"{run_folder}/report.html\n" == printed_lines.out
    assert f":{run_folder}/report.html ." in printed_lines.err
    assert "scp " in printed_lines.err


def test_open_takes_a_page_too(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    run_folder: Path,
    nothing_to_show_on: pytest.MonkeyPatch,
):
    """What `report --html` wrote can be opened by its name, as the next command says."""
    assert command("report", run_folder, "--html", tmp_path / "page.html") == 0
    assert f"next: ioprof open {tmp_path}/page.html" in capsys.readouterr().err
    assert command("open", tmp_path / "page.html") == 0
    assert f"{tmp_path}/page.html\n" == capsys.readouterr().out


def test_open_of_what_is_no_run_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """A folder without a run, a file that is no page, and a path that is not there."""
    (tmp_path / "notes.html").write_text("<!doctype html>\n<html></html>")
    for path in (tmp_path, tmp_path / "notes.html", tmp_path / "nowhere"):
        assert command("open", path) == 2
        message = capsys.readouterr().err
        assert 1 == len(message.splitlines())
        assert str(path) in message


def test_report_ends_with_where_the_page_is(capsys: pytest.CaptureFixture[str], run_folder: Path):
    """The path of the page in the run folder, and the command that opens it."""
    assert command("report", run_folder, "--html", run_folder / "report.html") == 0
    capsys.readouterr()
    assert command("report", run_folder) == 0
    assert [
        f"page: {run_folder}/report.html",
        f"next: ioprof open {run_folder}",
    ] == capsys.readouterr().err.splitlines()[-2:]
