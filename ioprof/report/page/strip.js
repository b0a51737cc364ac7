// The strip above the timeline: the whole run, and the part of it that the timeline shows.

const strip = {
  canvas: document.getElementById("strip"),
  ROW: 27,
  GAP: 5,

  resize() {
    this.gutter = timeline.gutter;
    this.width = timeline.width;
    this.height = facts.strip.length * (this.ROW + this.GAP);
    sizeCanvas(this.canvas, this.width, this.height, timeline.scale);
    this.canvas.style.marginLeft = `${this.gutter}px`;
    const labels = document.getElementById("strip-labels");
    labels.style.width = `${this.gutter}px`;
    labels.replaceChildren(...facts.strip.map((row, place) => placed(
      make("div", { class: "label" }, make("span", {}, row.name), make("small", {}, this.scaleText(row))),
      `top:${place * (this.ROW + this.GAP)}px;height:${this.ROW}px`,
    )));
    this.picture = null;
  },

  scaleText(row) {
    return row.unit === "ratio" && row.most > 0.999 ? "0–100%" : `0–${valueText(row.most, row.unit)}`;
  },

  ticksAt(x) {
    return view.origin + x / this.width * (facts.end - view.origin);
  },

  xOf(ticks) {
    return (ticks - view.origin) / (facts.end - view.origin) * this.width;
  },

  // The rows do not change while the view does; they are drawn once.
  rendered() {
    if (this.picture) return this.picture;
    this.picture = document.createElement("canvas");
    sizeCanvas(this.picture, this.width, this.height, timeline.scale);
    const context = this.picture.getContext("2d");
    context.scale(timeline.scale, timeline.scale);
    facts.strip.forEach((row, place) => this.drawRow(context, row, place * (this.ROW + this.GAP)));
    return this.picture;
  },

  drawRow(context, row, y) {
    context.fillStyle = theme.lane;
    context.fillRect(0, y, this.width, this.ROW);
    const bins = row.parts[0].values.length;
    for (let x = 0; x < this.width; x++) {
      const first = Math.min(bins - 1, Math.floor(this.ticksAt(x) / facts.end * bins));
      const last = Math.max(first + 1, Math.ceil(this.ticksAt(x + 1) / facts.end * bins));
      let bottom = y + this.ROW;
      for (const part of row.parts) {
        let value = 0;
        let worst = first;
        for (let bin = first; bin < last; bin++) if (part.values[bin] > value) value = part.values[worst = bin];
        const height = value / (row.most || 1) * this.ROW;
        context.fillStyle = row.cause && row.cause[worst] >= 0 ? theme.causes[row.cause[worst]] : theme.shade(part);
        if (height) context.fillRect(x, bottom - height, 1, height);
        bottom -= height;
      }
    }
    if (row.demand) {
      context.fillStyle = theme.ink;
      const isInside = row.demand <= row.most * 1.0001;
      const top = isInside ? y + this.ROW * (1 - row.demand / row.most) : y;
      if (isInside) for (let x = 0; x < this.width; x += 7) context.fillRect(x, top, 4, 1);
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "right";
      const text = `demand ${valueText(row.demand, row.unit)}${isInside ? "" : ", above this axis"}`;
      const size = context.measureText(text).width + 8;
      const base = top > y + 14 ? top - 3 : top + 12;
      context.globalAlpha = 0.8;
      context.fillStyle = theme.lane;
      context.fillRect(this.width - size, base - 10, size, 12);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      context.fillText(text, this.width - 4, base);
    }
  },

  draw() {
    if (!this.height) return;
    const context = this.canvas.getContext("2d");
    const { scale } = timeline;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.rendered(), 0, 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const left = this.xOf(view.start);
    const right = Math.max(left + 2, this.xOf(view.end));
    if (right - left >= this.width - 0.5) return;
    context.fillStyle = theme.card;
    context.globalAlpha = 0.62;
    context.fillRect(0, 0, left, this.height);
    context.fillRect(right, 0, this.width - right, this.height);
    context.globalAlpha = 1;
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.75, 0.75, right - left - 1.5, this.height - 1.5);
  },
};
