// Draws lanes as pixels. A column of pixels is divided by how much of its time each class took, so that what is shorter than a pixel
// has the height of its share. A span of three pixels or more has the whole height; so has one that is much longer than others of
// its class, at any zoom.

const raster = { image: null, pixels: null, width: 0, height: 0 };

function startImage(context, width, height) {
  if (raster.width !== width || raster.height !== height || !raster.image) {
    raster.image = context.createImageData(Math.max(1, width), Math.max(1, height));
    raster.pixels = new Uint32Array(raster.image.data.buffer);
    Object.assign(raster, { width, height });
  }
}

function fillRect(colour, x, y, width, height) {
  const top = Math.max(0, y);
  const bottom = Math.min(raster.height, y + height);
  const left = Math.max(0, x);
  const right = Math.min(raster.width, x + width);
  if (left >= right) return;
  if (right - left < 8) { // writing a few pixels takes less time than calling fill
    for (let row = top * raster.width; row < bottom * raster.width; row += raster.width) {
      for (let at = row + left; at < row + right; at++) raster.pixels[at] = colour;
    }
    return;
  }
  for (let row = top; row < bottom; row++) raster.pixels.fill(colour, row * raster.width + left, row * raster.width + right);
}

const covers = new Map();

// How the columns of a row are covered; `order` are the kinds that it can have. One is used at a time, so that a frame allocates nothing.
function emptyCover(kinds, width, order) {
  let cover = covers.get(kinds);
  if (cover?.width !== width) {
    cover = { kinds, width, share: new Float32Array(kinds * width), solid: new Int16Array(width), long: new Int16Array(width), isFaded: new Uint8Array(width) };
    covers.set(kinds, cover);
  }
  for (const kind of order) cover.share.fill(0, kind * width, (kind + 1) * width);
  cover.solid.fill(-1);
  cover.long.fill(-1);
  cover.isFaded.fill(0);
  return Object.assign(cover, { order, isSteps: false });
}

const BINS_PER_PIXEL = 5; // at least, so that the edges of bins do not show

// Adds the bins of a level to the columns from `first` to `last`, each by its part in the column.
function coverFromLevel(cover, pyramid, view, first, last, factor, chosen) {
  const level = levelFor(pyramid, view.perPixel / BINS_PER_PIXEL);
  const perBin = level.bins / facts.end;
  for (let x = Math.max(first, Math.ceil(-view.start / view.perPixel)); x < last; x++) {
    const left = (view.start + x * view.perPixel) * perBin;
    const right = Math.min(level.bins, left + view.perPixel * perBin);
    if (left >= level.bins) break;
    const to = Math.ceil(right - 1e-6);
    for (let at = 0; at < pyramid.kinds.length; at++) {
      if (chosen && !chosen[at]) continue;
      const share = level.share[at];
      const longest = level.longest[at];
      let sum = 0;
      let code = 0;
      for (let bin = Math.floor(left); bin < to; bin++) {
        if (!share[bin]) continue;
        sum += share[bin] * (Math.min(right, bin + 1) - Math.max(left, bin));
        if (longest[bin] > code) code = longest[bin];
      }
      if (!sum) continue;
      const kind = pyramid.kinds[at];
      cover.share[kind * cover.width + x] += sum / (255 * (right - left)) * factor;
      if (!cover.isSteps && code >= facts.classes[kind].long && codeTicks(code) < 2 * view.perPixel) cover.long[x] = kind;
    }
  }
}

// Adds the spans of a lane that are in the page. With `factor` 1 the lane is drawn alone, and wide spans are solid.
function coverFromSpans(cover, track, view, first, last, factor, chosen) {
  const since = view.start + first * view.perPixel;
  const until = view.start + last * view.perPixel;
  for (let span = firstAbove(track.reach, since, track.count); span < track.count; span++) {
    const start = track.start[span];
    if (start >= until) break;
    const kind = track.kind[span];
    if (chosen && !chosen[kind]) continue;
    const left = (start - view.start) / view.perPixel;
    const right = left + track.took[span] / view.perPixel;
    if (right <= first) continue;
    if (factor === 1 && right - left >= 3) {
      const from = Math.max(first, Math.round(left));
      const to = Math.min(last, Math.max(Math.round(right), from + 1));
      for (let x = from; x < to; x++) {
        cover.solid[x] = kind;
        for (const other of cover.order) cover.share[other * cover.width + x] = 0;
      }
      continue;
    }
    const from = Math.max(first, Math.floor(left));
    const to = Math.min(last, Math.ceil(right));
    for (let x = from; x < Math.max(to, from + 1) && x < last; x++) {
      cover.share[kind * cover.width + x] += Math.max(0, Math.min(right, x + 1) - Math.max(left, x)) * factor;
    }
    if (right - left < 2 && durationCode(track.took[span]) >= facts.classes[kind].long && from < last) cover.long[from] = kind;
  }
}

