// The panel of the span that was clicked: what it is, and the way from the read to the step.

const details = document.getElementById("details");

function pin(found) {
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

function showDetails() {
  const found = view.pinned;
  if (!found) {
    details.replaceChildren(make("p", { class: "quiet" }, "Click a span to see what it is and which batch and step it belongs to."));
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
    const isOwn = isSame(each, found);
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
  if (start < view.start || end > view.end || end - start < (view.end - view.start) / 500) {
    const room = Math.max(end - start, (view.end - view.start) / 4);
    show(start - room, end + room);
  }
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
