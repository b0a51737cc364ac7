// The panel of the span that was clicked: what it is, and the way from the read to the step.

const details = document.getElementById("details");

function pin(found) {
  view.step = null;
  view.pinned = found;
  view.lineage = found && lineage(found);
  scheduleHash();
  showDetails();
  changed();
}

function fileText({ track, span }) {
  const file = track.file[span];
  return file < 0 ? null : tables.paths[file] || "a file without a name";
}

function factsOf(found) {
  const { track, span } = found;
  const bytes = track.bytes[span];
  const took = track.took[span];
  const rate = bytes > 0 && took > 0 ? `, ${bytesText(bytes / (took * facts.tick_ns / 1e9))}/s` : "";
  return [
    ["took", durationText(took)],
    ["from", momentText(track.start[span], 1)],
    ["where", `${track.rank === null ? "" : `rank ${track.rank}, `}${track.name}`],
    ["file", fileText(found)],
    ["bytes", bytes < 0 ? null : `${bytesText(bytes)}${rate}`],
    ["name", track.named[span] >= 0 ? tables.names[track.named[span]] : null],
    ["batch", track.batch[span] < 0 ? null : String(track.batch[span])],
    ["step", view.lineage && view.lineage.step >= 0 ? String(view.lineage.step) : null],
  ].filter(([, text]) => text !== null && text !== undefined);
}

// Selects a step: the panels and the code below are its.
function selectStep(rank, place) {
  const steps = stepsOf.get(rank);
  pin(null);
  view.step = { rank, place };
  view.selection = [steps.start[place], steps.start[place] + steps.wall[place]];
  showDetails();
}

// The causes of a step, the greatest first: ticks, share and name.
function causesOfStep(steps, place) {
  return facts.causes.map(({ name }, cause) => [steps.spent[cause][place], steps.spent[cause][place] / steps.wall[place], name.replace("_", " "), cause])
    .filter(([ticks]) => ticks).sort((a, b) => b[0] - a[0]);
}

function showStep({ rank, place }) {
  const steps = stepsOf.get(rank);
  const number = steps.step[place];
  const median = steps.wall.slice().sort()[steps.count >> 1];
  const list = make("dl", { class: "facts" });
  for (const [label, text] of [["took", `${durationText(steps.wall[place])}; the median step ${durationText(median)}`], ["from", momentText(steps.start[place], 1)]]) {
    list.append(make("dt", {}, label), make("dd", {}, text));
  }
  const causes = causesOfStep(steps, place).map(([ticks, share, name, cause]) => {
    const mark = make("i", { class: "swatch" });
    mark.style.background = theme.causes[cause];
    return make("tr", {}, make("th", { scope: "row" }, mark, name), make("td", { class: "number" }, durationText(ticks)), make("td", { class: "number" }, percentText(share)));
  });
  const parts = [make("table", { class: "small" }, make("tbody", {}, ...causes))];
  const [own] = spansOf(rank, (track, span) => track.step[span] === number && track.batch[span] >= 0);
  if (own) {
    view.lineage = lineage(own);
    list.append(make("dt", {}, "batch"), make("dd", {}, String(view.lineage.batch)));
    parts.push(...chainNodes(null), ...slowReadNodes());
  }
  const close = make("button", { type: "button", class: "plain", onclick: () => { view.selection = null; pin(null); } }, "close");
  details.replaceChildren(make("h3", {}, `step ${number} of rank ${rank}`, close), list, ...parts);
}

function showDetails() {
  const found = view.pinned;
  if (!found && view.step) {
    showStep(view.step);
    return;
  }
  if (!found) {
    details.replaceChildren(make("p", { class: "quiet" }, "Click a span or a step to see what it is, and which batch and step it belongs to."));
    return;
  }
  const entry = facts.classes[found.track.kind[found.span]];
  const swatch = make("i", { class: "swatch" });
  swatch.style.background = theme.shade(entry);
  const list = make("dl", { class: "facts" });
  for (const [label, text] of factsOf(found)) list.append(make("dt", {}, label), make("dd", {}, text));
  const close = make("button", { type: "button", class: "plain", onclick: () => pin(null) }, "close");
  details.replaceChildren(make("h3", {}, swatch, entry.name, close), list, ...chainNodes(found), ...slowReadNodes());
}

function chainNodes(found) {
  const { chain } = view.lineage;
  if (chain.length < 2) return [];
  const nodes = chain.map((each) => {
    const entry = facts.classes[each.track.kind[each.span]];
    const isOwn = found !== null && isSame(each, found);
    return make("li", {}, make("button", { type: "button", class: "link", "aria-current": isOwn ? "true" : null, onclick: () => follow(each) }, `${entry.name} ${durationText(each.track.took[each.span])}`));
  });
  return [make("ol", { class: "chain", "aria-label": "From the read to the step; the keys [ and ] lead along" }, ...nodes)];
}

function slowReadNodes() {
  const { reads, batch } = view.lineage;
  if (reads.length < 2) return [];
  const slowest = [...reads].sort((a, b) => b.track.took[b.span] - a.track.took[a.span]).slice(0, 5);
  return [make("h4", {}, `Slowest of ${reads.length.toLocaleString("en")} reads of batch ${batch}`), readList(slowest)];
}

function readList(reads) {
  return make("ul", { class: "reads" }, ...reads.map((each) => make("li", {},
    make("button", { type: "button", class: "link", onclick: () => follow(each) }, durationText(each.track.took[each.span])),
    make("span", {}, ` ${fileText(each) || "no file"}`))));
}

// Pins a span and brings it into view.
function follow(found) {
  const start = found.track.start[found.span];
  const end = start + found.track.took[found.span];
  if (start < view.origin) setOrigin(0);
  if (start < view.start || end > view.end || end - start < (view.end - view.start) / 500) {
    const room = Math.max(end - start, (view.end - view.start) / 4);
    show(start - room, end + room);
  }
  const isShown = (row) => row.members?.includes(found.track) && (!row.chosen || row.chosen[found.track.kind[found.span]]);
  if (!rows.some(isShown)) {
    unfolded.add(`${found.track.rank}`);
    timeline.relayout();
  }
  scrollToRow(rows.find(isShown));
  pin(found);
}

function followChain(by) {
  if (!view.pinned) return false;
  const { chain } = view.lineage;
  const at = chain.findIndex((each) => isSame(each, view.pinned));
  const next = chain[at + by];
  if (next) follow(next);
  return Boolean(next);
}
