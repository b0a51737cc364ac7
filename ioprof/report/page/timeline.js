// The canvas of the timeline: an axis, rows of which only those in sight are drawn, and what is marked on top.

const timeline = {
  box: document.getElementById("lanes"),
  stage: document.getElementById("stage"),
  canvas: document.getElementById("canvas"),
  axis: document.getElementById("axis"),
  labels: document.getElementById("labels"),
  pinned: document.getElementById("pinned-labels"),
  gutter: 0,
  width: 0,
  scale: 1,
  frames: 0,

  relayout() {
    layOut();
    drawLabels(this.labels, this.pinned);
    this.resize();
  },

  resize() {
    const isNarrow = this.box.clientWidth < 620;
    this.gutter = isNarrow ? 100 : 128;
    this.box.style.setProperty("--gutter", `${this.gutter}px`);
    this.scale = Math.min(2, devicePixelRatio || 1);
    this.stage.style.height = `${rows.total}px`;
    this.width = Math.max(50, this.box.clientWidth - this.gutter);
    const height = theme.isPrinting ? rows.total : Math.min(rows.total, this.box.clientHeight || rows.total);
    sizeCanvas(this.canvas, this.width, height, this.scale);
    sizeCanvas(this.axis, this.width, 30, this.scale);
    this.height = height;
    changed();
  },

  ticksAt(x) {
    return view.start + x / this.width * (view.end - view.start);
  },

  xOf(ticks) {
    return (ticks - view.start) / (view.end - view.start) * this.width;
  },

  draw() {
    if (!this.width) return;
    const began = performance.now();
    const context = this.canvas.getContext("2d");
    const scale = this.scale;
    const width = Math.round(this.width * scale);
    view.perPixel = (view.end - view.start) / width;
    startImage(context, width, Math.round(this.height * scale));
    raster.pixels.fill(packed(theme.card));
    const offset = this.box.scrollTop;
    const top = rows.pinnedHeight;
    const seen = rows.filter((row) => row.isPinned || (row.y + row.height > offset + top && row.y < offset + this.height));
    for (const row of seen.filter((each) => !each.isPinned)) this.paintRow(row, offset, width);
    if (top) fillRect(packed(theme.card), 0, 0, width, Math.round(top * scale));
    for (const row of seen.filter((each) => each.isPinned)) this.paintRow(row, 0, width);
    context.putImageData(raster.image, 0, 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    view.perPixel = (view.end - view.start) / this.width; // in CSS pixels from here on
    context.save();
    context.beginPath();
    context.rect(0, top, this.width, this.height - top);
    context.clip();
    for (const row of seen.filter((each) => !each.isPinned)) this.drawOver(context, row, row.y - offset);
    context.restore();
    for (const row of seen.filter((each) => each.isPinned)) this.drawOver(context, row, row.y);
    if (top) {
      context.fillStyle = theme.quiet;
      context.fillRect(0, top - GAP, this.width, 1);
    }
    this.drawMarks(context, offset);
    context.setTransform(1, 0, 0, 1, 0, 0);
    this.drawAxis();
    this.frames += 1;
    if (this.frames % 1000 === 0) performance.clearMeasures("frame");
    performance.measure("frame", { start: began });
  },

  paintRow(row, offset, width) {
    if (row.type === "heading" || row.type === "counters") return;
    const y = Math.round(topOf(row, offset) * this.scale);
    const height = Math.round(row.height * this.scale);
    fillRect(theme.lanePacked, 0, y, width, height);
    if (row.type === "steps") paintSteps(stepsOf.get(row.rank), view, 0, width, y, height);
    else if (row.type === "code") paintCode(row.thread, width, y, height);
    else if (row.members) paintTracks(row.members, row.chosen || null, view, 0, width, y, height);
  },

  drawOver(context, row, y) {
    if (row.type === "code") drawCodeNames(context, row.thread, y);
    if (row.members?.length === 1) drawSpanNames(context, row.members[0], y, row.height);
    if (row.type === "series") {
      drawSeries(context, row.lane, 0, this.width, y, row.height);
      context.font = "11px system-ui, sans-serif";
      const most = valueText(row.lane.most, row.lane.unit);
      const scale = valueText(row.lane.scale, row.lane.unit);
      const text = most === scale ? `max ${most}` : `max ${most}, scale to ${scale}`;
      const size = context.measureText(text).width + 10;
      context.globalAlpha = 0.86;
      context.fillStyle = theme.lane;
      context.fillRect(this.width - size, y + 1, size, 15);
      context.globalAlpha = 1;
      context.fillStyle = theme.quiet;
      context.textAlign = "right";
      context.textBaseline = "top";
      context.fillText(text, this.width - 5, y + 3);
    }
    if (row.type === "steps") this.drawStepNames(context, stepsOf.get(row.rank), y, row.height);
  },

  drawStepNames(context, steps, y, height) {
    const first = Math.max(0, firstAbove(steps.start, view.start, steps.count) - 1);
    const last = firstAbove(steps.start, view.end, steps.count);
    if (last - first > 400) return;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (let place = first; place < last; place++) {
      const left = Math.max(0, this.xOf(steps.start[place]));
      const room = Math.min(this.width, this.xOf(steps.start[place] + steps.wall[place])) - left;
      const long = `step ${steps.step[place]} · ${durationText(steps.wall[place])}`;
      const text = room > 118 ? long : room > 34 ? String(steps.step[place]) : "";
      if (!text) continue;
      const size = context.measureText(text).width + 8;
      context.fillStyle = theme.card;
      context.globalAlpha = 0.86;
      context.fillRect(left + 2, y + height / 2 - 8, size, 16);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      context.fillText(text, left + 6, y + height / 2 + 0.5);
    }
  },

  drawMarks(context, offset) {
    if (view.selection) {
      const left = this.xOf(view.selection[0]);
      const right = this.xOf(view.selection[1]);
      context.fillStyle = theme.accent;
      context.globalAlpha = 0.1;
      context.fillRect(left, 0, right - left, this.height);
      context.globalAlpha = 1;
      context.fillRect(Math.round(left), 0, 1, this.height);
      context.fillRect(Math.round(right), 0, 1, this.height);
    }
    drawNotExact(context);
    if (view.pinned) drawLineage(context, offset);
  },

  drawAxis() {
    const context = this.axis.getContext("2d");
    const { scale } = this;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, 30);
    const step = axisStep((view.end - view.start) / this.width * 110);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "top";
    context.strokeStyle = theme.line;
    context.fillStyle = theme.quiet;
    for (let tick = Math.ceil(view.start / step) * step; tick <= view.end; tick += step) {
      const x = Math.round(this.xOf(tick)) + 0.5;
      context.beginPath();
      context.moveTo(x, 18);
      context.lineTo(x, 30);
      context.stroke();
      context.textAlign = x < 30 ? "left" : x > this.width - 30 ? "right" : "center";
      context.fillText(momentText(tick, step), Math.min(Math.max(x, 1), this.width - 1), 2);
    }
    context.fillStyle = theme.bad;
    for (const [start, end] of facts.stalls) {
      const x = this.xOf((start + end) / 2);
      if (x < -5 || x > this.width + 5) continue;
      context.beginPath();
      context.moveTo(x - 4, 21);
      context.lineTo(x + 4, 21);
      context.lineTo(x, 29);
      context.fill();
    }
  },
};

