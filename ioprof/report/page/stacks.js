// The samples of Python's stacks: lanes of them, functions by name, and the tree of a stretch of time.
// A node is a function at a line, within its parent; a sample is the innermost node of its thread at a time.

const code = { functions: [], parent: null, of: null, line: null, paths: [], threads: [], chosen: -1 };
const LINE = 14; // CSS pixels of one function in a lane
const MOST_LINES = 7; // of a lane; the innermost function of a longer stack has the last one
const MOST_PERIODS = 3; // a sample stands for the time to the next one, but for no more than so many times the median of these times

async function loadStacks() {
  const columns = await readColumns("stacks");
  if (!columns) return;
  code.functions = JSON.parse(new TextDecoder().decode(columns[0])).map(([name, file, isOwn]) => ({ name, file, isOwn: isOwn === 1, count: 0 }));
  let count = 0;
  for (const byte of columns[1]) count += byte < 128;
  code.parent = readVarints(columns[1], count).map((value) => value - 1);
  code.of = readVarints(columns[2], count);
  code.line = readVarints(columns[3], count);
  code.paths = new Array(count);
  for (let node = 0; node < count; node++) code.paths[node] = code.parent[node] < 0 ? [node] : [...code.paths[code.parent[node]], node];
  facts.threads.forEach((thread, number) => {
    const time = readDifferences(columns[4 + 2 * number], thread.count);
    const node = Int32Array.from(readVarints(columns[5 + 2 * number], thread.count));
    const found = { ...thread, number, levels: levelsOfSamples({ time, node, until: endsOf(time) }), lines: linesOf(node) };
    for (const each of node) for (const step of code.paths[each]) if (code.parent[step] < 0 || code.of[step] !== code.of[code.parent[step]]) code.functions[code.of[step]].count += 1;
    code.threads.push(found);
  });
  const own = code.functions.filter((each) => each.isOwn).sort((a, b) => b.count - a.count);
  own.forEach((each, place) => { each.colour = 1 + place % (facts.code.length - 1); });
}

function endsOf(time) {
  const gaps = time.slice(1).map((next, place) => next - time[place]);
  const longest = (gaps.slice().sort()[gaps.length >> 1] || 0) * MOST_PERIODS;
  return time.map((start, place) => start + (place < gaps.length ? Math.min(gaps[place], longest) : longest / MOST_PERIODS));
}

// So many that 99 of 100 stacks fit.
function linesOf(nodes) {
  const lengths = Array.from(nodes, (node) => code.paths[node].length).sort((a, b) => a - b);
  return Math.min(MOST_LINES, lengths[Math.floor(lengths.length * 0.99)] || 1);
}

// Samples, and for views with more of them than pixels the most frequent one of each 4, 16, 64 ...
function levelsOfSamples(base) {
  const levels = [base];
  for (let size = 4; base.time.length / size >= 256; size *= 4) {
    const count = Math.ceil(base.time.length / size);
    const level = { time: new Float64Array(count), until: new Float64Array(count), node: new Int32Array(count) };
    for (let place = 0; place < count; place++) {
      const first = place * size;
      const last = Math.min(base.time.length, first + size);
      const times = new Map();
      let best = base.node[first];
      for (let sample = first; sample < last; sample++) {
        const node = base.node[sample];
        times.set(node, (times.get(node) || 0) + 1);
        if (times.get(node) > times.get(best)) best = node;
      }
      level.time[place] = base.time[first];
      level.until[place] = base.until[last - 1];
      level.node[place] = best;
    }
    levels.push(level);
  }
  return levels;
}

// The finest level with at most one sample per column, and the places in it that the view shows.
function samplesInView(thread, width) {
  for (const level of thread.levels) {
    const first = Math.max(0, firstAbove(level.time, view.start) - 1);
    const last = firstAbove(level.time, view.end);
    if (last - first <= width || level === thread.levels[thread.levels.length - 1]) return { level, first, last };
  }
  return null;
}

// The node in a line of a lane: of a stack that is longer, the last line has the innermost function.
function nodeInLine(thread, node, line) {
  const path = code.paths[node];
  if (line === thread.lines - 1 && path.length > thread.lines) return node;
  return line < path.length ? path[line] : -1;
}

