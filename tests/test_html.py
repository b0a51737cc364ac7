"""The report as a page: its numbers, its size, and what a real browser makes of it, offline and with hostile names."""

import base64
import hashlib
import html
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import plotly.offline
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_run import BASIS, SampleRun, sample_run, steps_summary

from ioprof.analysis.result import CauseShare
from ioprof.report import figures, lanes, markup, views
from ioprof.report.facts import cause_rows, facts
from ioprof.report.html import page, write_html
from ioprof.schema import CAUSES, SPAN_COLUMNS
from ioprof.trace import Trace, table_schema

LARGEST_PAGE = 2_000_000
PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "<b>bold</b>",
    '<a href="//host">link</a>',
    "</script><script>alert(3)</script>",
    "<!--<script>",
    "%{x}%{customdata}<extra>",
    "red\x1b[31m\u202etfel\r\nnew line",
    "&lt;i&gt;already&lt;/i&gt; \u2028",
    "\udcff\x00",
    "long-" + "y" * 300,
    "''\"\"``${alert(4)}",
)


@cache
def sample() -> SampleRun:
    return sample_run()


def hostile_run() -> SampleRun:
    """The sample with every string replaced by a payload."""
    run = sample_run(steps=12)
    everything = " ".join(PAYLOADS)
    paths = pl.Series("path", [PAYLOADS[number % len(PAYLOADS)].replace("\udcff", "?") for number in range(len(run.trace.files))])
    facts_of_run = dict.fromkeys(("name", "loader", "device", "status", "started"), everything)
    facts_of_run |= {
        "dataset": {"name": everything, "layout": everything, "image": everything},
        "failures": [{"rank": everything, "what": everything}],
    }
    summary = run.summary
    slowest = tuple(
        {**entry, "path": payload, "source": payload} for entry, payload in zip(summary.storage.slowest, PAYLOADS, strict=False)
    )
    summary = replace(
        summary,
        run={**summary.run, **facts_of_run},
        storage=replace(summary.storage, slowest=slowest),
        capture=replace(summary.capture, not_seen=PAYLOADS),
        clocks=replace(summary.clocks, method=everything),
        verdict=replace(summary.verdict, text=everything),
        steps=replace(summary.steps, causes=tuple(replace(entry, reason=everything) for entry in summary.steps.causes)),
    )
    return SampleRun(replace(run.trace, files=run.trace.files.with_columns(paths)), run.steps, summary)


def text_of(page_text: str) -> str:
    """What a page says, without plotly, data and tags."""
    visible = re.sub(r"<(script|style)\b.*?</\1>", "", page_text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", visible)).split())


# ------------------------------------------------------------------------------------------------ the file


def test_the_page_says_the_same_numbers_as_the_summary() -> None:
    said = text_of(page(*_parts(sample())))
    for row in cause_rows(sample().summary.steps.causes):
        assert f"{row.cause} {row.seconds} {row.share} {row.basis}" in said
    for fact in facts(sample().summary):
        assert " ".join(fact.text.split()) in said
    assert f"total {sum(entry.seconds or 0 for entry in sample().summary.steps.causes):,.3f} 100.0" in said
    assert sample().summary.verdict.text in said


def test_every_emulated_cause_wears_the_word() -> None:
    text = page(*_parts(sample()))
    for cause, basis in BASIS.items():
        assert (f'"{cause} (emulated)"' in text) == (basis == "emulated")


def test_only_the_two_scripts_of_the_page_may_run_and_nothing_may_be_fetched() -> None:
    text = page(*_parts(sample()))
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1])
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    assert len(scripts) == 2
    assert policy.startswith(f"default-src 'none'; script-src {' '.join(hashes)};")
    beyond_plotly = text.replace(plotly.offline.get_plotlyjs(), "")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", beyond_plotly)


