// Wheel, drag, keys and touch.

const tip = document.getElementById("tip");
const group = document.getElementById("timeline-view");
const drag = { from: null };

function onCanvas(canvas, begin) {
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    begin(event);
  });
  canvas.addEventListener("pointermove", (event) => drag.move?.(event));
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => {
      drag.end?.(event);
      drag.move = drag.end = null;
    });
  }
}

function beginSelection(event) {
  const from = timeline.ticksAt(event.offsetX);
  drag.move = (moved) => {
    const to = timeline.ticksAt(moved.offsetX);
    view.step = null;
    view.selection = Math.abs(timeline.xOf(from) - moved.offsetX) > 3 ? [Math.max(0, Math.min(from, to)), Math.min(facts.end, Math.max(from, to))] : null;
    changed();
  };
  drag.end = scheduleHash;
}

function beginPan(event) {
  const [x, y, start, top] = [event.clientX, event.clientY, view.start, timeline.box.scrollTop];
  const perPixel = (view.end - view.start) / timeline.width;
  let hasMoved = false;
  drag.move = (moved) => {
    hasMoved ||= Math.abs(moved.clientX - x) + Math.abs(moved.clientY - y) > 4;
    if (!hasMoved) return;
    tip.hidden = true;
    show(start - (moved.clientX - x) * perPixel, start - (moved.clientX - x) * perPixel + view.end - view.start);
    if (event.pointerType === "mouse") timeline.box.scrollTop = top - (moved.clientY - y);
  };
  drag.end = (ended) => {
    if (!hasMoved && ended.type === "pointerup") onClick(ended);
  };
}

function onClick(event) {
  const row = rowAt(event.offsetY, timeline.box.scrollTop);
  const moment = timeline.ticksAt(event.offsetX);
  if (row?.type === "steps") {
    const step = stepAt(row.rank, moment);
    if (step >= 0) {
      selectStep(row.rank, step);
      return;
    }
  }
  if (row?.type === "code") {
    const node = nodeAt(row, moment, event.offsetY);
    chooseFunction(node < 0 ? -1 : code.of[node]);
    return;
  }
  pin(pick(row, moment));
}

function nodeAt(row, moment, y) {
  const innermost = sampleAt(row.thread, moment);
  const line = Math.floor((y - topOf(row, timeline.box.scrollTop)) / LINE);
  return innermost < 0 ? -1 : nodeInLine(row.thread, innermost, Math.max(0, Math.min(row.thread.lines - 1, line)));
}

function stepAt(rank, moment) {
  const steps = stepsOf.get(rank);
  const place = firstAbove(steps.start, moment, steps.count) - 1;
  return place >= 0 && moment <= steps.start[place] + steps.wall[place] ? place : -1;
}

function onWheel(event) {
  const isZoom = event.ctrlKey || event.metaKey || group.contains(document.activeElement);
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
    event.preventDefault();
    pan((event.deltaX || event.deltaY) / timeline.width);
  } else if (isZoom) {
    event.preventDefault();
    const lines = event.deltaMode ? 30 : 1;
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines / 400))), timeline.ticksAt(event.offsetX));
  } else {
    say("Click the timeline, then the wheel zooms; or hold Ctrl.");
  }
}

function codeLines(row, moment, y) {
  const node = nodeAt(row, moment, y);
  if (node < 0) return [];
  const innermost = sampleAt(row.thread, moment);
  return [placeText(node), ...(innermost === node ? [] : [`in the end: ${placeText(innermost)}`])];
}

function tipLines(row, moment, y) {
  if (!row) return [];
  if (row.type === "code") return codeLines(row, moment, y);
  if (row.type === "series") return [row.label, valueText(valueAt(row.lane, moment), row.lane.unit)];
  if (row.type === "steps") {
    const place = stepAt(row.rank, moment);
    if (place < 0) return [];
    const steps = stepsOf.get(row.rank);
    return [`step ${steps.step[place]} of rank ${row.rank}: ${durationText(steps.wall[place])}`, ...causesOfStep(steps, place).slice(0, 5).map(([, share, name]) => `${name} ${percentText(share)}`)];
  }
  const found = pick(row, moment);
  if (found) {
    const { track, span } = found;
    const bytes = track.bytes[span] >= 0 ? `, ${bytesText(track.bytes[span])}` : "";
    const lines = [`${facts.classes[track.kind[span]].name}: ${durationText(track.took[span])}${bytes}`];
    if (track.file[span] >= 0) lines.push(fileText(found));
    if (track.batch[span] >= 0) lines.push(`batch ${track.batch[span]}`);
    return lines;
  }
  return row.members.length === 1 ? binLines(row.members[0], moment) : [];
}

