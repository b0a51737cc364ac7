// Finds steps by number, and functions, kinds of spans and files by a part of their name; n and p lead through the stalls, the longest first.

const search = { box: document.getElementById("search"), results: document.getElementById("results"), stall: -1 };
const MOST_RESULTS = 30;

function firstSpanOf(file) {
  for (const track of tracks) {
    if (!track.isReady) continue;
    let best = -1;
    for (let span = 0; span < track.count; span++) {
      if (track.file[span] === file && (best < 0 || track.took[span] > track.took[best])) best = span;
    }
    if (best >= 0) return { track, span: best };
  }
  return null;
}

const MOST_OF_TYPE = 8; // functions, and kinds; so that files have room

function functionMatches(wanted) {
  return code.functions.map((each, number) => [each, number])
    .filter(([{ name, file, count }]) => count && (name.toLowerCase().includes(wanted) || file.toLowerCase().endsWith(wanted)))
    .sort(([one], [other]) => other.isOwn - one.isOwn || other.count - one.count)
    .slice(0, MOST_OF_TYPE)
    .map(([{ name, file, count }, number]) => ({ label: `function ${name}  ${file}: ${count.toLocaleString("en")} ${count === 1 ? "sample" : "samples"}`, go: () => followFunction(number) }));
}

// The longest span of each kind whose name has the text.
function kindMatches(wanted) {
  const longest = new Map();
  const isNamed = facts.classes.map(({ name, kind }) => name.includes(wanted) || kind.includes(wanted));
  for (const track of tracks) {
    for (let span = 0; span < track.count; span++) {
      const kind = track.kind[span];
      if (isNamed[kind] && (!longest.has(kind) || track.took[span] > longest.get(kind).track.took[longest.get(kind).span])) longest.set(kind, { track, span });
    }
  }
  return [...longest].slice(0, MOST_OF_TYPE).map(([kind, found]) => ({ label: `longest ${facts.classes[kind].name}: ${durationText(found.track.took[found.span])}`, go: () => follow(found) }));
}

function matches(text) {
  const found = [];
  const wanted = text.trim().toLowerCase().replace(/^step\s+/, "");
  if (!wanted) return found;
  if (/^\d+$/.test(wanted)) {
    const number = Number(wanted);
    for (const [rank, steps] of stepsOf) {
      if (steps.step.includes(number)) found.push({ label: `step ${number} of rank ${rank}`, go: () => goToStep(number, rank) });
    }
  }
  found.push(...functionMatches(wanted), ...kindMatches(wanted));
  for (const [file, path] of tables.paths.entries()) {
    if (found.length >= MOST_RESULTS) break;
    if (path.toLowerCase().includes(wanted)) {
      found.push({ label: path, go: () => { const span = firstSpanOf(file); if (span) follow(span); } });
    }
  }
  return found;
}

function showResults() {
  const found = matches(search.box.value);
  search.found = found;
  const none = search.box.value.trim() ? [make("li", { class: "quiet" }, `No step, function, kind or file in the page has this: ${search.box.value.slice(0, 80)}`)] : [];
  search.results.replaceChildren(...(found.length ? found.map((each) => make("li", {}, make("button", { type: "button", class: "link", onclick: () => { each.go(); closeResults(); } }, each.label))) : none));
  search.results.hidden = !search.results.childElementCount;
}

function closeResults() {
  search.results.hidden = true;
}

function goToStall(by) {
  if (!facts.stalls.length) return;
  search.stall = (search.stall + by + facts.stalls.length) % facts.stalls.length;
  if (search.stall < 0) search.stall = 0;
  const [start, end, step, rank, excess, cause] = facts.stalls[search.stall];
  const steps = stepsOf.get(rank);
  const place = steps ? steps.step.indexOf(step) : -1;
  if (place >= 0) selectStep(rank, place);
  view.selection = [start, end];
  showAround(start, end, 1);
  const count = facts.stalls.length;
  say(`Stall ${search.stall + 1} of ${count}${count > 1 ? ", longest first" : ""}: step ${step} of rank ${rank} took ${durationText(end - start)}, ${durationText(excess)} above the median, ${cause < 0 ? "its GPU was not recorded" : `most of it ${facts.causes[cause].name.replace("_", " ")}`}.`);
}

function say(text) {
  document.getElementById("said").textContent = text;
}
