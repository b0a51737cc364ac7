// What the colours of the timeline mean: causes of steps first, then kinds of spans that have a colour of their own.

function legendEntries() {
  const entries = new Map();
  const isUsed = (cause) => [...stepsOf.values()].some((steps) => steps.shares[cause].some((share) => share > 1));
  facts.causes.forEach(({ name, means }, cause) => {
    if (isUsed(cause)) entries.set(theme.causes[cause], { name: name.replace("_", " "), means });
  });
  for (const kind of new Set(facts.pairs.map(([, number]) => number))) {
    const { name, kind: word } = facts.classes[kind];
    const known = entries.get(theme.classes[kind]);
    if (!known) entries.set(theme.classes[kind], { name, means: "" });
    else if (word === "wait") known.name = `${known.name}, ${name}`;
  }
  return entries;
}

function drawLegend() {
  document.getElementById("legend").replaceChildren(...[...legendEntries()].map(([colour, { name, means }]) => {
    const mark = make("i", { class: "swatch" });
    mark.style.background = colour;
    return make("li", { title: means || null }, mark, name);
  }));
}
