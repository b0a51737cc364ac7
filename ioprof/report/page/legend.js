// What the colours of the timeline mean: causes of steps first, then kinds of spans that have a colour of their own.

const SHARING = new Set(["wait", "fetch", "sync", "request"]); // kinds that have the colour of a cause and another name

function legendEntries() {
  const entries = new Map();
  const isUsed = (cause) => [...stepsOf.values()].some((steps) => steps.spent[cause].some((ticks, place) => ticks > steps.wall[place] / 255));
  facts.causes.forEach(({ name, means }, cause) => {
    if (isUsed(cause)) entries.set(theme.causes[cause], { name: name.replace("_", " "), means });
  });
  for (const kind of new Set(facts.pairs.map(([, number]) => number))) {
    const { name, kind: word } = facts.classes[kind];
    const known = entries.get(theme.classes[kind]);
    if (!known) entries.set(theme.classes[kind], { name, means: "", isKind: true });
    else if (known.isKind || SHARING.has(word)) known.name = `${known.name}, ${name}`;
  }
  if (code.threads.length) {
    entries.set(theme.code[1], { name: "your functions, each its colour", means: "from samples of Python's stacks" });
    entries.set(theme.code[0], { name: "libraries", means: "frames of installed packages and of Python" });
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
