"""The page of runs of 380,000 and 10 million spans in headless Chromium, offline: size, first
paint, frames, search, every use.

    python benchmarks/page_scale.py
    python benchmarks/page_scale.py --spans 10_000_000 --repeats 5
    python benchmarks/page_scale.py --run RUN         the page of a run that is there

The job is that of `analysis.py`: 8 ranks with 4 workers each, 1,000 files; each of the 40 processes
has a sample of its stack every 20 ms. The page is written by
`ioprof report RUN --html` in a process of its own; `write` is its CPU time, which includes the
analysis. Each repeat opens the page in a new context.

    paint      to the first contentful paint, since the navigation began (Paint Timing of W3C)
    ready      to the end of reading the spans; the page can be used before
    draw       the page's own measure of a frame, while the wheel zooms in and out again; `fastest`:
               the least of all repeats for each frame, which other programs on the machine change
               least
    task       CPU time of the page's main thread per frame of that, all tasks included (thread
               ticks of the DevTools protocol)
    interval   from one frame to the next; without a GPU the browser itself rasters, and gives at
               most 60 frames/s
    find       from Enter to the frame that shows what was found: a step, and a file by its path

Each repeat goes through what a person does: zoom, pan, a search for a step and one for a file, the
longest stall and its slowest read, arrows to its batch, the other theme, a phone's width. It fails
on a message in the console, a request, or a page that is wider than the window. Targets: paint 2 s,
interval 16 ms at the 95th percentile, 40 MB for 10 M spans, 2 MB up to 400,000.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from analysis import make_trace
from full_size import measure
from screenshot import chromium

from ioprof.format.schema import STACK_COLUMNS
from ioprof.format.trace import Trace, table_schema

FILES: Final = 1000
SAMPLED_NS: Final = 20_000_000
_WHEELS: Final = 120
_QUIET: Final = (
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-quic",
)
# The page's policy forbids code from strings inside of it; this is added by the browser before any
# code of the page runs.
_INTERVALS: Final = """
    window.intervals = [];
    let last = 0;
    const next = (now) => {
        if (window.isTimed && last) window.intervals.push(now - last);
        last = now;
        requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
"""


class Opened(NamedTuple):
    """Seconds and milliseconds of one repeat."""

    paint_s: float
    ready_s: float
    draw_ms: list[float]
    task_ms: float
    interval_ms: list[float]
    step_ms: float
    file_ms: float


def write_run(num_spans: int, folder: Path) -> None:
    """The run of `analysis.py`, with paths of its files."""
    trace = make_trace(num_spans)
    known = pl.DataFrame(
        {
            "file": range(FILES),
            "path": [f"/data/train/n{number:08d}.jpg" for number in range(FILES)],
        }
    )
    absent = {
        name: pl.lit(None).cast(kind)
        for name, kind in trace.files.schema.items()
        if name not in known.columns
    }
    Trace(
        trace.run,
        trace.spans,
        known.with_columns(**absent).cast(trace.files.schema).select(trace.files.columns),
        stacks=make_samples(trace),
    ).save(folder)


def make_samples(trace: Trace) -> pl.DataFrame:
    """A sample of each process every 20 ms, of some hundred different stacks."""
    random = np.random.default_rng(0)
    frames = [f"/job/module{number % 9}.py:{number}:function_{number}" for number in range(60)]
    library = [f"/venv/lib/python3.11/site-packages/torch/{name}.py:1:{name}" for name in "abcd"]
    stacks = [
        "\n".join([frames[0], *random.choice(frames, random.integers(1, 6)), *library[:depth]])
        for depth in range(len(library))
        for _ in range(60)
    ]
    processes = trace.spans.select("host", "rank", "pid").drop_nulls().unique(maintain_order=True)
    mains = trace.spans.filter(pl.col("kind") == "step")["pid"].unique().implode()
    times = pl.DataFrame({"time_ns": np.arange(0, trace.last_ns or 0, SAMPLED_NS)})
    table = processes.join(times, how="cross").with_columns(
        tid="pid",
        role=pl.when(pl.col("pid").is_in(mains)).then(pl.lit("rank")).otherwise(pl.lit("worker")),
    )
    chosen = pl.Series("stack", stacks).gather(random.integers(0, len(stacks), len(table)))
    schema = table_schema(STACK_COLUMNS)
    return table.with_columns(chosen).select(
        pl.col(name).cast(kind) for name, kind in schema.items()
    )


def write_page(run: Path, page: Path) -> None:
    """Write it, and print what that took."""
    found = measure("report", run, "--html", page)
    megabytes = page.stat().st_size / 1e6
    print(
        f"page  {megabytes:.2f} MB; write {found.cpu_s:.1f} s of CPU time, peak"
        f" {found.peak_mb:.0f} MB",
        flush=True,
    )


class Visit:
    """A page in a context of its own, and what it did that it should not."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.incidents: list[str] = []
        self.page.on("console", lambda message: self.incidents.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.incidents.append(f"error: {error}"))
        address = path.as_uri()
        wanted = (address, "data:", "blob:")
        self.page.on(
            "request",
            lambda request: (
                request.url.startswith(wanted) or self.incidents.append(f"request: {request.url}")
            ),
        )
        self.page.add_init_script(_INTERVALS)
        self.devtools = self.context.new_cdp_session(self.page)
        self.devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        began = time.perf_counter()
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready='true']", timeout=120_000)
        self.ready_s = time.perf_counter() - began

    def until(self, expression: str) -> None:
        """Wait until it holds; polled from here, because the page's policy forbids evaluating
        strings inside.
        """
        deadline = time.monotonic() + 60
        while not self.page.evaluate(expression):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the page did not come to: {expression}")

    def task_s(self) -> float:
        """CPU time of the main thread so far."""
        return {
            each["name"]: each["value"]
            for each in self.devtools.send("Performance.getMetrics")["metrics"]
        }["TaskDuration"]

    def text(self, selector: str) -> str:
        """The shown text."""
        return str(self.page.locator(selector).inner_text())

    def key(self, key: str) -> None:
        """Press a key on the timeline."""
        self.page.focus("#timeline-view")
        self.page.keyboard.press(key)


