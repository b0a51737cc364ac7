// The rows of the timeline from top to bottom, for each rank and each host. Workers and counters can be unfolded, and any row can be
// pinned: pinned rows stand first and stay in sight.

const rows = [];
const unfolded = new Set();
const pinnedRows = new Set();
const HEIGHTS = { steps: 34, track: 17, maker: 17, sum: 30, series: 28, heading: 22, counters: 22 };
const GAP = 3;

function isReading(kind) {
  return facts.classes[kind].kind === "read" || facts.classes[kind].kind === "fault";
}

const READING = facts.classes.map((_, kind) => isReading(kind));

function allRows() {
  const found = [];
  const add = (row) => found.push({ ...row, key: `${row.owner}/${row.label}/${row.type}/${row.thread?.number ?? ""}`, height: row.type === "code" ? row.thread.lines * LINE : HEIGHTS[row.type] });
  for (const rank of facts.ranks) {
    const mine = tracks.filter((track) => track.rank === rank);
    const threads = code.threads.filter((thread) => thread.rank === rank);
    const owner = rank === null ? "processes" : `rank ${rank}`;
    add({ type: "heading", label: owner, owner });
    if (stepsOf.has(rank)) add({ type: "steps", label: "steps", rank, owner });
    const makers = mine.filter((track) => track.maker);
    const isOfMaker = (thread) => makers.some((track) => track.pid === thread.pid && !track.isThread && thread.role === "worker");
    const others = threads.filter((thread) => !isOfMaker(thread));
    for (const thread of others.filter((each) => each.pid === each.tid)) add({ type: "code", label: thread.name, thread, owner });
    for (const track of mine.filter((each) => !each.maker)) add({ type: "track", label: track.name, members: [track], rank, owner });
    facts.series.filter((lane) => lane.time && lane.host === null && lane.rank === rank).forEach((lane) => add({ type: "series", label: lane.name, lane, owner }));
    const readers = makers.filter((track) => facts.pairs.some(([lane, kind]) => lane === track.number && READING[kind]));
    if (readers.length) add({ type: "sum", label: "reads", members: readers, chosen: READING, rank, owner });
    if (makers.length > 1) add({ type: "sum", label: `${makers.length} ${makers.every((track) => track.name.startsWith("worker")) ? "workers" : "processes"}`, members: makers, chosen: null, rank, owner, folds: `${rank}` });
    if (makers.length === 1 || unfolded.has(`${rank}`)) {
      for (const track of makers) {
        add({ type: "maker", label: track.name, members: [track], rank, owner });
        for (const thread of threads.filter((each) => each.pid === track.pid && !track.isThread && isOfMaker(each))) add({ type: "code", label: thread.name, thread, owner, isInner: true });
      }
      for (const thread of others.filter((each) => each.pid !== each.tid)) add({ type: "code", label: thread.name, thread, owner, isInner: true });
    }
  }
  for (const host of new Set(facts.series.filter((each) => each.time && each.host !== null).map((lane) => lane.host))) {
    const lanes = facts.series.filter((each) => each.time && each.host === host);
    const folds = `host ${host}`;
    add({ type: "counters", label: `host ${host}: ${lanes.length} counters`, owner: folds, folds });
    if (unfolded.has(folds)) lanes.forEach((lane) => add({ type: "series", label: lane.name, lane, owner: folds }));
  }
  return found;
}

function layOut() {
  const found = allRows();
  rows.length = 0;
  let y = 0;
  const place = (row, isPinned) => {
    rows.push({ ...row, y, isPinned });
    y += row.height + GAP;
  };
  found.filter((row) => pinnedRows.has(row.key)).forEach((row) => place(row, true));
  rows.pinnedHeight = y ? y + GAP : 0;
  y = rows.pinnedHeight;
  found.filter((row) => !pinnedRows.has(row.key)).forEach((row) => place(row, false));
  rows.total = y;
}

// Where a row is drawn while the box is scrolled by `offset`.
function topOf(row, offset) {
  return row.isPinned ? row.y : row.y - offset;
}

function drawLabels(container, pinnedContainer) {
  container.replaceChildren(...rows.filter((row) => !row.isPinned).map(labelOf));
  pinnedContainer.replaceChildren(...rows.filter((row) => row.isPinned).map(labelOf));
  pinnedContainer.style.height = `${Math.max(0, rows.pinnedHeight - GAP)}px`;
}

function labelOf(row) {
  const style = `top:${row.y}px;height:${row.height}px`;
  if (row.type === "heading") return placed(make("div", { class: "heading" }, row.label), style);
  const isInner = row.type === "maker" && tracks.length > 1 || row.isInner;
  const name = row.folds ? foldButton(row) : make("span", { class: isInner ? "label inner" : "label", title: `${row.label} of ${row.owner}` }, row.label);
  const pinned = row.isPinned ? "Unpin" : "Pin";
  const pinButton = make("button", { type: "button", class: "pin", "aria-pressed": String(row.isPinned), "aria-label": `${pinned} ${row.label} of ${row.owner}`, title: `${pinned}: a pinned row stays in sight`, onclick: () => {
    if (!pinnedRows.delete(row.key)) pinnedRows.add(row.key);
    timeline.relayout();
  } });
  return placed(make("div", { class: row.type === "counters" ? "row-label wide" : "row-label" }, name, row.type === "counters" ? null : pinButton), style);
}

function foldButton(row) {
  const isOpen = unfolded.has(row.folds);
  return make("button", { type: "button", class: "label", "aria-expanded": String(isOpen), "aria-label": `${row.label} of ${row.owner}`, onclick: () => {
    if (!unfolded.delete(row.folds)) unfolded.add(row.folds);
    timeline.relayout();
  } }, row.label);
}

function unfoldThread(thread) {
  if (rows.some((row) => row.thread === thread)) return;
  unfolded.add(`${thread.rank}`);
  timeline.relayout();
}

function scrollToRow(row) {
  if (!row || row.isPinned) return;
  const { box } = timeline;
  if (row.y < box.scrollTop + rows.pinnedHeight || row.y + row.height > box.scrollTop + box.clientHeight) box.scrollTop = row.y - rows.pinnedHeight - 60;
}

function placed(node, style) {
  node.style.cssText = style;
  return node;
}

// The row at a height of the canvas, while the box is scrolled by `offset`.
function rowAt(y, offset) {
  const isInPinned = y < rows.pinnedHeight;
  return rows.find((row) => row.isPinned === isInPinned && y >= topOf(row, offset) && y < topOf(row, offset) + row.height + GAP && row.type !== "heading" && row.type !== "counters") || null;
}