const MOST_NAMED = 400; // spans of a lane in view; more have no room

// What spans are, where they have room; of spans within each other the inner ones.
function drawSpanNames(context, track, y, height) {
  if (!track.isReady) return;
  const first = firstAbove(track.reach, view.start, track.count);
  const last = firstAbove(track.start, view.end, track.count);
  if (last - first > MOST_NAMED || !isAllExact(view.start, view.end)) return;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (let span = first; span < last; span++) {
    const x0 = Math.max(0, timeline.xOf(track.start[span]));
    const end = track.start[span] + track.took[span];
    let x1 = Math.min(timeline.width, timeline.xOf(end));
    for (let inner = span + 1; inner < last && track.start[inner] < end; inner++) {
      const from = timeline.xOf(track.start[inner]);
      if (timeline.xOf(track.start[inner] + track.took[inner]) > x0 && from < x1) x1 = Math.max(x0, from);
    }
    if (x1 - x0 > 30) drawName(context, spanName(track, span), x0, x1, y, height, theme.classesInk[track.kind[span]]);
  }
}

function spanName(track, span) {
  const { name, kind } = facts.classes[track.kind[span]];
  if (track.file[span] >= 0) return fileName(tables.paths[track.file[span]] || name);
  if (kind === "fetch" && track.batch[span] >= 0) return `batch ${track.batch[span]}`;
  return track.named[span] >= 0 ? tables.names[track.named[span]] : name;
}

function sizeCanvas(canvas, width, height, scale) {
  const wide = Math.round(width * scale);
  const high = Math.round(height * scale);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

// 1, 2 or 5 times a power of ten, at least `least` ticks.
function axisStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least);
}

// Says where only shares are known, once the view is narrower than their bins.
function drawNotExact(context) {
  if (!facts.bins || view.perPixel >= facts.end / facts.bins) return;
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const [first, last, isExact] of stretchesOf(view, timeline.width)) {
    if (isExact) continue;
    const moment = Number((timeline.ticksAt((first + last) / 2) * facts.tick_ns / 1e9).toPrecision(7));
    const long = `shares of time only; exact spans here: ioprof report RUN --html FILE --around ${moment}s`;
    const text = [long, "shares of time only", "shares"].find((each) => context.measureText(each).width + 20 < last - first);
    if (!text) continue;
    context.fillStyle = theme.quiet;
    context.fillText(text, (first + last) / 2, 12);
  }
}