// What the bin of a lane holds whose spans are not in the page there.
function binLines(track, moment) {
  if (!track.levels || isAllExact(moment, moment)) return [];
  const level = levelFor(track.levels, view.perPixel);
  const bin = Math.min(level.bins - 1, Math.floor(moment / facts.end * level.bins));
  return track.levels.kinds.map((kind, at) => [level.share[at][bin] / 255, kind, level.longest[at][bin]])
    .filter(([share]) => share).sort((a, b) => b[0] - a[0])
    .map(([share, kind, longest]) => `${facts.classes[kind].name} ${percentText(share)}, longest about ${durationText(codeTicks(longest))}`);
}

function showTip(event) {
  if (drag.move) return;
  const row = rowAt(event.offsetY, timeline.box.scrollTop);
  const lines = tipLines(row, timeline.ticksAt(event.offsetX), event.offsetY);
  tip.hidden = !lines.length;
  if (tip.hidden) return;
  tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
  const box = group.getBoundingClientRect();
  const x = event.clientX - box.left + 14;
  tip.style.left = `${Math.max(0, Math.min(x, box.width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${event.clientY - box.top + 16}px`;
}

// Copies the address of this view. A page that was opened from a file may not be allowed to; then the address stands in the line of status.
async function copyLink() {
  history.replaceState(null, "", hashOf());
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link to this view was copied.");
  } catch {
    say(`The browser does not permit copying; the link to this view: ${location.href}`);
  }
}

const KEYS = {
  w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => pan(-0.2), d: () => pan(0.2),
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
  ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1),
  0: () => show(view.origin, facts.end),
  f: () => view.selection && showAround(...view.selection, 0.02),
};
const PAGE_KEYS = {
  n: () => goToStall(1), p: () => goToStall(-1), "/": () => search.box.focus(),
  c: () => copyLink(), i: () => facts.home && setOrigin(view.origin ? 0 : facts.home),
  "[": () => followChain(-1), "]": () => followChain(1),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (event.key === "Escape") {
    view.selection = view.step = null;
    code.chosen = -1;
    flame.path = [];
    pin(null);
    return;
  }
  const isInside = group.contains(document.activeElement) || document.activeElement === document.body;
  const act = PAGE_KEYS[event.key] || ((isInside && !(document.activeElement === document.body && event.key.startsWith("Arrow"))) && KEYS[event.key]);
  if (!act) return;
  event.preventDefault();
  act();
  if (event.key === "n" || event.key === "p") group.scrollIntoView({ block: "nearest" });
}

function listen() {
  onCanvas(timeline.canvas, (event) => { group.focus({ preventScroll: true }); (event.shiftKey ? beginSelection : beginPan)(event); });
  onCanvas(timeline.axis, beginSelection);
  onCanvas(strip.canvas, (event) => {
    const at = (moved) => strip.ticksAt(moved.offsetX);
    const from = at(event);
    const length = view.end - view.start;
    show(from - length / 2, from + length / 2);
    drag.move = (moved) => {
      if (Math.abs(strip.xOf(at(moved)) - strip.xOf(from)) < 4) return;
      show(Math.min(from, at(moved)), Math.max(from, at(moved)));
    };
  });
  timeline.canvas.addEventListener("pointermove", showTip);
  timeline.canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  timeline.canvas.addEventListener("dblclick", (event) => {
    const found = pick(rowAt(event.offsetY, timeline.box.scrollTop), timeline.ticksAt(event.offsetX));
    if (found) showAround(found.track.start[found.span], found.track.start[found.span] + found.track.took[found.span]);
    else zoom(0.4, timeline.ticksAt(event.offsetX));
  });
  for (const canvas of [timeline.canvas, timeline.axis, strip.canvas]) canvas.addEventListener("wheel", onWheel, { passive: false });
  timeline.box.addEventListener("scroll", changed);
  document.addEventListener("keydown", onKey);
  search.box.addEventListener("input", showResults);
  search.box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && search.found?.length) { search.found[0].go(); closeResults(); group.focus(); }
    if (event.key === "Escape") { closeResults(); group.focus(); }
  });
  for (const button of document.querySelectorAll("[data-act]")) {
    button.addEventListener("click", () => (PAGE_KEYS[button.dataset.act] || KEYS[button.dataset.act])());
  }
  addEventListener("hashchange", () => {
    if (followHash()) group.scrollIntoView({ block: "nearest" });
  });
  startUpButton.hidden = !facts.home;
  startUpButton.textContent = `start-up ${durationText(facts.home)}`;
}
