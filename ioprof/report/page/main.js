// Draws what is known at once, then reads the spans block by block, so that the page answers meanwhile.

const pause = () => new Promise((done) => setTimeout(done));

function redraw() {
  timeline.draw();
  strip.draw();
}

function applyTheme() {
  readTheme();
  strip.picture = null;
  showDetails();
  drawLegend();
  changed();
}

function resizeAll() {
  timeline.relayout();
  strip.resize();
}

async function loadAll() {
  await loadSteps();
  for (const steps of stepsOf.values()) steps.levels = levelsOfSteps(steps);
  await loadSeries();
  await loadStacks();
  await loadOverview();
  drawLegend();
  resizeAll();
  await pause();
  await loadTables();
  for (let number = 0; number < facts.counts.length; number++) {
    await loadSpans(number);
    await pause();
  }
  for (const track of tracks) {
    finishTrack(track);
    track.levels = track.levels || levelsOfSpans(track);
    track.isReady = true;
    changed();
    await pause();
  }
}

const PAPER_WIDTH = 690; // of A4 and Letter, in CSS pixels

function forPaper(isPrinting) {
  theme.isPrinting = isPrinting;
  document.querySelectorAll("details").forEach((part) => { if (isPrinting) part.open = true; });
  document.documentElement.dataset.printing = String(isPrinting);
  group.style.width = isPrinting ? `${PAPER_WIDTH}px` : "";
  readTheme();
  resizeAll();
  strip.picture = null;
  drawLegend();
  redraw();
  showSummary();
}

async function start() {
  readTheme();
  onView(redraw);
  onView(scheduleSummary);
  resizeAll();
  showDetails();
  listen();
  if (document.readyState === "loading") await new Promise((done) => document.addEventListener("DOMContentLoaded", done));
  if (facts.wanted) showAround(...facts.wanted, 0.1);
  await loadAll();
  if (followHash()) group.scrollIntoView({ block: "start", behavior: "instant" });
  if (view.pinned) pin(view.pinned);
  showSummary();
  new ResizeObserver(resizeAll).observe(group);
  darkScheme.addEventListener("change", applyTheme);
  addEventListener("beforeprint", () => forPaper(true));
  addEventListener("afterprint", () => forPaper(false));
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  say(`The timeline cannot be drawn: ${error.message}. It needs a browser of 2023 or later.`);
  document.documentElement.dataset.ready = "failed";
});
