// Tables that are sorted by a click on a heading: numbers by their size, whatever unit they have, all else as text.

const UNITS = { "%": 0.01, ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, PB: 1e15 };

function valueOf(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const [, sign, digits, unit] = /^<?\s*([−-]?)([\d,]*\.?\d+)\s*([%µa-zA-Z]*)/.exec(text) || [];
  return digits === undefined ? { text } : { text, number: Number(digits.replaceAll(",", "")) * (sign ? -1 : 1) * (UNITS[unit] || 1) };
}

function compareCells(one, other) {
  if (one.number !== undefined && other.number !== undefined) return one.number - other.number;
  if (one.number !== undefined || other.number !== undefined) return one.number === undefined ? 1 : -1;
  return one.text.localeCompare(other.text);
}

// A row that sums the others up stays last.
function sortRows(table, column, isDescending) {
  const body = table.tBodies[0];
  const all = [...body.rows];
  const sums = all.filter((row) => row.cells[0]?.textContent === "total");
  const keyed = all.filter((row) => !sums.includes(row)).map((row) => ({ row, key: valueOf(row.cells[column]) }));
  keyed.sort((one, other) => (isDescending ? compareCells(other.key, one.key) : compareCells(one.key, other.key)));
  body.append(...keyed.map(({ row }) => row), ...sums);
}

function onHeading(table, heading) {
  const isDescending = heading.getAttribute("aria-sort") ? heading.getAttribute("aria-sort") === "ascending" : heading.classList.contains("number");
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
  sortRows(table, heading.cellIndex, isDescending);
}

function makeSortable(table) {
  if (!table.tHead || !table.tBodies[0] || table.tBodies[0].rows.length < 2 || table.tHead.rows.length !== 1) return;
  for (const heading of table.tHead.rows[0].cells) {
    if (!heading.textContent.trim()) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => onHeading(table, heading));
    heading.append(button);
  }
}

document.querySelectorAll("main table").forEach(makeSortable);
