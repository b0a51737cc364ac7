"""The page of a run in a real browser, offline: what it shows, where its keys and links lead, and
hostile names."""

import base64
import dataclasses
import io
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import screenshot
from page_runs import EMPTY, PAYLOADS, hostile_run, parts_of, sample, sampled_run, stalled_run
from PIL import Image
from repository import ROOT
from sample_run import SampleRun, sample_run

import ioprof
from ioprof.report.page import payload as payloads
from ioprof.report.page.answer import headline
from ioprof.report.page.html import write_html

# ------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        pytest.skip("no chromium on this machine")
    quiet = (
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-quic",
    )
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", *(f"--{flag}" for flag in quiet)],
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
        self.page.on(
            "dialog",
            lambda dialog: (self.incidents.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        self.page.on("request", self._request)
        self.address = path.as_uri()
        self.page.goto(self.address)
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)

    def until(self, expression: str) -> None:
        """Wait until it holds; polled from here, because the page's policy forbids evaluating
        strings inside."""
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
    write_html(*parts_of(sample()), path)
    visit = Visit(browser, path)
    yield visit
    assert visit.incidents == []
    visit.context.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    visits: list[Visit] = []

    def open_page(run: SampleRun, **context: Any) -> Visit:
        write_html(*parts_of(run), tmp_path / "report.html")
        visits.append(Visit(browser, tmp_path / "report.html", **context))
        return visits[-1]

    yield open_page
    for made in visits:
        made.context.close()


@pytest.mark.system(every=4)
def test_the_page_opens_offline_with_title_lanes_and_numbers(opened: Visit) -> None:
    headed = headline(sample().summary)
    assert opened.page.title() == f"resnet50-files-cold: {headed} – ioprof"
    assert opened.page.locator("#labels .heading").all_inner_texts() == ["rank 0", "rank 1"]
    lanes = opened.page.locator("#labels .label").all_inner_texts()
    assert lanes[:8] == [
        "steps",
        "compute",
        "copies",
        "exchange",
        "wait",
        "batches ready",
        "reads",
        "3 workers",
    ]
    assert "100.0" in opened.page.locator("#causes table").first.inner_text()
    assert len(np.unique(_picture(opened))) > 8
    assert opened.incidents == []


@pytest.mark.system(every=4)
def test_hostile_names_do_nothing_in_a_browser(visit: Any) -> None:
    opened = visit(hostile_run())
    assert opened.page.title().startswith("<script>alert(1)</script> ")
    assert opened.page.locator("main img, main b:not(.stack b), main script").count() == 0
    assert opened.page.locator("main a:not([href^='#'])").count() == 0
    shown = ""
    for payload in ("alert(1)", "onerror", "<b>bold", "//host", "%{x}", "red", "&lt;i", "long-"):
        opened.page.fill("#search", payload)
        shown += opened.page.locator("#results").inner_text()
        assert opened.page.locator("#results :is(img, b, a, script)").count() == 0
        opened.page.locator("#results button").last.click()  # a file; functions come before
        opened.until("!document.querySelector('#details').textContent.startsWith('Click')")
        shown += (
            opened.page.locator("#details").inner_text()
            + opened.page.locator("#summary").inner_text()
        )
        assert (
            opened.page.locator("#details img, #details b, #details a, #details script").count()
            == 0
        )
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("0")
    opened.until("document.querySelectorAll('#flame .flame > button').length > 5")
    assert opened.page.locator("#flame :is(img, b, a, script)").count() == 0
    opened.page.locator("#flame .flame > button").nth(3).click()
    opened.page.locator("#labels button[aria-expanded]").first.click()
    for payload in (
        *PAYLOADS[:4],
        "%{x}%{customdata}<extra>",
        "red\\x1b[31m\\u202etfel\\r\\nnew line",
        "&lt;i&gt;already&lt;/i&gt; \\u2028",
    ):
        assert payload in shown
    assert opened.incidents == []


@pytest.mark.system
@pytest.mark.parametrize("name", EMPTY)
def test_a_run_with_something_missing_opens_without_an_error(visit: Any, name: str) -> None:
    assert visit(sample_run(**EMPTY[name])).incidents == []


def shown_seconds(opened: Visit) -> tuple[float, float]:
    """The part of the run that the timeline shows, from the URL's hash."""
    opened.page.wait_for_timeout(700)  # the hash is written when the view rests
    if found := re.search(
        r"#t=([\d.]+),([\d.]+)", opened.page.url + opened.page.evaluate("location.hash")
    ):
        return float(found[1]), float(found[2])
    return 0.0, max(sample().steps["end_ns"]) / 1e9


@pytest.mark.system(every=4)
def test_the_timeline_is_moved_and_zoomed_by_keys_and_the_hash_leads_back(opened: Visit) -> None:
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("0")
    low, high = shown_seconds(opened)
    opened.page.keyboard.press("w")
    opened.page.keyboard.press("d")
    moved = shown_seconds(opened)
    length = moved[1] - moved[0]
    assert length == pytest.approx((high - low) * 0.6, rel=0.02)
    assert moved[0] == pytest.approx(low + (high - low) * 0.2 + length * 0.2, rel=0.05)
    opened.page.evaluate("location.hash = '#t=0.5,0.75'")
    opened.page.wait_for_timeout(500)  # the browser tells of a new hash later
    opened.page.keyboard.press("a")
    opened.until("location.hash.startsWith('#t=0.45,0.7')")
    opened.page.keyboard.press("0")
    assert opened.incidents == []


@pytest.mark.system
def test_the_stall_is_found_by_one_key_and_its_read_is_named(opened: Visit) -> None:
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("n")
    said = opened.page.locator("#said").inner_text()
    assert said.startswith("Stall 1 of ")
    assert "step 37 of rank 1" in said
    opened.until("document.getElementById('summary').textContent.startsWith('Selection')")
    opened.page.locator("#summary .reads button").first.click()
    details = opened.page.locator("#details").inner_text()
    slowest = _slowest_read()
    assert slowest["path"] in details
    assert "batch\n37" in details
    opened.page.keyboard.press("]")
    assert "making a batch" in opened.page.locator("#details h3").inner_text()
    for key in "]]]][":  # to the exchange, of which only the step is known, and back
        opened.page.keyboard.press(key)
    assert "compute" in opened.page.locator("#details h3").inner_text()
    opened.page.keyboard.press("Escape")
    assert opened.page.locator("#details").inner_text().startswith("Click a span")
    opened.page.keyboard.press("0")


def _slowest_read() -> dict[str, Any]:
    spans = (
        sample()
        .trace.spans.filter(pl.col("kind") == "read")
        .sort(pl.col("end_ns") - pl.col("start_ns"), descending=True)
    )
    return (
        spans.head(1)
        .join(sample().trace.files.select("file", "path"), on="file")
        .row(0, named=True)
    )


@pytest.mark.system
def test_search_leads_to_a_step_and_to_a_file(opened: Visit) -> None:
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("41")
    opened.page.keyboard.press("Enter")
    first = sample().steps.filter(step=41, rank=0).row(0, named=True)
    low, high = shown_seconds(opened)
    assert low < first["start_ns"] / 1e9 < first["end_ns"] / 1e9 < high
    opened.page.fill("#search", Path(_slowest_read()["path"]).name)
    opened.page.keyboard.press("Enter")
    assert _slowest_read()["path"] in opened.page.locator("#details").inner_text()
    opened.page.fill("#search", "")
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("Escape")
    opened.page.keyboard.press("0")


@pytest.mark.system(every=4)
def test_a_step_in_a_table_or_a_chart_leads_to_the_timeline(opened: Visit) -> None:
    for place in ("#steps table a", "#steps svg a"):
        link = opened.page.locator(place).first
        step = int(re.search(r"step=(\d+)", link.get_attribute("href"))[1])
        link.dispatch_event("click")
        low, high = shown_seconds(opened)
        rows = sample().steps.filter(step=step)
        assert low <= rows["start_ns"].min() / 1e9 <= high
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("0")
    opened.page.keyboard.press("Escape")


@pytest.mark.system
def test_a_stretch_that_is_selected_says_causes_bytes_reads_and_files(opened: Visit) -> None:
    """The sums are those of the spans in it."""
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("0")
    opened.until("location.hash === '#run' || !location.hash")
    opened.page.locator("#axis").scroll_into_view_if_needed()
    axis = opened.page.locator("#axis").bounding_box()
    for action, share in (("move", 0.3), ("down", 0), ("move", 0.5), ("up", 0)):
        call = getattr(opened.page.mouse, action)
        _ = call(axis["x"] + share * axis["width"], axis["y"] + 8) if action == "move" else call()
    opened.until("document.getElementById('summary').textContent.startsWith('Selection')")
    end = max(sample().trace.spans["end_ns"])
    inside = sample().trace.spans.filter(
        pl.col("kind") == "read", pl.col("start_ns") < 0.5 * end, pl.col("end_ns") > 0.3 * end
    )
    said = opened.page.locator("#summary").inner_text()
    number = int(re.search(r"([\d,]+) reads for batches", said)[1].replace(",", ""))
    assert number == pytest.approx(len(inside), abs=0.02 * len(inside))
    assert "storage" in opened.page.locator("#legend").inner_text()
    assert "Slowest reads" in said
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("Escape")


@pytest.mark.system(every=4)
def test_a_page_of_a_comparison_is_accessible_and_fits_a_phone(
    browser: Any, tmp_path: Path
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    ioprof.compare(
        *(ROOT / "tests" / "data" / "demo" / name for name in ("files", "lmdb"))
    ).write_html(tmp_path / "compare.html")
    page = browser.new_page(viewport={"width": 390, "height": 800}, bypass_csp=True)
    page.goto((tmp_path / "compare.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    found = axe.run(page).response["violations"]
    assert [rule["id"] for rule in found if rule["impact"] in ("serious", "critical")] == []
    page.close()


@pytest.mark.system(every=4)
def test_the_picture_of_the_readme_is_made_by_a_command(browser: Any, tmp_path: Path) -> None:
    """As large as the one that is committed, and small."""
    screenshot.take(browser, ROOT / "tests" / "data" / "shown" / "files", tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").stat().st_size <= screenshot.MOST_BYTES
    with Image.open(tmp_path / "timeline.png") as made, Image.open(screenshot.PICTURE) as committed:
        assert made.width == committed.width
        assert made.height == pytest.approx(committed.height, rel=0.05)


@pytest.mark.system(every=4)
def test_the_pictures_of_the_documents_are_made_by_a_command(browser: Any, tmp_path: Path) -> None:
    """Each of the document is there, small, and of the size that it has now."""
    pytest.importorskip("nbconvert", reason="needs nbconvert")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    shown = re.findall(r"\(pictures/([a-z-]+)\.png\)", (ROOT / "docs" / "pictures.md").read_text())
    assert {*shown} == {path.stem for path in screenshot.FOLDER.iterdir()}
    taken = screenshot.take_all(browser, tmp_path)
    assert {*shown} - {*taken} <= {"site"}  # which `make docs` builds
    for name in taken:
        made, committed = tmp_path / f"{name}.png", screenshot.FOLDER / f"{name}.png"
        assert committed.stat().st_size <= screenshot.MOST_BYTES
        with Image.open(made) as new, Image.open(committed) as old:
            assert new.width == pytest.approx(old.width, rel=0.05)


@pytest.mark.system
def test_a_click_names_the_span_under_it_and_lanes_unfold(opened: Visit) -> None:
    opened.page.locator("#labels button[aria-expanded]").first.click()
    assert opened.page.locator("#labels .label.inner").all_inner_texts() == [
        "worker 0",
        "worker 1",
        "worker 2",
    ]
    box = opened.page.locator("#canvas").bounding_box()
    row = opened.page.locator("#labels .row-label", has_text="compute").first.bounding_box()
    spans = (
        sample()
        .trace.spans.filter(pl.col("kind") == "compute", pl.col("rank") == 0)
        .sort("start_ns")
    )
    middle = (spans["start_ns"][30] + spans["end_ns"][30]) / 2 / max(sample().trace.spans["end_ns"])
    opened.page.mouse.click(box["x"] + middle * box["width"], row["y"] + row["height"] / 2)
    details = opened.page.locator("#details").inner_text()
    assert details.startswith("compute")
    assert f"step\n{spans['step'][30]}" in details
    opened.page.locator("#labels button[aria-expanded]").first.click()
    opened.page.keyboard.press("Escape")


@pytest.mark.system(every=4)
def test_the_page_is_accessible(visit: Any) -> None:
    """axe-core finds nothing serious in either theme: contrast of texts, names of what can be
    pressed, tables, landmarks, ..."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    opened = visit(sample(), color_scheme="light", bypass_csp=True)
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("n")
    opened.until("document.getElementById('summary').textContent.startsWith('Selection')")
    opened.page.locator("#summary .reads button").first.click()
    for scheme, options in (("light", None), ("dark", {"runOnly": ["color-contrast"]})):
        opened.page.emulate_media(color_scheme=scheme)
        found = axe.run(opened.page, options=options).response["violations"]
        serious = [rule["id"] for rule in found if rule["impact"] in ("serious", "critical")]
        assert serious == [], [node["html"][:160] for rule in found for node in rule["nodes"]]


@pytest.mark.system
@pytest.mark.parametrize(
    ("scheme", "ink"), [("light", "rgb(26, 32, 39)"), ("dark", "rgb(227, 232, 237)")]
)
def test_the_page_follows_the_colour_scheme(visit: Any, scheme: str, ink: str) -> None:
    opened = visit(sample(), color_scheme=scheme, reduced_motion="reduce")
    assert opened.page.evaluate("getComputedStyle(document.body).color") == ink
    assert (_picture(opened)[1, 1] > 128) == (scheme == "light")
    opened.page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    opened.until(f"getComputedStyle(document.body).color !== '{ink}'")
    opened.page.wait_for_timeout(200)
    assert (_picture(opened)[1, 1] > 128) != (scheme == "light")
    assert opened.incidents == []


@pytest.mark.system
def test_without_a_wide_screen_nothing_sticks_out(opened: Visit) -> None:
    opened.page.set_viewport_size({"width": 390, "height": 800})
    opened.until("document.getElementById('canvas').getBoundingClientRect().width < 320")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    rows = opened.page.evaluate(
        "[...document.querySelectorAll('.causes tbody tr')].map((row) => row.offsetHeight)"
    )
    assert max(rows) <= 4 * min(rows)  # notes do not become columns of single words
    labels = "[...document.querySelectorAll('#strip-labels .label *')]"
    assert opened.page.evaluate(
        f"{labels}.every((label) => label.offsetWidth <= label.parentNode.clientWidth)"
    )
    opened.page.set_viewport_size({"width": 1400, "height": 900})
    opened.until("document.getElementById('canvas').getBoundingClientRect().width > 900")


@pytest.mark.system(every=4)
def test_the_page_prints_on_white_with_everything_open(visit: Any) -> None:
    opened = visit(sample(), color_scheme="dark")
    printed = opened.context.new_cdp_session(opened.page).send(
        "Page.printToPDF", {"printBackground": True}
    )
    assert opened.page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert opened.page.evaluate("document.documentElement.dataset.printing") == "false"
    colours = (
        "[...document.querySelectorAll('#summary .stack > i')].map((part) =>"
        " part.style.background).join()"
    )
    of_screen = opened.page.evaluate(colours)
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.evaluate(colours) != of_screen
    assert opened.incidents == []


@pytest.mark.system(every=4)
def test_the_thinned_picture_is_like_that_of_all_spans(
    visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structural similarity (Wang et al. 2004) of the timeline drawn from all spans and from bins
    of the run."""
    ndimage = pytest.importorskip("scipy.ndimage", reason="scipy is not installed")
    run = sample_run(steps=1200, ranks=1)
    exact = _picture(visit(run))
    monkeypatch.setattr(payloads, "MOST_SPANS", 1000)
    thinned = _picture(visit(run))
    mean = [ndimage.uniform_filter(each, 7) for each in (exact, thinned)]
    variance = [
        ndimage.uniform_filter(each**2, 7) - average**2
        for each, average in zip((exact, thinned), mean, strict=True)
    ]
    joint = ndimage.uniform_filter(exact * thinned, 7) - mean[0] * mean[1]
    small, large = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    similarity = (2 * mean[0] * mean[1] + small) * (2 * joint + large)
    similarity /= (mean[0] ** 2 + mean[1] ** 2 + small) * (variance[0] + variance[1] + large)
    assert similarity.mean() >= 0.99


def _picture(opened: Visit) -> Any:
    """The canvas as lightness."""
    data = base64.b64decode(
        opened.page.evaluate("document.getElementById('canvas').toDataURL('image/png')").split(",")[
            1
        ]
    )
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("L"), dtype=np.float64)


@pytest.mark.system(every=4)
def test_one_stall_in_100_000_steps_is_seen_at_once_found_by_one_key_and_its_read_named_by_one_click(  # noqa: E501
    visit: Any,
) -> None:
    run = stalled_run()
    assert run.trace.num_spans > payloads.MOST_SPANS
    opened = visit(run)
    row = opened.page.locator("#labels .label", has_text="wait").bounding_box()
    canvas = opened.page.locator("#canvas").bounding_box()
    # near the top of the row, which a share of 3 % does not reach
    line = _picture(opened)[round(row["y"] - canvas["y"]) + 2]
    step = run.steps.filter(step=61_803).row(0, named=True)
    expected = step["start_ns"] / run.steps["end_ns"].max() * len(line)
    dark = np.flatnonzero(np.abs(line - np.median(line)) > 60)
    assert dark.size
    assert np.abs(dark - expected).max() <= 2
    opened.page.keyboard.press("n")
    opened.until("document.getElementById('summary').textContent.startsWith('Selection')")
    assert "step 61803 of rank 0" in opened.page.locator("#said").inner_text()
    assert "300 ms /data/1607.jpg" in " ".join(
        opened.page.locator("#summary .reads").inner_text().split()
    )
    opened.page.locator("#summary .reads button").first.click()
    assert "/data/1607.jpg" in opened.page.locator("#details").inner_text()
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("0")
    opened.page.evaluate("performance.clearMeasures()")
    opened.page.mouse.move(canvas["x"] + canvas["width"] / 3, canvas["y"] + 40)
    for _ in range(30):
        opened.page.mouse.wheel(0, -80)
        opened.page.wait_for_timeout(10)
    frames = opened.page.evaluate(
        "performance.getEntriesByName('frame').map((entry) => entry.duration)"
    )
    assert np.median(frames) <= 50  # 3 ms on an idle machine
    assert opened.incidents == []


# --------------------------------------------------------------------------------- code, and places


@pytest.fixture(scope="module")
def coded(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """The page of the sample with stacks; each test begins with the whole run in view."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html(*parts_of(sampled_run(sample())), path)
    visit = Visit(browser, path)
    yield visit
    assert visit.incidents == []
    visit.context.close()


@pytest.fixture
def code(coded: Visit) -> Visit:
    coded.page.focus("#timeline-view")
    coded.page.keyboard.press("Escape")
    coded.page.keyboard.press("0")
    coded.page.evaluate(
        "document.getElementById('time').scrollIntoView({ behavior: 'instant', block: 'start' })"
    )
    return coded


def samples_of_chart(opened: Visit) -> list[tuple[str, int]]:
    """Label and samples of each bar."""
    return [
        (label, int(number))
        for label, number in opened.page.evaluate(
            "[...document.querySelectorAll('#flame .flame > button')]"
            ".map((bar) => [bar.textContent, bar.dataset.samples])"
        )
    ]


def samples_between(since_ns: float, until_ns: float) -> pl.DataFrame:
    stacks = sampled_run(sample()).trace.stacks
    return stacks.filter(pl.col("time_ns") >= since_ns, pl.col("time_ns") < until_ns)


@pytest.mark.system
def test_the_code_of_a_selected_step_sums_to_its_samples_and_a_click_marks_a_function(
    code: Visit,
) -> None:
    """The step is selected by a click on it; the panel beside has the same shares as the tip."""
    step = sample().steps.filter(rank=0, step=37).row(0, named=True)
    row = code.page.locator("#labels .row-label", has_text="steps").first.bounding_box()
    box = code.page.locator("#canvas").bounding_box()
    end = max(sample().trace.spans["end_ns"])
    x = box["x"] + (step["start_ns"] + step["end_ns"]) / 2 / end * box["width"]
    code.page.mouse.move(x, row["y"] + 4)
    tip = code.page.locator("#tip div").all_inner_texts()
    code.page.mouse.click(x, row["y"] + 4)
    details = code.page.locator("#details").inner_text()
    assert details.startswith("step 37 of rank 0")
    code.until("document.getElementById('summary').textContent.startsWith('Selection')")
    summary = code.page.locator("#summary").inner_text()
    assert len(tip) > 3
    for line in tip[1:4]:
        name, share = line.rsplit(" ", 1)
        assert f"{name} {share}" in summary
        assert re.search(rf"{name}\s+[\d.]+ \S+\s+{share}", details)
    inside = samples_between(step["start_ns"], step["end_ns"])
    code.until(f"document.querySelector('#flame h3').textContent.includes(': {len(inside)} sam')")
    bars = samples_of_chart(code)
    assert sum(number for label, number in bars if label.startswith("rank ")) == len(inside)
    called = inside["stack"].cast(pl.String).str.contains("log_metrics").sum()
    assert sum(number for label, number in bars if label == "log_metrics") == called > 0
    code.page.locator("#flame .flame > button", has_text="log_metrics").first.hover()
    code.page.mouse.down()
    code.page.dispatch_event("#timeline-view", "scroll")
    code.page.wait_for_timeout(500)  # what is pressed is not made anew, which would lose the click
    code.page.mouse.up()
    assert "clear log_metrics" in code.page.locator("#flame h3").inner_text()


@pytest.mark.system
def test_a_function_is_found_by_its_name_and_its_worker_unfolds(code: Visit) -> None:
    code.page.keyboard.press("/")
    code.page.keyboard.type("images.load")
    first = code.page.locator("#results button").first.inner_text()
    assert first.startswith("function Images.load")
    code.page.keyboard.press("Enter")
    assert "Images.load in /job/data.py" in code.page.locator("#said").inner_text()
    assert "worker 0" in code.page.locator("#labels .label.inner").all_inner_texts()
    low, high = shown_seconds(code)
    assert high - low < 0.5
    code.page.locator("#labels button[aria-expanded='true']").first.click()


@pytest.mark.system(every=2)
def test_the_longest_span_of_a_kind_is_found(code: Visit) -> None:
    code.page.fill("#search", "copy to the dev")
    code.page.keyboard.press("Enter")
    assert code.page.locator("#details h3").inner_text().startswith("copy to the device")
    spans = sample().trace.spans.filter(pl.col("kind") == "h2d")
    longest_ms = int((spans["end_ns"] - spans["start_ns"]).max()) / 1e6
    assert f"{longest_ms:.2f} ms" in code.page.locator("#details").inner_text()


@pytest.mark.system(every=2)
def test_a_pinned_row_stays_in_sight_and_a_link_leads_to_its_view(code: Visit) -> None:
    row = code.page.locator("#labels .row-label", has_text="exchange").first
    row.locator(".pin").click()
    assert code.page.locator("#pinned-labels .label").all_inner_texts() == ["exchange"]
    code.page.evaluate("document.getElementById('lanes').scrollTop = 10000")
    pinned, box = (
        code.page.locator(name).bounding_box() for name in ("#pinned-labels .row-label", "#lanes")
    )
    assert box["y"] <= pinned["y"] <= box["y"] + 20
    code.page.locator("#pinned-labels .pin").click()
    assert code.page.locator("#pinned-labels .label").count() == 0
    code.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code.page.evaluate("location.hash = '#t=0.5,0.75'")
    code.page.wait_for_timeout(500)
    code.page.locator("[data-act=c]").click()
    code.until("document.getElementById('said').textContent.includes('link')")
    address = code.page.evaluate("location.href")
    assert "#t=0.5,0.75" in address
    other = code.context.new_page()
    other.goto(address)
    other.wait_for_selector("html[data-ready='true']")
    top = other.locator("#timeline-view").bounding_box()["y"]
    assert -5 <= top < 300
    other.close()


@pytest.mark.system(every=2)
def test_tables_are_sorted_by_their_headings(code: Visit) -> None:
    """Numbers by their size, whatever unit they have; the sum stays last."""
    table = code.page.locator("#causes table").first

    def column() -> list[float]:
        cells = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
        return [float(cell) for cell in cells if cell != "–"]

    before = column()
    table.locator("thead button", has_text="seconds").click()
    assert column() == [*sorted(before[:-1], reverse=True), before[-1]]
    assert table.locator("thead th[aria-sort]").inner_text().startswith("seconds")
    table.locator("thead button", has_text="seconds").click()
    assert column() == [*sorted(before[:-1]), before[-1]]
    assert table.locator("tbody tr").last.inner_text().startswith("total")


@pytest.mark.system(every=2)
def test_a_long_start_up_is_folded_until_it_is_asked_for(visit: Any) -> None:
    """It is not lost: the whole includes it then, and a link into it unfolds it."""
    run = sample()
    later = [pl.col(name) + 5_000_000_000 for name in ("start_ns", "end_ns")]
    moved = dataclasses.replace(run.trace, spans=run.trace.spans.with_columns(later))
    opened = visit(SampleRun(moved, run.steps.with_columns(later), run.summary))
    first_s = run.steps["start_ns"].min() / 1e9 + 5
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("w")
    assert shown_seconds(opened)[0] > first_s
    button = opened.page.locator("#start-up")
    assert button.inner_text() == f"start-up {first_s:.2f} s"
    button.click()
    opened.page.focus("#timeline-view")
    opened.page.keyboard.press("0")
    opened.page.keyboard.press("w")
    assert shown_seconds(opened)[0] < first_s
    button.click()
    opened.page.evaluate("location.hash = '#t=1,2'")
    opened.page.wait_for_timeout(500)
    assert button.get_attribute("aria-pressed") == "true"
    assert opened.incidents == []
