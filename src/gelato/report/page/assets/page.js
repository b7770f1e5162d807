// Draws every figure when it comes near the window, and again when a control or the theme changes.
// Drawing, when a figure comes near the window

const drawn = new Set();
const runOf = (plot) => runs[Number(plot.dataset.run)];

function redraw(plot) {
  const [traces, shape] = figures[plot.dataset.figure](plot, runOf(plot));
  const done = Plotly.react(plot, traces, shape, CONFIG);
  if (!drawn.has(plot)) {
    drawn.add(plot);
    if (plot.dataset.figure === "map") prepareMap(plot, runOf(plot));
  }
  plot.dataset.drawn = "yes";
  return done;
}

const plots = [...document.querySelectorAll("[data-figure]")];
const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) redraw(entry.target);
    }
  },
  { rootMargin: "500px" },
);
for (const plot of plots) {
  watcher.observe(plot);
  plot.closest("figure").addEventListener("input", (event) => {
    if (event.target.dataset.control) redraw(plot);
  });
}
for (const button of document.querySelectorAll('[data-control="threshold-reset"]')) {
  button.addEventListener("click", () => {
    const slider = button.closest("figure").querySelector('[data-control="threshold"]');
    slider.value = slider.dataset.limit;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

// Theme

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const redrawAll = () => drawn.forEach(redraw);
document.getElementById("theme").addEventListener("click", () => {
  const now = root.dataset.theme || (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("gelato-theme", root.dataset.theme);
  } catch (error) {
    // Without storage the choice holds until the page is closed.
  }
  redrawAll();
});
dark.addEventListener("change", redrawAll);

// Print: always light, with all figures

let before = null;
const preparePrint = () => {
  if (before !== null) return;
  before = root.dataset.theme || "";
  root.dataset.theme = "light";
  plots.forEach(redraw);
  plots.forEach((plot) => Plotly.Plots.resize(plot));
};
const endPrint = () => {
  if (before === null) return;
  if (before) root.dataset.theme = before;
  else delete root.dataset.theme;
  before = null;
  redrawAll();
  drawn.forEach((plot) => Plotly.Plots.resize(plot));
};
window.addEventListener("beforeprint", preparePrint);
window.addEventListener("afterprint", endPrint);
window
  .matchMedia("print")
  .addEventListener("change", (event) => (event.matches ? preparePrint() : endPrint()));

// Navigation and copying

const links = [...document.querySelectorAll("nav a")];
const spy = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links) {
        if (link.hash === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
  },
  { rootMargin: "-20% 0px -70% 0px" },
);
document.querySelectorAll("main > section").forEach((each) => spy.observe(each));

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}
