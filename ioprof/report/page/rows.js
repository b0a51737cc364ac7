// The rows of the timeline from top to bottom, for each rank and each host; lanes of workers can be unfolded.

const rows = [];
const unfolded = new Set();
const HEIGHTS = { steps: 34, track: 17, maker: 17, sum: 30, series: 28, heading: 22 };
const GAP = 3;

function isReading(kind) {
  return facts.classes[kind].kind === "read" || facts.classes[kind].kind === "fault";
}

const READING = facts.classes.map((_, kind) => isReading(kind));

function layOut() {
  rows.length = 0;
  let y = 0;
  const add = (row) => {
    rows.push({ ...row, y, height: HEIGHTS[row.type] });
    y += HEIGHTS[row.type] + GAP;
  };
  for (const rank of facts.ranks) {
    const mine = tracks.filter((track) => track.rank === rank);
    const owner = rank === null ? "processes" : `rank ${rank}`;
    add({ type: "heading", label: owner });
    if (stepsOf.has(rank)) add({ type: "steps", label: "steps", rank, owner });
    for (const track of mine.filter((each) => !each.maker)) add({ type: "track", label: track.name, members: [track], rank, owner });
    facts.series.filter((lane) => lane.time && lane.host === null && lane.rank === rank).forEach((lane) => add({ type: "series", label: lane.name, lane, owner }));
    const makers = mine.filter((track) => track.maker);
    const readers = makers.filter((track) => facts.pairs.some(([lane, kind]) => lane === track.number && READING[kind]));
    if (readers.length) add({ type: "sum", label: "reads", members: readers, chosen: READING, rank, owner });
    if (makers.length > 1) add({ type: "sum", label: `${makers.length} ${mine.every((track) => !track.maker || track.name.startsWith("worker")) ? "workers" : "processes"}`, members: makers, chosen: null, rank, owner, folds: `${rank}` });
    if (makers.length === 1 || unfolded.has(`${rank}`)) {
      for (const track of makers) add({ type: "maker", label: track.name, members: [track], rank, owner });
    }
  }
  let host = null;
  for (const lane of facts.series.filter((each) => each.time && each.host !== null)) {
    if (lane.host !== host) add({ type: "heading", label: `host ${lane.host}` });
    host = lane.host;
    add({ type: "series", label: lane.name, lane, owner: `host ${host}` });
  }
  rows.total = y;
}

function drawLabels(container) {
  container.replaceChildren(...rows.map((row) => {
    const style = `top:${row.y}px;height:${row.height}px`;
    if (row.type === "heading") return placed(make("div", { class: "heading" }, row.label), style);
    if (!row.folds) return placed(make("div", { class: row.type === "maker" && tracks.length > 1 ? "label inner" : "label", title: row.label }, row.label), style);
    const isOpen = unfolded.has(row.folds);
    const button = make("button", { type: "button", class: "label", "aria-expanded": String(isOpen), "aria-label": `${row.label} of ${row.owner}` }, row.label);
    button.addEventListener("click", () => {
      if (!unfolded.delete(row.folds)) unfolded.add(row.folds);
      timeline.relayout();
    });
    return placed(button, style);
  }));
}

function placed(node, style) {
  node.style.cssText = style;
  return node;
}

function rowAt(y) {
  return rows.find((row) => y >= row.y && y < row.y + row.height + GAP && row.type !== "heading") || null;
}