function paintCode(thread, width, y, height) {
  const { level, first, last } = samplesInView(thread, width);
  const line = height / thread.lines;
  let painted = 0;
  for (let place = first; place < last; place++) {
    const left = Math.max(painted, Math.round((level.time[place] - view.start) / view.perPixel));
    const right = Math.max(left + 1, Math.min(width, Math.round((level.until[place] - view.start) / view.perPixel)));
    if (left >= width || level.until[place] <= view.start) continue;
    for (let at = 0; at < thread.lines; at++) {
      const node = nodeInLine(thread, level.node[place], at);
      if (node < 0) break;
      fillRect(colourOfCode(code.of[node]), left, Math.round(y + at * line), right - left, Math.round(line) - 1);
    }
    painted = right;
  }
}

function colourOfCode(number) {
  const shades = code.chosen < 0 || code.chosen === number ? theme.codePacked : theme.codeFaded;
  return shades[code.functions[number].colour || 0];
}

// Names of functions where there is room, once for neighbours with the same one.
function drawCodeNames(context, thread, y) {
  const { level, first, last } = samplesInView(thread, timeline.width * timeline.scale);
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (let at = 0; at < thread.lines; at++) {
    let run = null;
    const flush = () => run && drawName(context, code.functions[run.of].name, run.x0, run.x1, y + at * LINE, LINE, theme.codeInk[code.functions[run.of].colour || 0]);
    for (let place = first; place < last; place++) {
      const node = nodeInLine(thread, level.node[place], at);
      const x0 = Math.max(0, timeline.xOf(level.time[place]));
      const x1 = Math.min(timeline.width, timeline.xOf(level.until[place]));
      if (run && node >= 0 && code.of[node] === run.of && x0 - run.x1 < 2) run.x1 = x1;
      else {
        flush();
        run = node < 0 ? null : { of: code.of[node], x0, x1 };
      }
    }
    flush();
  }
}

const LETTER = 6.5; // CSS pixels of a wide letter of 11 px

// A name in a box, cut to its width; nothing where less than four letters have room.
function drawName(context, name, x0, x1, y, height, ink) {
  const letters = Math.floor((x1 - x0 - 6) / LETTER);
  if (letters < 4) return;
  context.fillStyle = ink;
  context.fillText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name, x0 + 3, y + height / 2);
}

function sampleAt(thread, moment) {
  const [{ time, until, node }] = thread.levels;
  const place = firstAbove(time, moment) - 1;
  return place >= 0 && moment <= until[place] ? node[place] : -1;
}

const fileName = (path) => path.slice(path.lastIndexOf("/") + 1);
const placeText = (node) => {
  const { name, file, isOwn } = code.functions[code.of[node]];
  return isOwn ? `${name}  ${fileName(file)}:${code.line[node]}` : `${name}  ${file}`;
};

// Time that samples stand for, and how many they are; `nodes` has the number of samples of each innermost node.
function samplesIn(thread, since, until) {
  const [{ time, node }] = thread.levels;
  const nodes = new Map();
  const first = firstAbove(time, since - 0.5);
  const last = firstAbove(time, until - 0.5);
  for (let place = first; place < last; place++) nodes.set(node[place], (nodes.get(node[place]) || 0) + 1);
  return { nodes, count: last - first };
}

// Functions by what called them, with the number of samples in each; the first level are the threads by what they do.
function treeOf(since, until) {
  const root = { label: "all", count: 0, children: new Map(), lines: new Map(), of: -1 };
  for (const thread of code.threads) {
    const { nodes, count } = samplesIn(thread, since, until);
    if (!count) continue;
    const label = ownerOfThread(thread);
    if (!root.children.has(label)) root.children.set(label, { label, count: 0, children: new Map(), lines: new Map(), of: -1 });
    const group = root.children.get(label);
    root.count += count;
    group.count += count;
    for (const [innermost, number] of nodes) {
      let at = group;
      for (const node of code.paths[innermost]) {
        const of = code.of[node];
        if (!at.children.has(of)) at.children.set(of, { label: code.functions[of].name, count: 0, children: new Map(), lines: new Map(), of });
        at = at.children.get(of);
        at.count += number;
        at.lines.set(code.line[node], (at.lines.get(code.line[node]) || 0) + number);
      }
    }
  }
  return root;
}

function ownerOfThread(thread) {
  const owner = thread.rank === null ? "processes" : `rank ${thread.rank}`;
  if (thread.role === "worker") return `${owner}: workers`;
  return thread.tid === thread.pid ? `${owner}: main thread` : `${owner}: other threads`;
}

// ------------------------------------------------------------------------------------- flame graph

const flame = { box: document.getElementById("flame"), path: [] };
const FLAME_LINE = 20;
const LEAST_WIDTH = 0.005; // of the whole: 6 pixels, less than a letter

