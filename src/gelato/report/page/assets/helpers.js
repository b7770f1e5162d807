// What all figures use: records, colours, numbers as text, axes and layouts.
const records = JSON.parse(document.getElementById("records").textContent);
const runs = records.runs || [records];
const root = document.documentElement;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon"];
const HUES = ["blue", "orange", "green", "pink", "brown", "sky"];
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset+autosize" };

// The browser resolves a colour of the style for the theme of now, as `rgb(…)`.
const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);
const color = (name) => {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
};
const hue = (place) => color(HUES[place % HUES.length]);
const fade = (rgb, alpha) => rgb.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
const write = (value, digits = 3) => {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e9)) {
    return value.toExponential(digits - 1).replace("-", "−");
  }
  if (Math.abs(value) >= 10 ** digits)
    return Math.round(value).toLocaleString("en-US").replace("-", "−");
  return Number(value.toPrecision(digits))
    .toLocaleString("en-US", { maximumFractionDigits: 8 })
    .replace("-", "−");
};
const share = (value) =>
  value === null || value === undefined ? "–" : `${write(100 * value, value < 0.1 ? 2 : 3)}%`;
const mean = (values) => {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};
const quantile = (values, level) => {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? known[Math.min(known.length - 1, Math.floor(level * known.length))] : null;
};
const control = (plot, name) => plot.closest("figure").querySelector(`[data-control="${name}"]`);
const chosen = (plot, name) => control(plot, name)?.value;
// Text from the records only enters the page as text, never as HTML.
const node = (name, text, attributes = {}) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
// Plotly reads a few HTML tags in labels.
const plain = (text) =>
  String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const axis = (title, extra = {}) => ({
  title: { text: title, font: { size: 13, color: color("muted") }, standoff: 8 },
  gridcolor: color("faint"),
  zerolinecolor: color("faint"),
  linecolor: color("faint"),
  tickfont: { size: 12, color: color("muted") },
  automargin: true,
  ...extra,
});
const layout = (x, y, extra = {}) => ({
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: getComputedStyle(document.body).fontFamily, color: color("ink"), size: 13 },
  margin: { l: 56, r: 16, t: 12, b: 48 },
  hoverlabel: {
    bgcolor: color("raised"),
    bordercolor: color("muted"),
    font: { color: color("ink"), size: 13 },
  },
  hovermode: "closest",
  showlegend: false,
  legend: { orientation: "h", y: -0.2, yanchor: "top", font: { size: 12, color: color("ink") } },
  xaxis: x,
  yaxis: y,
  ...extra,
});
const rule = (at, direction, dash = "dash", name = "muted") => ({
  type: "line",
  layer: "above",
  [direction === "x" ? "yref" : "xref"]: "paper",
  ...(direction === "x" ? { x0: at, x1: at, y0: 0, y1: 1 } : { y0: at, y1: at, x0: 0, x1: 1 }),
  line: { color: color(name), width: 1.5, dash },
});
const note = (text, x, y, extra = {}) => ({
  text: plain(text),
  x,
  y,
  showarrow: false,
  font: { size: 12, color: color("muted") },
  ...extra,
});
const wholeTicks = (steps) => (steps.length <= 12 ? { dtick: 1 } : {});
// Lightness changes evenly, away from the paper, so that large values stand out without colour.
const colorScale = () =>
  ["low", "middle", "high"].map((name, place) => [place / 2, color(`scale-${name}`)]);
const empty = (text) => [
  [],
  layout(
    { visible: false },
    { visible: false },
    {
      annotations: [note(text, 0.5, 0.5, { xref: "paper", yref: "paper" })],
    },
  ),
];