function paintCover(cover, order, colours, fadedColours, y, height) {
  const { width } = cover;
  for (let x = 0; x < width; x++) {
    const shades = cover.isFaded[x] ? fadedColours : colours;
    let used = 0;
    let bottom = y + height;
    for (const kind of order) {
      let share = cover.share[kind * width + x];
      if (!share) continue;
      if (!cover.isSteps && facts.classes[kind].level === 0) share -= used; // what lies inside it is drawn already
      share = Math.min(share, 1 - used);
      if (share <= 0) continue;
      used += share;
      const top = y + height - Math.round(used * height);
      if (top < bottom) column(shades[kind], x, top, bottom);
      bottom = Math.min(bottom, top);
    }
    if (cover.solid[x] >= 0 && bottom > y) column(shades[cover.solid[x]], x, y, bottom);
    if (cover.long[x] >= 0) {
      column(shades[cover.long[x]], x, y, y + height);
      if (x + 1 < width) column(shades[cover.long[x]], x + 1, y, y + height);
      x += 1;
    }
  }
}

function column(colour, x, top, bottom) {
  const { pixels, width } = raster;
  const end = Math.min(bottom, raster.height) * width;
  for (let place = Math.max(0, top) * width + x; place < end; place += width) pixels[place] = colour;
}

// The stretches of columns in which all spans are in the page, and those in which only the levels are.
function stretchesOf(view, width) {
  const found = [];
  let at = 0;
  for (const [since, until] of facts.windows) {
    const left = Math.max(at, Math.min(width, Math.ceil((since - view.start) / view.perPixel)));
    const right = Math.max(left, Math.min(width, Math.floor((until - view.start) / view.perPixel)));
    if (right <= left) continue;
    if (left > at) found.push([at, left, false]);
    found.push([left, right, true]);
    at = right;
  }
  if (at < width) found.push([at, width, false]);
  return found;
}

const FEW_SPANS = 3000; // of a row are drawn one by one, however short they are

function areFew(members, view, width) {
  const until = view.start + width * view.perPixel;
  return members.reduce((sum, track) => sum + firstAbove(track.start, until, track.count) - firstAbove(track.reach, view.start, track.count), 0) <= FEW_SPANS;
}

// A lane, or several as one: `members` of which each has its share of the height.
function paintTracks(members, chosen, view, x0, width, y, height) {
  const factor = 1 / members.length;
  const cover = emptyCover(facts.classes.length, width, classOrder(members));
  const isFine = members.every((track) => track.isReady) && (view.perPixel < FINEST_TICKS || (!facts.bins && areFew(members, view, width)));
  const parts = isFine ? stretchesOf(view, width) : [[0, width, false]];
  for (const [first, last, isExact] of parts) {
    for (const track of members) {
      if (isExact) coverFromSpans(cover, track, view, first, last, factor, chosen);
      else if (track.levels) coverFromLevel(cover, track.levels, view, first, last, factor, chosen && track.levels.kinds.map((kind) => chosen[kind]));
    }
    if (isFine && !isExact) cover.isFaded.fill(1, first, last);
  }
  shifted(cover, cover.order, theme.classesPacked, theme.classesFaded, x0, y, height);
}

const CLASS_ORDER = drawingOrder(facts.classes.map((_, kind) => kind));
const classOrders = new WeakMap();

// The classes that spans of these lanes have, in the order in which they are drawn.
function classOrder(members) {
  if (!classOrders.has(members)) {
    const lanes = new Set(members.map((track) => track.number));
    const kinds = new Set(facts.pairs.filter(([lane]) => lanes.has(lane)).map(([, kind]) => kind));
    classOrders.set(members, CLASS_ORDER.filter((kind) => kinds.has(kind)));
  }
  return classOrders.get(members);
}

// Paints into the image with its left edge at `x0`.
function shifted(cover, order, colours, fadedColours, x0, y, height) {
  const { pixels } = raster;
  raster.pixels = pixels.subarray(x0);
  paintCover(cover, order, colours, fadedColours, y, height);
  raster.pixels = pixels;
}

function paintSteps(steps, view, x0, width, y, height) {
  const { order } = steps.levels;
  const cover = emptyCover(facts.causes.length, width, order);
  cover.isSteps = true;
  const until = view.start + width * view.perPixel;
  const inSight = firstAbove(steps.start, until, steps.count) - firstAbove(steps.start, view.start, steps.count);
  if (view.perPixel >= FINEST_TICKS && inSight > width / 4) {
    coverFromLevel(cover, steps.levels, view, 0, width, 1, null);
    shifted(cover, order, theme.causesPacked, theme.causesPacked, x0, y, height);
    return;
  }
  for (let place = Math.max(0, firstAbove(steps.start, view.start, steps.count) - 1); place < steps.count && steps.start[place] < until; place++) {
    const left = (steps.start[place] - view.start) / view.perPixel;
    const right = left + steps.wall[place] / view.perPixel;
    const from = Math.max(0, Math.round(left));
    const to = Math.min(width, Math.max(from + 1, Math.round(right) - (right - left > 4 ? 1 : 0)));
    for (let x = from; x < to; x++) {
      for (const cause of order) cover.share[cause * width + x] = steps.spent[cause][place] / steps.wall[place];
    }
  }
  shifted(cover, order, theme.causesPacked, theme.causesPacked, x0, y, height);
}