function showFlame() {
  const [since, until] = view.selection || [view.start, view.end];
  flame.box.hidden = !code.threads.length;
  if (flame.box.hidden) return;
  const whole = treeOf(since, until);
  let root = whole;
  for (const key of flame.path) {
    if (!root.children.has(key)) { flame.path = []; root = whole; break; }
    root = root.children.get(key);
  }
  const many = `${whole.count.toLocaleString("en")} ${whole.count === 1 ? "sample" : "samples"}`;
  const heading = make("h3", {}, `Code ${view.selection ? "in the selection" : "in view"}: ${many} of Python's stacks`);
  if (root !== whole) heading.append(make("button", { type: "button", class: "plain", onclick: () => { flame.path = []; showFlame(); } }, "all"));
  if (code.chosen >= 0) heading.append(make("button", { type: "button", class: "plain", onclick: () => chooseFunction(-1) }, `clear ${code.functions[code.chosen].name.slice(0, 40)}`));
  if (!whole.count) {
    flame.box.replaceChildren(heading, make("p", { class: "quiet" }, "No stack was sampled here."));
    return;
  }
  const chart = make("div", { class: "flame", role: "group", "aria-label": `Functions by what called them, ${many}` });
  let depth = 0;
  const add = (node, left, level, path) => {
    if (node.count / root.count < LEAST_WIDTH) return;
    depth = Math.max(depth, level);
    chart.append(frameOf(node, left, level, path, root.count));
    let begin = left;
    for (const [key, child] of [...node.children].sort((a, b) => b[1].count - a[1].count)) {
      add(child, begin, level + 1, [...path, key]);
      begin += child.count;
    }
  };
  if (root === whole) {
    let begin = 0;
    for (const [key, child] of root.children) {
      add(child, begin, 0, [key]);
      begin += child.count;
    }
  } else add(root, 0, 0, flame.path);
  chart.style.height = `${(depth + 1) * FLAME_LINE}px`;
  flame.box.replaceChildren(heading, chart, make("p", { class: "note" }, flameNote()));
}

function flameNote() {
  const every = facts.samplesEvery > 1 ? ` One sample of ${facts.samplesEvery} is in this page.` : "";
  return `Width: samples. Your functions have colours, those of libraries are grey and folded; a click leads into a function and marks it above.${every}`;
}

function frameOf(node, left, level, path, total) {
  const lines = [...node.lines].filter(([line]) => line).sort((a, b) => b[1] - a[1]).slice(0, 5);
  const where = node.of < 0 ? "" : `\n${code.functions[node.of].file}${lines.length ? `, ${lines.map(([line, count]) => `line ${line}: ${count}`).join(", ")}` : ""}`;
  const share = percentText(node.count / total);
  const text = `${node.label}: ${node.count.toLocaleString("en")} ${node.count === 1 ? "sample" : "samples"}, ${share}`;
  const frame = make("button", { type: "button", title: text + where, "aria-label": text, "data-samples": String(node.count), onclick: () => { flame.path = path; chooseFunction(node.of); } }, node.label);
  const colour = node.of < 0 ? 0 : code.functions[node.of].colour || 0;
  frame.style.cssText = `left:${left / total * 100}%;width:${node.count / total * 100}%;top:${level * FLAME_LINE}px;background:${theme.code[colour]};color:${theme.codeInk[colour]}`;
  if (node.of >= 0 && node.of === code.chosen) frame.className = "chosen";
  return frame;
}

// Marks a function in all lanes, and says where it is.
function chooseFunction(number) {
  code.chosen = number;
  if (number < 0) flame.path = [];
  changed();
  showFlame();
}

// Brings the longest stretch of a function's samples into view; a lane that is folded is unfolded.
function followFunction(number) {
  let best = null;
  for (const thread of code.threads) {
    const [{ time, until, node }] = thread.levels;
    let since = -1;
    for (let place = 0; place < time.length; place++) {
      if (!code.paths[node[place]].some((step) => code.of[step] === number)) { since = -1; continue; }
      if (since < 0 || time[place] > until[place - 1] + 1) since = time[place];
      if (!best || until[place] - since > best.end - best.start) best = { start: since, end: until[place], thread };
    }
  }
  if (!best) return;
  flame.path = [];
  code.chosen = number;
  view.selection = null;
  unfoldThread(best.thread);
  showAround(best.start, best.end, 3);
  scrollToRow(rows.find((row) => row.thread === best.thread));
  const { name, file, count } = code.functions[number];
  say(`${name} in ${file}: ${count.toLocaleString("en")} samples; the longest stretch of them stands for ${durationText(best.end - best.start)}.`);
}
