// Draws a sampled series as an area: each value holds until the next one; of several in a column the greatest is drawn.

function drawSeries(context, lane, x0, width, y, height) {
  const most = lane.scale;
  const { time, value } = lane;
  let place = Math.max(0, firstAbove(time, view.start, time.length) - 1);
  context.beginPath();
  context.moveTo(x0, y + height);
  for (let x = 0; x < width; x++) {
    const until = view.start + (x + 1) * view.perPixel;
    let greatest = time.length && time[place] < until ? value[place] : 0;
    while (place + 1 < time.length && time[place + 1] < until) greatest = Math.max(greatest, value[++place]);
    const top = y + height - greatest / most * (height - 2);
    context.lineTo(x0 + x, top);
    context.lineTo(x0 + x + 1, top);
  }
  context.lineTo(x0 + width, y + height);
  context.closePath();
  context.globalAlpha = 0.28;
  context.fillStyle = theme.accent;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = theme.accent;
  context.lineWidth = 1;
  context.stroke();
}

function valueAt(lane, moment) {
  const place = firstAbove(lane.time, moment, lane.time.length) - 1;
  return place < 0 ? 0 : lane.value[place];
}
