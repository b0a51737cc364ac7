// Level of detail: how much of each bin a class took, and its longest span there. The finest level has 16,384 bins at most; each
// further one has half as many. Both are bytes: the share of 255, and 8 × log2 of the duration + 1.

const FINEST_BINS = 16384;
const FINEST_TICKS = facts.end / (facts.bins || FINEST_BINS);

function durationCode(ticks) {
  return Math.min(254, Math.max(1, Math.floor(8 * Math.log2(Math.max(ticks, 1))) + 1));
}

function codeTicks(code) {
  return 2 ** ((code - 1) / 8);
}

function emptyLevel(bins, kinds) {
  const make = () => kinds.map(() => new Uint8Array(bins));
  return { bins, share: make(), longest: make() };
}

function halved(level) {
  const bins = Math.ceil(level.bins / 2);
  const next = emptyLevel(bins, level.share);
  level.share.forEach((share, kind) => {
    const longest = level.longest[kind];
    for (let bin = 0; bin < bins; bin++) {
      const second = 2 * bin + 1 < level.bins ? 2 * bin + 1 : 2 * bin;
      next.share[kind][bin] = (share[2 * bin] + share[second] + 1) >> 1;
      next.longest[kind][bin] = Math.max(longest[2 * bin], longest[second]);
    }
  });
  return next;
}

function withLevels(kinds, finest) {
  const levels = [finest];
  while (levels[levels.length - 1].bins > 256) levels.push(halved(levels[levels.length - 1]));
  return { kinds, levels, order: drawingOrder(kinds) };
}

// Places of the classes, those that lie inside others first.
function drawingOrder(kinds) {
  return kinds.map((_, place) => place).sort((a, b) => facts.classes[kinds[b]].level - facts.classes[kinds[a]].level || a - b);
}

// The levels of a lane from its spans, all of which are in the page.
function levelsOfSpans(track) {
  const kinds = [...new Set(facts.pairs.filter(([lane]) => lane === track.number).map(([, kind]) => kind))];
  const place = new Int16Array(facts.classes.length).fill(-1);
  kinds.forEach((kind, at) => { place[kind] = at; });
  const bins = FINEST_BINS;
  const length = facts.end / bins;
  const busy = kinds.map(() => new Float32Array(bins));
  const finest = emptyLevel(bins, kinds);
  for (let span = 0; span < track.count; span++) {
    const at = place[track.kind[span]];
    const start = track.start[span];
    const end = start + track.took[span];
    const first = Math.min(bins - 1, Math.floor(start / length));
    const last = Math.min(bins - 1, Math.max(first, Math.ceil(end / length) - 1));
    const code = durationCode(track.took[span]);
    for (let bin = first; bin <= last; bin++) {
      busy[at][bin] += Math.min(end, (bin + 1) * length) - Math.max(start, bin * length);
      if (code > finest.longest[at][bin]) finest.longest[at][bin] = code;
    }
  }
  busy.forEach((row, at) => {
    for (let bin = 0; bin < bins; bin++) finest.share[at][bin] = Math.min(255, Math.ceil(row[bin] / length * 255));
  });
  return withLevels(kinds, finest);
}

// The levels that came with the page, because it has not all spans.
async function loadOverview() {
  const columns = await readColumns("overview");
  if (!columns) return;
  for (const track of tracks) {
    const rows = facts.pairs.map((pair, place) => [pair, place]).filter(([[lane]]) => lane === track.number);
    const finest = { bins: facts.bins, share: rows.map(([, place]) => columns[2 * place]), longest: rows.map(([, place]) => columns[2 * place + 1]) };
    track.levels = withLevels(rows.map(([[, kind]]) => kind), finest);
  }
}

// Steps in bins, as shares of the causes.
function levelsOfSteps(steps) {
  const bins = FINEST_BINS;
  const length = facts.end / bins;
  const kinds = facts.causes.map((_, cause) => cause);
  const busy = kinds.map(() => new Float32Array(bins));
  const finest = emptyLevel(bins, kinds);
  const used = kinds.filter((cause) => steps.spent[cause].some((ticks) => ticks));
  for (let place = 0; place < steps.count; place++) {
    const start = steps.start[place];
    const end = start + steps.wall[place];
    const first = Math.min(bins - 1, Math.floor(start / length));
    const last = Math.min(bins - 1, Math.max(first, Math.ceil(end / length) - 1));
    for (let bin = first; bin <= last; bin++) {
      const covered = Math.min(end, (bin + 1) * length) - Math.max(start, bin * length);
      for (const cause of used) busy[cause][bin] += covered * steps.spent[cause][place] / steps.wall[place] * 255;
    }
  }
  for (const cause of used) {
    for (let bin = 0; bin < bins; bin++) finest.share[cause][bin] = Math.min(255, Math.ceil(busy[cause][bin] / length));
  }
  const levels = [finest];
  while (levels[levels.length - 1].bins > 256) levels.push(halved(levels[levels.length - 1]));
  return { kinds, levels, order: used };
}

// The coarsest level whose bins are not wider than `ticks`.
function levelFor(pyramid, ticks) {
  let chosen = pyramid.levels[0];
  for (const level of pyramid.levels) {
    if (facts.end / level.bins > ticks) break;
    chosen = level;
  }
  return chosen;
}
