// What the selection, or else the view, spent its time on: causes of its steps, bytes by source, the slowest files.

const summary = document.getElementById("summary");

function causesIn(since, until) {
  const spent = new Float64Array(facts.causes.length);
  let steps = 0;
  for (const each of stepsOf.values()) {
    for (let place = Math.max(0, firstAbove(each.start, since, each.count) - 1); place < each.count && each.start[place] < until; place++) {
      const covered = Math.min(until, each.start[place] + each.wall[place]) - Math.max(since, each.start[place]);
      if (covered <= 0) continue;
      steps += 1;
      for (let cause = 0; cause < spent.length; cause++) spent[cause] += covered / each.wall[place] * each.spent[cause][place];
    }
  }
  return { spent, steps, total: spent.reduce((sum, value) => sum + value, 0) };
}

// The same of one step, whatever steps of other ranks ran meanwhile.
function causesOf({ rank, place }) {
  const spent = stepsOf.get(rank).spent.map((column) => column[place]);
  return { spent, steps: 1, total: spent.reduce((sum, value) => sum + value, 0) };
}

// The reads of a stretch: those for batches, with their slowest and the files that took longest, apart from all others.
function readsIn(since, until) {
  const found = { reads: 0, sources: new Map(), files: new Map(), slowest: [], others: 0, otherBytes: 0 };
  for (const track of tracks) {
    if (!track.maker || !track.isReady) continue;
    for (let span = firstAbove(track.reach, since, track.count); span < track.count && track.start[span] < until; span++) {
      if (!READING[track.kind[span]] || track.start[span] + track.took[span] <= since) continue;
      if (track.batch[span] < 0 && facts.hasBatches) {
        found.others += 1;
        found.otherBytes += Math.max(0, track.bytes[span]);
      } else addRead(found, track, span);
    }
  }
  return found;
}

function addRead(found, track, span) {
  found.reads += 1;
  const { source } = facts.classes[track.kind[span]];
  found.sources.set(source, (found.sources.get(source) || 0) + Math.max(0, track.bytes[span]));
  if (track.file[span] >= 0) {
    const sum = found.files.get(track.file[span]) || { took: 0, reads: 0 };
    sum.took += track.took[span];
    sum.reads += 1;
    found.files.set(track.file[span], sum);
  }
  const { slowest } = found;
  if (slowest.length < 5 || track.took[span] > slowest[4].track.took[slowest[4].span]) {
    slowest.push({ track, span });
    slowest.sort((a, b) => b.track.took[b.span] - a.track.took[a.span]);
    slowest.length = Math.min(5, slowest.length);
  }
}

function isAllExact(since, until) {
  return facts.windows.some(([start, end]) => start <= since && end >= until) || !facts.bins;
}

const SUMMARY_REST = 140; // ms after the last change
const FLAME_REST = 200; // ms after the summary: it has up to a thousand parts, which no zoom should wait for
const timers = new Map();

// Shows a part anew when nothing has changed for a while, and nothing in it is pressed: what is made anew loses its click.
function showAtRest(part, rest, show) {
  clearTimeout(timers.get(part));
  timers.set(part, setTimeout(() => { if (part.matches(":active")) showAtRest(part, rest, show); else show(); }, rest));
}

function scheduleSummary() {
  showAtRest(summary, SUMMARY_REST, showSummary);
}

function showSummary() {
  const [since, until] = view.selection || [view.start, view.end];
  const { spent, steps, total } = view.step ? causesOf(view.step) : causesIn(since, until);
  const what = view.step ? `Selection, the causes of step ${stepsOf.get(view.step.rank).step[view.step.place]} of rank ${view.step.rank}` : view.selection ? "Selection" : "In view";
  const heading = make("h3", {}, `${what}: ${durationText(until - since)} from ${momentText(since, Math.max(1, (until - since) / 100))}`);
  if (view.selection) {
    heading.append(
      make("button", { type: "button", class: "plain", onclick: () => showAround(since, until, 0.02) }, "zoom"),
      make("button", { type: "button", class: "plain", onclick: () => { view.selection = null; view.step = null; showDetails(); scheduleHash(); changed(); } }, "clear"),
    );
  }
  const nodes = [heading];
  if (total) nodes.push(causeBar(spent, total), causeList(spent, total, steps));
  if (isAllExact(since, until)) nodes.push(...readNodes(readsIn(since, until)));
  else nodes.push(make("p", { class: "quiet" }, "Reads are named where all spans are in the page: press n for the longest stall, or zoom in there."));
  summary.replaceChildren(...nodes);
  showAtRest(flame.box, FLAME_REST, showFlame);
}

function causeBar(spent, total) {
  const bar = make("div", { class: "stack", "aria-hidden": "true" });
  spent.forEach((ticks, cause) => {
    if (!ticks) return;
    const part = make("i");
    part.style.cssText = `width:${ticks / total * 100}%;background:${theme.causes[cause]}`;
    bar.append(part);
  });
  return bar;
}

function causeList(spent, total, steps) {
  const top = [...spent.keys()].filter((cause) => spent[cause] / total >= 0.005).sort((a, b) => spent[b] - spent[a]).slice(0, 6);
  const nodes = top.map((cause) => {
    const mark = make("i", { class: "swatch" });
    mark.style.background = theme.causes[cause];
    return make("li", {}, mark, `${facts.causes[cause].name.replace("_", " ")} ${percentText(spent[cause] / total)}`);
  });
  return make("ul", { class: "inline" }, ...nodes, make("li", { class: "quiet" }, `${steps.toLocaleString("en")} ${steps === 1 ? "step" : "steps"}`));
}

function readNodes({ reads, sources, files, slowest, others, otherBytes }) {
  const more = others ? [make("p", { class: "quiet" }, `${others.toLocaleString("en")} other ${others === 1 ? "read" : "reads"}, ${bytesText(otherBytes)}: libraries, start-up, checkpoints.`)] : [];
  if (!reads) return [make("p", { class: "quiet" }, others ? "No read for a batch ran here." : "No read ran here."), ...more];
  const parts = [...sources].filter(([, bytes]) => bytes).map(([source, bytes]) => `${bytesText(bytes)} from ${source.replace("_", " ")}`);
  return [
    make("p", {}, `${reads.toLocaleString("en")} ${reads === 1 ? "read" : "reads"}${facts.hasBatches ? " for batches" : ""}${parts.length ? `: ${parts.join(", ")}` : ""}.`),
    ...more,
    make("h4", {}, "Slowest reads"),
    readList(slowest),
    ...fileNodes(files),
  ];
}

// Files that were read more than once here, those that took longest in all.
function fileNodes(files) {
  const top = [...files].filter(([, { reads }]) => reads > 1).sort((a, b) => b[1].took - a[1].took).slice(0, 3);
  if (!top.length) return [];
  return [
    make("h4", {}, "Files that took longest"),
    make("ul", { class: "reads" }, ...top.map(([file, { took, reads }]) => make("li", {}, `${durationText(took)} in ${reads.toLocaleString("en")} reads: ${tables.paths[file] || "a file without a name"}`))),
  ];
}
