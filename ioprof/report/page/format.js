// How numbers are written: as units.py writes them.

function threeDigits(value) {
  const size = Math.abs(value);
  return size >= 99.95 ? Math.round(value).toLocaleString("en") : value.toFixed(size >= 9.995 ? 1 : 2);
}

function withUnit(value, units) {
  const [scale, unit] = units.find(([factor]) => Math.abs(value) >= factor * 0.9995) || units[units.length - 1];
  return `${threeDigits(value / scale)} ${unit}`;
}

function durationText(ticks) {
  return ticks ? withUnit(ticks * facts.tick_ns, [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]) : "0 s";
}

function bytesText(bytes) {
  const units = [[1e15, "PB"], [1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  return Math.abs(bytes) < 999.5 ? `${Math.round(bytes)} B` : withUnit(bytes, units);
}

function percentText(share) {
  const percent = share * 100;
  return percent > 0 && percent < 0.05 ? "< 0.1%" : `${percent.toFixed(1)}%`;
}

function valueText(value, unit) {
  if (unit === "bytes") return bytesText(value);
  if (unit === "bytes/s") return `${bytesText(value)}/s`;
  if (unit === "ratio") return percentText(value);
  if (unit === "s") return durationText(value * 1e9 / facts.tick_ns);
  if (unit === "batches" && value === 1) return "1 batch";
  return `${value >= 10 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3))} ${unit}`;
}

// A moment of the run in seconds, with the decimals that a step of the axis needs.
function momentText(ticks, step) {
  const seconds = ticks * facts.tick_ns / 1e9;
  const decimals = Math.max(0, Math.min(7, -Math.floor(Math.log10(step * facts.tick_ns / 1e9) + 1e-9)));
  return `${seconds.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })} s`;
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