def use(browser: Any, path: Path, step: int) -> Opened:
    """What a person does, once; raises RuntimeError where the page does not do it."""
    visit = Visit(browser, path)
    page = visit.page
    paint_s = (
        page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1e3
    )
    draw_ms, task_ms, interval_ms = zoomed(visit)
    visit.key("0")
    visit.key("w")
    visit.key("d")
    visit.until("/^#t=/.test(location.hash)")
    step_ms = searched(visit, f"step {step}")
    file_ms = searched(visit, "/")
    visit.key("Escape")
    visit.key("n")
    visit.until("document.getElementById('summary').textContent.startsWith('Selection')")
    page.locator("#summary .reads button").first.click()
    if "batch" not in visit.text("#details"):
        raise RuntimeError("the slowest read of the longest stall has no batch")
    visit.key("]")
    if "making a batch" not in visit.text("#details h3"):
        raise RuntimeError("no arrow leads from the slowest read to its batch")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    visit.until("document.getElementById('canvas').getBoundingClientRect().width < 320")
    if page.evaluate("document.documentElement.scrollWidth") > 390:
        visit.incidents.append("wider than a phone's window")
    visit.context.close()
    if visit.incidents:
        raise RuntimeError("; ".join(visit.incidents))
    return Opened(paint_s, visit.ready_s, draw_ms, task_ms, interval_ms, step_ms, file_ms)


def zoomed(visit: Visit) -> tuple[list[float], float, list[float]]:
    """Milliseconds of each drawing, CPU milliseconds of a frame, and milliseconds between frames,
    while the wheel turns.
    """
    page = visit.page
    visit.key("0")
    page.locator("#canvas").scroll_into_view_if_needed()
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 40)
    page.wait_for_timeout(300)
    page.evaluate("performance.clearMeasures(); intervals.length = 0; isTimed = true")
    before_s = visit.task_s()
    for number in range(_WHEELS):
        page.mouse.wheel(0, -60 if number < _WHEELS // 2 else 60)
        page.wait_for_timeout(15)
    spent_s = visit.task_s() - before_s
    page.evaluate("isTimed = false")
    drawn = page.evaluate("performance.getEntriesByName('frame').map((entry) => entry.duration)")
    return drawn, 1e3 * spent_s / max(1, len(drawn)), page.evaluate("intervals")


def searched(visit: Visit, text: str) -> float:
    """Milliseconds from Enter to the view of the first that is found."""
    page = visit.page
    visit.key("0")
    visit.key("Escape")
    visit.until("!/^#t=/.test(location.hash)")
    visit.key("/")
    page.fill("#search", text)
    page.wait_for_timeout(200)
    page.evaluate("performance.clearMeasures()")
    began = time.perf_counter()
    page.keyboard.press("Enter")
    visit.until("performance.getEntriesByName('frame').length > 0")
    took_ms = 1e3 * (time.perf_counter() - began)
    visit.until("/^#t=/.test(location.hash)")
    page.fill("#search", "")
    return took_ms


def show(found: list[Opened]) -> None:
    """Print medians, and percentiles of all repeats together."""
    draws, intervals = (
        np.array([each for run in found for each in getattr(run, name)])
        for name in ("draw_ms", "interval_ms")
    )

    def median(name: str) -> float:
        return statistics.median(getattr(run, name) for run in found)

    print(f"open  paint {median('paint_s'):.2f} s, ready {median('ready_s'):.2f} s")
    for name, values in (("draw", draws), ("interval", intervals)):
        middle, high = np.percentile(values, [50, 95])
        print(f"zoom  {name} {middle:.1f} ms, 95th percentile {high:.1f} ms ({len(values)} frames)")
    frames = min(len(run.draw_ms) for run in found)
    middle, high = np.percentile(np.min([run.draw_ms[:frames] for run in found], axis=0), [50, 95])
    print(f"zoom  fastest draw {middle:.1f} ms, 95th percentile {high:.1f} ms")
    print(f"zoom  task {median('task_ms'):.1f} ms of CPU time per frame")
    print(f"find  step {median('step_ms'):.0f} ms, file {median('file_ms'):.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, nargs="+", default=[380_000, 10_000_000])
    parser.add_argument("--run", type=Path, help="a run folder instead")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        write_run(options.spans[0], options.make)
        return
    program = chromium()
    if program is None:
        print("page_scale: not measured; no chromium on this machine")
        return
    from playwright.sync_api import sync_playwright

    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f},"
        f" {options.repeats} repeats"
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for size in [None] if options.run else options.spans:
            run, page = (
                options.run or Path(folder, f"run-{size}"),
                Path(folder, f"report-{size}.html"),
            )
            if size:
                subprocess.run(
                    [sys.executable, __file__, "--make", run, "--spans", str(size)], check=True
                )
            print(f"run   {size or Trace.load(run).num_spans:,} spans")
            write_page(run, page)
            browser = playwright.chromium.launch(
                executable_path=program,
                args=["--no-sandbox", "--disable-gpu", *(f"--{flag}" for flag in _QUIET)],
            )
            show([use(browser, page, 17) for _ in range(options.repeats)])
            browser.close()


if __name__ == "__main__":
    main()
