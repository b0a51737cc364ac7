// Reads the columns that encoding.py wrote: deflated, in base64, numbers of variable length.

const facts = JSON.parse(document.getElementById("facts").textContent);

async function inflate(name) {
  const node = document.getElementById(`data-${name}`);
  if (!node) return null;
  const text = atob(node.textContent);
  node.remove();
  const packed = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place++) packed[place] = text.charCodeAt(place);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function readColumns(name) {
  const bytes = await inflate(name);
  if (!bytes) return null;
  const head = new DataView(bytes.buffer);
  const columns = [];
  let begin = 4 * (head.getUint32(0, true) + 1);
  for (let place = 0; place < head.getUint32(0, true); place++) {
    const length = head.getUint32(4 * (place + 1), true);
    columns.push(bytes.subarray(begin, begin + length));
    begin += length;
  }
  return columns;
}

function readVarints(bytes, count) {
  const values = new Float64Array(count);
  let at = 0;
  for (let place = 0; place < count; place++) {
    let value = 0;
    let factor = 1;
    let byte = bytes[at++];
    while (byte > 127) {
      value += (byte & 127) * factor;
      factor *= 128;
      byte = bytes[at++];
    }
    values[place] = value + byte * factor;
  }
  return values;
}

function unzigzag(value) {
  return value % 2 ? -(value + 1) / 2 : value / 2;
}

function readDifferences(bytes, count) {
  const values = readVarints(bytes, count);
  let last = 0;
  for (let place = 0; place < count; place++) values[place] = last += unzigzag(values[place]);
  return values;
}

// Missing values are -1.
function readOptional(bytes, count) {
  const values = readVarints(bytes, count);
  let last = 0;
  for (let place = 0; place < count; place++) values[place] = values[place] ? last += unzigzag(values[place] - 1) : -1;
  return values;
}

const tracks = facts.tracks.map((track, number) => ({ ...track, number, count: 0, parts: [], levels: null }));
const tables = { paths: [], sizes: [], names: [] };
const stepsOf = new Map(); // rank -> { count, step, start, wall, spent }; `spent` has the ticks of each cause, which add up to `wall`

async function loadSteps() {
  const columns = await readColumns("steps");
  if (!columns) return;
  const total = facts.steps.reduce((sum, [, count]) => sum + count, 0);
  const step = readDifferences(columns[0], total);
  const gap = readVarints(columns[1], total);
  const wall = readVarints(columns[2], total);
  const start = new Float64Array(total);
  let end = 0;
  for (let place = 0; place < total; place++) {
    start[place] = end + unzigzag(gap[place]);
    end = start[place] + wall[place];
  }
  const causes = columns.slice(3).map((column) => readVarints(column, total).map((parts, place) => parts / facts.parts * wall[place]));
  let begin = 0;
  for (const [rank, count] of facts.steps) {
    const until = begin + count;
    const cut = (column) => column.subarray(begin, until);
    stepsOf.set(rank, { count, step: cut(step), start: cut(start), wall: cut(wall), spent: causes.map(cut) });
    begin = until;
  }
}

async function loadSeries() {
  for (const [number, lane] of facts.series.entries()) {
    const columns = await readColumns(`series${number}`);
    let count = 0;
    for (const byte of columns[0]) count += byte < 128;
    lane.time = readDifferences(columns[0], count);
    lane.value = readVarints(columns[1], count).map((value) => value / 65535 * lane.most);
  }
}

// One block of spans, given to the lanes that have them.
async function loadSpans(number) {
  const columns = await readColumns(`spans${number}`);
  const total = facts.counts[number].reduce((sum, [, count]) => sum + count, 0);
  const gap = readVarints(columns[1], total);
  const took = readVarints(columns[2], total);
  const bytes = readVarints(columns[3], total);
  const [file, batch, step, named] = [4, 5, 6, 7].map((place) => readOptional(columns[place], total));
  for (let place = 0; place < total; place++) {
    bytes[place] = bytes[place] === 0 ? -1 : bytes[place] === 1 ? tables.sizes[file[place]] : bytes[place] - 2;
  }
  let begin = 0;
  for (const [track, count] of facts.counts[number]) {
    const until = begin + count;
    const start = new Float64Array(count);
    let end = 0;
    for (let place = 0; place < count; place++) {
      start[place] = end + unzigzag(gap[begin + place]);
      end = start[place] + took[begin + place];
    }
    const cut = (column) => column.subarray(begin, until);
    tracks[track].parts.push({ start, took: cut(took), kind: cut(columns[0]), bytes: cut(bytes), file: cut(file), batch: cut(batch), step: cut(step), named: cut(named) });
    begin = until;
  }
}

function joined(parts, name, Kind) {
  const whole = new Kind(parts.reduce((sum, part) => sum + part[name].length, 0));
  let begin = 0;
  for (const part of parts) {
    whole.set(part[name], begin);
    begin += part[name].length;
  }
  return whole;
}

// The columns of a lane, and `reach`: the latest end of this span and all before it.
function finishTrack(track) {
  for (const [name, Kind] of [["start", Float64Array], ["took", Float64Array], ["kind", Uint8Array], ["bytes", Float64Array], ["file", Int32Array], ["batch", Float64Array], ["step", Float64Array], ["named", Int32Array]]) {
    track[name] = joined(track.parts, name, Kind);
  }
  track.parts = [];
  track.count = track.start.length;
  track.reach = new Float64Array(track.count);
  let reach = 0;
  for (let place = 0; place < track.count; place++) track.reach[place] = reach = Math.max(reach, track.start[place] + track.took[place]);
}

// The first place in an ascending column whose value is above `limit`.
function firstAbove(column, limit, count = column.length) {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

async function loadTables() {
  const columns = await readColumns("files");
  if (columns) Object.assign(tables, JSON.parse(new TextDecoder().decode(columns[0])));
}
