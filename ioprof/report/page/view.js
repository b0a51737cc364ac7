// What part of the run is shown: `start` and `end` in ticks. It stands in the URL's hash, so that a link leads to a moment.

// `origin` is the left edge of the whole: the start of the first step where the start-up is long and folded, else 0.
const view = { start: facts.home, end: facts.end, origin: facts.home, perPixel: 1, selection: null, pinned: null, step: null };
const LEAST_TICKS = 20; // 2 µs over the whole width
const watchers = [];

function onView(watcher) {
  watchers.push(watcher);
}

let isScheduled = false;

function changed() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    for (const watcher of watchers) watcher();
  });
}

function show(start, end) {
  const length = Math.max(LEAST_TICKS, Math.min(end - start, facts.end - view.origin));
  const middle = (start + end) / 2;
  view.start = Math.max(view.origin, Math.min(middle - length / 2, facts.end - length));
  view.end = view.start + length;
  scheduleHash();
  changed();
}

// Zooms by `factor` around a moment, which keeps its place.
function zoom(factor, moment = (view.start + view.end) / 2) {
  const length = Math.max(LEAST_TICKS, Math.min((view.end - view.start) * factor, facts.end - view.origin));
  const share = (moment - view.start) / (view.end - view.start);
  show(moment - share * length, moment + (1 - share) * length);
}

function pan(share) {
  const by = (view.end - view.start) * share;
  show(view.start + by, view.end + by);
}

// Shows the start-up as well, or folds it again.
function setOrigin(origin) {
  if (origin === view.origin) return;
  const isWhole = view.start <= view.origin && view.end >= facts.end;
  view.origin = origin;
  strip.picture = null;
  startUpButton.setAttribute("aria-pressed", String(!origin));
  show(isWhole ? origin : view.start, view.end);
}

const startUpButton = document.getElementById("start-up");

// Shows a stretch with room on both sides.
function showAround(start, end, room = 0.6) {
  if (start < view.origin) setOrigin(0);
  const length = Math.max(end - start, LEAST_TICKS);
  show(start - room * length, end + room * length);
}

let hashTimer = 0;

function scheduleHash() {
  clearTimeout(hashTimer);
  hashTimer = setTimeout(() => history.replaceState(null, "", hashOf()), 300);
}

function hashOf() {
  const seconds = (ticks) => String(Number((ticks * facts.tick_ns / 1e9).toFixed(7)));
  const isWhole = view.start <= view.origin && view.end >= facts.end;
  const pinned = view.pinned ? `&span=${view.pinned.track.number}.${view.pinned.span}` : "";
  const selected = view.selection ? `&from=${seconds(view.selection[0])}&to=${seconds(view.selection[1])}` : "";
  return isWhole && !pinned && !selected ? "#run" : `#t=${seconds(view.start)},${seconds(view.end)}${selected}${pinned}`;
}

// Follows a hash that names a moment or a step; true if it did.
function followHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const ticks = (text) => Number(text) * 1e9 / facts.tick_ns;
  if (given.has("step")) return goToStep(Number(given.get("step")), given.has("rank") ? Number(given.get("rank")) : null);
  const [start, end] = (given.get("t") || "").split(",").map(ticks);
  if (!(end > start)) return false;
  const [from, to] = [ticks(given.get("from")), ticks(given.get("to"))];
  view.selection = given.has("from") && to > from ? [from, to] : null;
  const [track, span] = (given.get("span") || "").split(".").map(Number);
  if (span < (tracks[track]?.count ?? 0)) view.pinned = { track: tracks[track], span };
  if (start < view.origin) setOrigin(0);
  show(start, end);
  return true;
}

function goToStep(number, rank) {
  for (const [owner, steps] of stepsOf) {
    if (rank !== null && rank !== owner) continue;
    const place = steps.step.indexOf(number);
    if (place < 0) continue;
    selectStep(owner, place);
    showAround(...view.selection);
    return true;
  }
  return false;
}
