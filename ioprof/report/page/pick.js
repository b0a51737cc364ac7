// Which span is under the pointer, and which other spans belong to its batch and step.

// The innermost span of a lane at a moment, or null; a few ticks on both sides count for a span that is too short to be hit.
function spanAt(track, moment, slack, chosen) {
  if (!track.isReady) return null;
  let best = null;
  for (let span = firstAbove(track.reach, moment - slack, track.count); span < track.count && track.start[span] <= moment + slack; span++) {
    if (chosen && !chosen[track.kind[span]]) continue;
    if (track.start[span] + track.took[span] < moment - slack) continue;
    const isInside = track.start[span] <= moment && track.start[span] + track.took[span] >= moment;
    const level = facts.classes[track.kind[span]].level;
    const isLong = track.took[span] >= slack;
    const rank = [isInside || !isLong ? 1 : 0, isLong && level > 0 ? 1 : 0, level, track.took[span]];
    if (!best || isGreater(rank, best.rank)) best = { track, span, rank };
  }
  return best && { track, span: best.span };
}

function isGreater(one, other) {
  const place = one.findIndex((value, at) => value !== other[at]);
  return place >= 0 && one[place] > other[place];
}

// The span that a row shows at a place: of several lanes the one that takes longest.
function pick(row, moment) {
  if (!row || !row.members) return null;
  const slack = view.perPixel * 1.5;
  const found = row.members.map((track) => spanAt(track, moment, slack, row.chosen)).filter(Boolean);
  return found.reduce((best, each) => (!best || each.track.took[each.span] > best.track.took[best.span] ? each : best), null);
}

function spansOf(rank, test) {
  const found = [];
  for (const track of tracks) {
    if (track.rank !== rank || !track.isReady) continue;
    for (let span = 0; span < track.count; span++) if (test(track, span)) found.push({ track, span });
  }
  return found;
}

const kindOf = ({ track, span }) => facts.classes[track.kind[span]].kind;
const longestOf = (found) => found.reduce((best, each) => (!best || each.track.took[each.span] > best.track.took[best.span] ? each : best), null);

// From the read by the worker's batch, its delivery and its copy to the compute of the step: what of it is in the page, in order.
function lineage(pinned) {
  const { track, span } = pinned;
  let step = track.step[span];
  let batch = track.batch[span];
  if (batch < 0 && step >= 0) { // of the exchange of a step only the step is known
    const [used] = spansOf(track.rank, (other, place) => other.step[place] === step && other.batch[place] >= 0);
    if (used) batch = used.track.batch[used.span];
  }
  const ofBatch = batch < 0 ? [] : spansOf(track.rank, (other, place) => other.batch[place] === batch);
  if (step < 0) step = ofBatch.map((each) => each.track.step[each.span]).find((number) => number >= 0) ?? -1;
  const ofStep = step < 0 ? [] : spansOf(track.rank, (other, place) => other.step[place] === step && other.batch[place] < 0);
  const all = [...ofBatch, ...ofStep];
  const stages = [["read", "fault"], ["fetch"], ["wait"], ["h2d"], ["compute", "kernel"], ["comm"]];
  const chain = stages.map((kinds) => (kinds.includes(kindOf(pinned)) ? pinned : longestOf(all.filter((each) => kinds.includes(kindOf(each))))));
  return { batch, step, chain: chain.filter(Boolean), reads: ofBatch.filter((each) => isReading(each.track.kind[each.span])) };
}

const isSame = (one, other) => one.track === other.track && one.span === other.span;

function middleOf({ track, span }, offset) {
  const row = rows.find((each) => each.members?.length === 1 && each.members[0] === track)
    || rows.find((each) => each.members?.includes(track) && (!each.chosen || each.chosen[track.kind[span]]));
  if (!row) return null;
  const x0 = timeline.xOf(track.start[span]);
  const x1 = timeline.xOf(track.start[span] + track.took[span]);
  return { x0, x1, y: topOf(row, offset), height: row.height };
}

function drawLineage(context, offset) {
  const places = view.lineage.chain.map((each) => middleOf(each, offset));
  context.strokeStyle = theme.ink;
  context.fillStyle = theme.ink;
  context.lineWidth = 1.5;
  for (let at = 0; at + 1 < places.length; at++) {
    const [from, to] = [places[at], places[at + 1]];
    if (!from || !to) continue;
    const x = from.x1;
    drawArrow(context, x, from.y + from.height / 2, Math.max(to.x0, Math.min(x, to.x1)), to.y + to.height / 2);
  }
  const own = middleOf(view.pinned, offset);
  if (own) {
    context.lineWidth = 2;
    context.strokeRect(own.x0 - 1, own.y - 1, Math.max(3, own.x1 - own.x0) + 2, own.height + 2);
  }
}

function drawArrow(context, x0, y0, x1, y1) {
  const bend = Math.max(14, Math.min(60, Math.abs(y1 - y0) / 2));
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - 7, y1 - 4);
  context.lineTo(x1 - 7, y1 + 4);
  context.fill();
}
