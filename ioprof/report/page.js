"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const shades = read("shades");
  const themes = {
    light: { ink: "#1a2027", quiet: "#56616c", line: "#e3e7ea", edge: "#9aa4ae", card: "#ffffff" },
    dark: { ink: "#e3e8ed", quiet: "#9aa6b2", line: "#272f38", edge: "#5c6772", card: "#20272f" },
  };
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // none that would send the figure anywhere
  };
  const plots = Array.from(document.querySelectorAll(".plot"));
  let printing = false;

  function read(name) {
    return JSON.parse(document.getElementById(name).textContent);
  }

  function shaded(value, isDark) {
    if (!isDark) return value;
    if (typeof value === "string") return shades[value] || value;
    if (Array.isArray(value) || value === null || typeof value !== "object") return value;
    for (const key of Object.keys(value)) value[key] = shaded(value[key], isDark);
    return value;
  }

  function themed(figure) {
    const isDark = dark.matches && !printing;
    const theme = isDark ? themes.dark : themes.light;
    const layout = figure.layout;
    layout.font.color = theme.ink;
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: theme.card, bordercolor: theme.edge, font: { ...layout.hoverlabel.font, color: theme.ink } };
    layout.modebar = { color: theme.quiet, activecolor: theme.ink, bgcolor: "rgba(0,0,0,0)" };
    for (const key of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) {
      Object.assign(layout[key], { gridcolor: theme.line, linecolor: theme.edge, tickcolor: theme.edge, zerolinecolor: theme.edge });
    }
    figure.data.forEach((trace) => ["marker", "line", "fillcolor"].forEach((key) => {
      if (key in trace) trace[key] = shaded(trace[key], isDark);
    }));
    return figure;
  }

  function view(plot) {
    const chosen = document.querySelector(`input[name="view-${plot.dataset.chart}"]:checked`);
    return chosen ? chosen.value : "0";
  }

  function swatch(trace) {
    const mark = document.createElement("i");
    if (trace.type === "scatter" && !trace.stackgroup) {
      mark.className = "line";
      mark.style.borderTopColor = trace.line.color;
      mark.style.borderTopStyle = { dash: "dashed", dot: "dotted", dashdot: "dashed" }[trace.line.dash] || "solid";
      mark.style.borderTopWidth = trace.line.width < 1 ? "1px" : "2px";
    } else {
      mark.style.background = trace.fillcolor || trace.marker.color;
    }
    return mark;
  }

  function entry(plot, trace, place) {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(swatch(trace), trace.name);
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      Plotly.restyle(plot, { visible: shown }, [place]);
    });
    return button;
  }

  function drawLegend(plot, figure) {
    const legend = plot.previousElementSibling;
    const named = figure.data.map((trace, place) => [trace, place]).filter(([trace]) => trace.showlegend !== false);
    legend.replaceChildren(...named.map(([trace, place]) => entry(plot, trace, place)));
    figure.layout.showlegend = false;
  }

  async function draw(plot) {
    const shown = view(plot);
    const figure = themed(read(`figure-${plot.dataset.chart}-${shown}`));
    drawLegend(plot, figure);
    plot.style.minHeight = `${figure.layout.height}px`;
    await Plotly.react(plot, figure.data, figure.layout, config);
    for (const note of plot.parentElement.querySelectorAll("figcaption")) note.hidden = note.dataset.view !== shown;
    plot.dataset.drawn = shown;
  }

  async function drawAll() {
    for (const plot of plots) {
      await draw(plot);
      await new Promise((done) => setTimeout(done));
    }
    document.documentElement.dataset.ready = "true";
  }

  function onKey(event) {
    const plot = event.currentTarget;
    const axis = plot._fullLayout && plot._fullLayout.xaxis;
    if (event.target !== plot || !axis || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = axis.range.map(Number);
    const span = high - low;
    const middle = (low + high) / 2;
    const ranges = {
      ArrowLeft: [low - span / 10, high - span / 10],
      ArrowRight: [low + span / 10, high + span / 10],
      "+": [middle - span / 4, middle + span / 4],
      "=": [middle - span / 4, middle + span / 4],
      "-": [middle - span, middle + span],
    };
    if (event.key === "0") {
      event.preventDefault();
      draw(plot);
    } else if (ranges[event.key] && Number.isFinite(span)) {
      event.preventDefault();
      Plotly.relayout(plot, { "xaxis.range": ranges[event.key] });
    }
  }

  plots.forEach((plot) => plot.addEventListener("keydown", onKey));
  document.querySelectorAll(".switch").forEach((set) => {
    set.addEventListener("change", () => draw(set.parentElement.querySelector(".plot")));
  });
  dark.addEventListener("change", drawAll);
  for (const [event, value] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      printing = value;
      document.querySelectorAll("details").forEach((part) => { if (value) part.open = true; });
      drawAll();
    });
  }
  drawAll();
})();