@given(st.text(st.characters()))
def test_text_cannot_become_markup(text: str) -> None:
    """Whatever a string holds, between tags and in an attribute it reads back as one string with no tag in it."""
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
    text = page(*_parts(hostile_run()))
    assert (
        len(re.findall(r"<script\b", text.replace(plotly.offline.get_plotlyjs(), "")))
        == text.count('<script type="application/json"') + 2
    )
    assert "<img" not in text.replace(plotly.offline.get_plotlyjs(), "")
    for payload in PAYLOADS[:5]:
        assert payload not in text.replace(plotly.offline.get_plotlyjs(), "")


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write_html(*_parts(sample()), path)
    assert path.read_text().endswith("</html>\n")
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        write_html(*_parts(sample_run(steps=3)), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_same_run_gives_the_same_page() -> None:
    assert page(*_parts(sample())) == page(*_parts(sample()))


def long_run(ranks: int = 8, steps: int = 100_000) -> SampleRun:
    """A run of many steps with one stall, dense reads around it, and every path as costly as can be."""
    step = pl.select(step=pl.int_range(steps, dtype=pl.Int64))
    wall = pl.when(pl.col("step") == 77_777).then(9_000_000_000).otherwise(90_000_000 + pl.col("step") * 7919 % 10_000_000)
    timed = (
        step.with_columns(wall=wall)
        .with_columns(end_ns=pl.col("wall").cum_sum())
        .with_columns(start_ns=pl.col("end_ns") - pl.col("wall"))
    )
    table = pl.DataFrame({"rank": pl.Series(range(ranks), dtype=pl.Int32)}).join(timed, how="cross")
    charges = {cause: pl.col("wall") // 11 for cause in CAUSES if cause != "host"} | {
        "host": pl.col("wall") - pl.col("wall") // 11 * 10
    }
    blame = table.with_columns(**{f"{cause}_ns": charge.cast(pl.Int64) for cause, charge in charges.items()}).drop("wall")
    spans = [
        blame.select("rank", "step", "start_ns", "end_ns", kind=pl.lit(kind), pid=1000 + pl.col("rank"))
        for kind in ("step", "wait", "compute")
    ]
    near = blame.filter(
        pl.col("step").is_between(77_700, 77_800) | (pl.col("step") < 20) | pl.col("step").is_between(49_990, 50_010)
    )
    begin = pl.col("start_ns") + pl.col("image") * 200_000
    reads = near.join(pl.select(image=pl.int_range(400, dtype=pl.Int64)), how="cross").select(
        "rank",
        "step",
        start_ns=begin,
        end_ns=begin + 150_000,
        kind=pl.lit("read"),
        pid=2000 + pl.col("rank") * 10 + pl.col("image") % 4,
        file=pl.col("image"),
        bytes=pl.lit(110_000, dtype=pl.Int64),
        source=pl.lit("storage"),
    )
    schema = table_schema(SPAN_COLUMNS)
    whole = pl.concat([*spans, reads], how="diagonal_relaxed")
    whole = whole.with_columns(pl.lit(None).alias(name) for name in schema if name not in whole.columns)
    files = [{"file": number, "path": "<&>画像" * 40 + str(number)} for number in range(400)]
    base = sample_run(steps=1)
    paths = pl.DataFrame(files, schema_overrides={"file": pl.Int64}).with_columns(
        pl.lit(None).alias(name) for name in base.trace.files.columns[2:]
    )
    trace = Trace(base.trace.run, whole.select(pl.col(name).cast(kind) for name, kind in schema.items()), paths)
    return SampleRun(trace, blame, replace(base.summary, steps=steps_summary(blame)))


def test_a_long_run_makes_a_small_page_that_still_shows_the_stall() -> None:
    run = long_run()
    text = page(*_parts(run))
    assert len(text.encode()) - len(plotly.offline.get_plotlyjs().encode()) <= LARGEST_PAGE
    said = text_of(text)
    assert "step 77777 of rank" in said.lower()
    assert "each point is the longest of 100 consecutive steps" in said
    assert "spans drawn as" in said
    assert "ranks 0, " in said.lower()
    rows = views.step_rows(run.steps)
    assert rows["wall_ns"].max() == 9_000_000_000
    for window in views.windows(run.steps, 3):
        assert len(lanes.timeline_of(run.trace, window, views.chosen_ranks(run.steps)).bars) <= lanes.MOST_BARS


FACTS_OF_RUN = (
    "name",
    "device",
    "device_basis",
    "loader",
    "dataset",
    "ranks",
    "workers",
    "batch_size",
    "processes",
    "failures",
    "started",
)
EMPTY: dict[str, dict[str, Any]] = {
    "no step": {"steps": 0},
    "one step of one rank": {"steps": 1, "ranks": 1},
    "no reads": {"images": 0, "steps": 30},
    "killed": {"steps": 5, "run": {"status": "failed", "failures": [{"rank": 0, "what": "was killed by SIGKILL"}]}},
    "nothing known of the run": {"steps": 3, "run": dict.fromkeys(FACTS_OF_RUN)},
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_run_with_something_missing_is_still_a_page_that_says_so(name: str) -> None:
    said = text_of(page(*_parts(sample_run(**EMPTY[name]))))
    expected = {
        "no step": "no step was recorded",
        "one step of one rank": "one rank: nothing to exchange",
        "no reads": "no read was recorded",
        "killed": "the run did not complete (status: failed)",
        "nothing known of the run": "the batch size was not recorded",
    }
    assert expected[name] in said


def test_null_causes_are_drawn_as_nothing_not_as_zero() -> None:
    steps = sample_run(ranks=1, steps=4).steps
    names = [trace.name for trace in figures.time_by_cause(steps).data]
    assert "communication" not in names
    assert "compute" in names


def test_figures_are_labelled_for_notebooks() -> None:
    run = sample()
    window = views.windows(run.steps, 3)[1]
    drawn = figures.timeline(run.trace, window, emulated=True)
    assert {"compute (emulated)", "copy to the device (emulated)", "read from storage"} <= {trace.name for trace in drawn.data}
    assert "rank 0 · compute, emulated" in drawn.layout.yaxis.ticktext
    rate = figures.throughput(run.steps, 24, 919.5, emulated=True)
    assert [trace.name for trace in rate.data] == ["rank 0", "rank 1", "one device alone: 919.5 samples/s, emulated"]
    assert rate.layout.yaxis.title.text == "samples/s of one rank, emulated"


def _parts(run: SampleRun) -> tuple[Any, Any, Any]:
    return run.trace, run.steps, run.summary


# ------------------------------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium on this machine")
    quiet = ("no-first-run", "disable-background-networking", "disable-component-update", "disable-sync", "disable-quic")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", *(f"--{flag}" for flag in quiet)]
        )
        yield running
        running.close()


class Visit:
    """A page opened offline from a file, and everything that it did besides being shown."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1400, "height": 900}, **context)
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.incidents: list[str] = []
        self.page.on("console", lambda message: self.incidents.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.incidents.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.incidents.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self._request)
        self.address = path.as_uri()
        self.page.goto(self.address)
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)

    def until(self, expression: str) -> None:
        """Wait until it holds; polled from here, because the page's policy forbids evaluating strings inside."""
        deadline = time.monotonic() + 20
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            self.page.wait_for_timeout(20)

    def _request(self, request: Any) -> None:
        if request.url != self.address and not request.url.startswith(("data:", "blob:")):
            self.incidents.append(f"request: {request.url}")


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """The sample's page, opened once; a test leaves it as it found it."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html(*_parts(sample()), path)
    visit = Visit(browser, path)
    yield visit
    assert visit.incidents == []
    visit.context.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    visits: list[Visit] = []

    def open_page(run: SampleRun, **context: Any) -> Visit:
        write_html(*_parts(run), tmp_path / "report.html")
        visits.append(Visit(browser, tmp_path / "report.html", **context))
        return visits[-1]

    yield open_page
    for made in visits:
        made.context.close()


def test_the_page_opens_offline_with_title_lanes_legend_and_numbers(opened: Visit) -> None:
    assert opened.page.title() == "resnet50-files-cold: bound by storage – ioprof"
    lanes_shown = opened.page.locator("#chart-timeline .ytick text").all_text_contents()
    assert lanes_shown[:4] == ["rank 0 · reads", "rank 0 · worker 0", "rank 0 · worker 1", "rank 0 · worker 2"]
    legend = opened.page.locator("#chart-timeline .legend button").all_inner_texts()
    assert {"making a batch", "read from storage", "compute (emulated)"} <= set(legend)
    table = opened.page.locator("#time table").first.inner_text()
    assert "100.0" in table
    assert opened.page.locator("#chart-timeline .bars path").count() > 200
    assert opened.incidents == []


def test_hostile_names_do_nothing_in_a_browser(visit: Any) -> None:
    opened = visit(hostile_run())
    assert opened.page.title().startswith("<script>alert(1)</script> ")
    assert opened.page.locator("main img, main b, main script, main section a").count() == 0
    boxes = opened.page.evaluate(HOVER_ALL)
    shown = "\n".join(boxes["texts"])
    for payload in (*PAYLOADS[:4], "%{x}%{customdata}<extra>"):
        assert payload in shown
    assert "\\x1b[31m\\u202etfel\\r\\nnew line" in shown
    assert "&lt;i&gt;already&lt;/i&gt; \\u2028" in shown
    assert boxes["links"] == 0
    assert opened.incidents == []


HOVER_ALL = """async () => {
  const plot = document.querySelector("[data-chart=timeline]");
  const [texts, files] = [[], new Set()];
  const end = plot._fullLayout.xaxis.range[1];
  let links = 0;
  for (const [curve, trace] of plot.data.entries()) {
    if (!trace.name.startsWith("read")) continue;
    for (const [point, details] of trace.customdata.entries()) {
      const file = details.split("<br>")[1];
      if (files.has(file) || trace.base[point] < 0 || trace.base[point] + trace.x[point] > end) continue;
      files.add(file);
      await new Promise((done) => setTimeout(done, 80)); // plotly shows no more than one box in 50 ms
      Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: point }]);
      for (const label of plot.querySelectorAll(".hoverlayer .hovertext")) texts.push(label.textContent);
      links += plot.querySelectorAll(".hoverlayer a, .hoverlayer image").length;
    }
  }
  return { texts, links };
}"""


@pytest.mark.parametrize("name", EMPTY)
def test_a_run_with_something_missing_opens_without_an_error(visit: Any, name: str) -> None:
    assert visit(sample_run(**EMPTY[name])).incidents == []


def test_the_views_of_the_timeline_are_chosen_with_the_keyboard(opened: Visit) -> None:
    note = opened.page.locator("#chart-timeline figcaption:visible")
    assert "like the median step" in note.inner_text()
    opened.page.focus("input[name=view-timeline]:checked")
    opened.page.keyboard.press("ArrowRight")
    opened.page.wait_for_selector("[data-chart=timeline][data-drawn='1']")
    assert "Step 37 of rank 1" in note.inner_text()
    opened.page.keyboard.press("ArrowLeft")
    opened.page.wait_for_selector("[data-chart=timeline][data-drawn='0']")


def test_charts_move_and_zoom_with_the_keyboard(opened: Visit) -> None:
    axis = "document.querySelector('[data-chart=timeline]')._fullLayout.xaxis.range"
    low, high = opened.page.evaluate(axis)
    opened.page.focus("[data-chart=timeline]")
    opened.page.keyboard.press("+")
    opened.page.keyboard.press("ArrowRight")
    moved = opened.page.evaluate(axis)
    assert moved[1] - moved[0] == pytest.approx((high - low) / 2)
    assert moved[0] == pytest.approx(low + (high - low) * 0.3)
    opened.page.keyboard.press("0")
    opened.until(f"{axis}[0] === {low}")


def test_a_legend_entry_hides_its_bars_and_shows_them_again(opened: Visit) -> None:
    bars = opened.page.locator("#chart-timeline .bars path")
    before = bars.count()
    entry = opened.page.locator("#chart-timeline .legend button", has_text="read from storage")
    entry.press("Enter")
    opened.until(f"document.querySelectorAll('#chart-timeline .bars path').length < {before}")
    assert entry.get_attribute("aria-pressed") == "false"
    entry.press("Enter")
    opened.until(f"document.querySelectorAll('#chart-timeline .bars path').length === {before}")


@pytest.mark.parametrize(("scheme", "ink"), [("light", "rgb(26, 32, 39)"), ("dark", "rgb(227, 232, 237)")])
def test_charts_follow_the_colour_scheme_of_the_page(visit: Any, scheme: str, ink: str) -> None:
    opened = visit(sample(), color_scheme=scheme, reduced_motion="reduce")
    fill = opened.page.locator("#chart-timeline .ytick text").first.evaluate("text => getComputedStyle(text).fill")
    assert fill == ink
    assert opened.page.evaluate("getComputedStyle(document.body).color") == ink
    opened.page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    opened.until(f"getComputedStyle(document.querySelector('#chart-timeline .ytick text')).fill !== '{ink}'")
    assert opened.incidents == []


def test_without_a_wide_screen_nothing_sticks_out(opened: Visit) -> None:
    opened.page.set_viewport_size({"width": 420, "height": 800})
    opened.until("document.querySelector('.main-svg').getBoundingClientRect().width < 420")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 420
    opened.page.set_viewport_size({"width": 1400, "height": 900})


def test_no_cause_share_is_lost_between_table_and_chart() -> None:
    causes: list[CauseShare] = list(sample().summary.steps.causes)
    chart = figures.time_by_cause(sample().steps)
    drawn = {trace.name: trace.x[0] for trace in chart.data}
    assert drawn == pytest.approx({entry.cause: (entry.share or 0) * 100 for entry in causes if entry.seconds}, rel=1e-5)


def test_a_chart_can_be_saved_as_an_image_without_the_network(opened: Visit) -> None:
    picture = opened.page.evaluate("Plotly.toImage(document.querySelector('[data-chart=time]'), { format: 'png' })")
    assert picture.startswith("data:image/png;base64,")
    assert opened.incidents == []


def test_no_button_would_send_a_chart_anywhere(opened: Visit) -> None:
    titles = {button.get_attribute("data-title") for button in opened.page.locator(".modebar-btn").all()}
    assert titles <= {"Download plot as a PNG", "Download plot as a png", "Download plot", "Zoom", "Pan", "Reset axes"}
