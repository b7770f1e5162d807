// The map: its points, the panel next to it, and the lasso.
const state = { point: null, overlay: false, region: null, here: new Map() };
const viewOf = (plot) => {
  const columns = chosen(plot, "map-view") === "columns";
  return { columns, x: Number(chosen(plot, "map-x") || 0), y: Number(chosen(plot, "map-y") || 0) };
};
const place = (points, view) =>
  view.columns ? [points.states[view.x], points.states[view.y]] : [points.x, points.y];

// The range of an axis follows the log, so that neither a few far steps nor a path that leaves the
// data squeezes it into a dot.
const findMapRange = (values) => {
  const [low, high] = [quantile(values, 0.01), quantile(values, 0.99)];
  const span = high - low || Math.abs(high) || 1;
  const least = values.reduce((a, b) => Math.min(a, b));
  const most = values.reduce((a, b) => Math.max(a, b));
  return [Math.max(least, low - span) - 0.06 * span, Math.min(most, high + span) + 0.06 * span];
};

// Where rows are among the points as they are drawn.
const findPlaces = (order, rows) => {
  const wanted = new Set(rows);
  return order.map((row, at) => (wanted.has(row) ? at : -1)).filter((at) => at >= 0);
};

// In a grid world many steps share a place: keep the one with the largest value, and count all.
function mergePlaces(sorted, [xs, ys]) {
  const places = new Map();
  for (const row of sorted) {
    const key = `${xs[row]},${ys[row]}`;
    if (!places.has(key)) places.set(key, []);
    places.get(key).push(row);
  }
  if (places.size >= 600 || places.size === sorted.length)
    return { order: sorted, here: new Map(), isGrid: places.size < 600 };
  const here = new Map();
  for (const rows of places.values()) here.set(rows.at(-1), rows);
  return { order: sorted.filter((row) => here.has(row)), here, isGrid: true };
}

const describePlace = (rows, trusted) =>
  rows
    ? `<br>${rows.filter((row) => trusted[row]).length} of ${rows.length} steps here are trusted`
    : "";

function drawMap(plot, run) {
  const { map } = run;
  const { points } = map;
  const view = viewOf(plot);
  control(plot, "map-columns").hidden = !view.columns;
  const name = chosen(plot, "map-colour");
  const values = points[name];
  const judged = name === "policy_penalty" ? points.policy_penalty : points.penalty;
  const trusted = judged
    ? judged.map((value) => value !== null && value <= map.limit)
    : points.x.map(() => true);
  // Large values come last, so that no other point hides them.
  const sorted = points.x.map((_, row) => row).sort((a, b) => values[a] - values[b] || a - b);
  const { order, here, isGrid } = mergePlaces(sorted, place(points, view));
  state.here = here;
  const pick = (list) => order.map((row) => list[row]);
  const [x, y] = place(points, view).map(pick);
  const title = control(plot, "map-colour").selectedOptions[0].textContent;
  const size = isGrid ? 8 : 5.5;
  const skewed = ["penalty", "policy_penalty", "error"].includes(name);
  const traces = [
    {
      x,
      y,
      mode: "markers",
      name: "steps of the log",
      customdata: order.map((row) => [
        points.episode[row],
        points.step[row],
        values[row],
        row,
        describePlace(here.get(row), trusted),
      ]),
      marker: {
        color: pick(values),
        colorscale: colorScale(),
        cmin: skewed ? 0 : quantile(values, 0.01),
        cmax: skewed ? Math.max(quantile(values, 0.98), 1e-9) : quantile(values, 0.99),
        symbol: pick(trusted).map((is) => (is ? "circle" : "triangle-up")),
        size: pick(trusted).map((is) => (is ? size : 1.5 * size)),
        opacity: 0.85,
        line: { color: color("raised"), width: 0.4 },
        colorbar: {
          title: { text: title, side: "right", font: { size: 12, color: color("muted") } },
          thickness: 10,
          outlinewidth: 0,
          tickfont: { size: 11, color: color("muted") },
        },
      },
      hovertemplate:
        "episode %{customdata[0]}, step %{customdata[1]}<br>%{customdata[2]:.4g}%{customdata[4]}<extra></extra>",
      selected: { marker: { opacity: 1 } },
      unselected: { marker: { opacity: 0.12 } },
      selectedpoints: state.region && findPlaces(order, state.region),
    },
  ];
  if (map.overlay) {
    traces[0].showlegend = true;
    const [ox, oy] = place(map.overlay, view);
    traces.push({
      x: ox,
      y: oy,
      mode: "markers",
      name: "new log",
      showlegend: true,
      customdata: map.overlay.episode.map((episode, index) => [episode, map.overlay.step[index]]),
      marker: { symbol: "x-thin", size: 7, line: { color: color("pink"), width: 1.5 } },
      hovertemplate: "new log, episode %{customdata[0]}, step %{customdata[1]}<extra></extra>",
    });
  }
  if (run.paths && control(plot, "map-paths")?.checked) traces.push(...drawPaths(run.paths, view));
  if (state.point !== null) traces.push(...drawPoint(map, view));
  const names = view.columns ? [map.state_names[view.x], map.state_names[view.y]] : map.axes;
  return [
    traces,
    layout(
      axis(plain(names[0]), { zeroline: false, range: findMapRange(x) }),
      axis(plain(names[1]), {
        zeroline: false,
        range: findMapRange(y),
        scaleanchor: view.columns ? undefined : "x",
      }),
      {
        dragmode: plot.dataset.lasso ? "lasso" : "zoom",
        uirevision: `${view.columns}-${view.x}-${view.y}`,
        showlegend: traces.some((trace) => trace.showlegend),
        legend: { orientation: "h", y: -0.12, yanchor: "top", font: { size: 12 } },
        newselection: { line: { color: color("ink"), width: 1.5, dash: "dot" } },
      },
    ),
  ];
}

function drawPaths(paths, view) {
  const traces = [];
  const end = (x, y, name, symbol, size, path, number) => ({
    x: [x],
    y: [y],
    mode: "markers",
    name,
    showlegend: number === 0,
    marker: { symbol, size, color: color("orange"), line: { width: 2.5, color: color("orange") } },
    hovertemplate: `path ${number + 1}, return ${write(path.return)}<extra></extra>`,
  });
  paths.paths.forEach((path, number) => {
    const [x, y] = view.columns ? [path.states[view.x], path.states[view.y]] : [path.x, path.y];
    const last = x.length - 1;
    traces.push(
      {
        x,
        y,
        mode: "lines",
        line: { color: color("orange"), width: 2, dash: DASHES[number % DASHES.length] },
        name: "path of the policy",
        showlegend: number === 0,
        hovertemplate: `path ${number + 1}<extra></extra>`,
      },
      end(x[0], y[0], "start", "circle-open", 11, path, number),
      end(x[last], y[last], "end", "x-thin", 11, path, number),
    );
  });
  return traces;
}

function drawPoint(map, view) {
  const points = state.overlay ? map.overlay : map.points;
  const [x, y] = place(points, view);
  const at = state.point;
  const lines = { x: [], y: [] };
  if (!state.overlay) {
    for (const other of map.neighbours[at]) {
      lines.x.push(x[at], x[other], null);
      lines.y.push(y[at], y[other], null);
    }
  }
  return [
    {
      ...lines,
      mode: "lines",
      line: { color: color("ink"), width: 1.5 },
      hoverinfo: "skip",
      showlegend: false,
    },
    {
      x: [x[at]],
      y: [y[at]],
      mode: "markers",
      marker: { symbol: "circle-open", size: 18, color: color("ink"), line: { width: 3 } },
      hoverinfo: "skip",
      showlegend: false,
    },
  ];
}

const panel = (name) => document.querySelector(`[data-control="${name}"]`);

function showPoint(plot, run, at, overlay = false) {
  Object.assign(state, { point: at, overlay });
  const { map } = run;
  const points = overlay ? map.overlay : map.points;
  const box = panel("point-panel");
  box.replaceChildren(
    node(
      "h3",
      `${overlay ? "New log, episode" : "Episode"} ${points.episode[at]}, step ${points.step[at]}`,
    ),
  );
  if (points.trusted) {
    const yes = Boolean(points.trusted[at]);
    box.append(
      node("p", yes ? "✓ trusted" : "✕ not trusted", { class: `state ${yes ? "yes" : "no"}` }),
    );
  }
  const facts = node("dl");
  const add = (name, value) =>
    value !== undefined && facts.append(node("dt", name), node("dd", value));
  if (points.penalty) add("penalty U", `${write(points.penalty[at])} (limit ${write(map.limit)})`);
  if (points.policy_penalty) {
    const inside = points.policy_penalty[at] <= map.limit;
    add("policy’s action", `${inside ? "✓" : "✕"} U ${write(points.policy_penalty[at])}`);
  }
  add("error of the model", write(points.error[at]));
  add("reward", write(points.reward[at]));
  add("return", write(points.return[at]));
  if (points.held_out)
    add("used for", points.held_out[at] ? "testing the model" : "fitting the model");
  box.append(facts);
  const listValues = (title, names, columns) => {
    const list = node("dl");
    names.forEach(
      (name, column) =>
        columns[column] && list.append(node("dt", name), node("dd", write(columns[column][at], 4))),
    );
    box.append(node("h4", title), list);
  };
  if (points.frames) {
    box.append(node("img", "", { src: points.frames[at], alt: "The image that was observed" }));
  }
  listValues(
    map.state_columns > map.state_names.length
      ? `State (${map.state_names.length} of ${map.state_columns} columns)`
      : "State",
    map.state_names,
    points.states,
  );
  listValues("Action", map.action_names, points.actions);
  if (!overlay && map.neighbours[at].length) {
    const list = node("ol");
    map.neighbours[at].forEach((other, place) => {
      const item = node("li");
      const button = node(
        "button",
        `episode ${points.episode[other]}, step ${points.step[other]}`,
        { type: "button", class: "link" },
      );
      button.addEventListener("click", () => showPoint(plot, run, other));
      item.append(button, ` – ${write(map.distances[at][place])}`);
      list.append(item);
    });
    box.append(node("h4", "Nearest states, by geodesic distance"), list);
  }
  redraw(plot);
}

function showRegion(plot, run, rows) {
  state.region = rows && rows.length ? rows : null;
  const box = panel("region-panel");
  if (!state.region) {
    box.replaceChildren();
  } else {
    const { points } = run.map;
    const pick = (name) => rows.map((row) => points[name][row]);
    const facts = node("dl");
    const add = (name, value) => facts.append(node("dt", name), node("dd", value));
    add("steps", rows.length.toLocaleString("en-US"));
    add("episodes", new Set(pick("episode")).size.toLocaleString("en-US"));
    add("mean return", write(mean(pick("return"))));
    if (points.penalty) {
      add("mean penalty U", write(mean(pick("penalty"))));
      add("trusted", share(mean(pick("trusted"))));
    }
    if (points.policy_penalty) {
      add(
        "policy’s actions trusted",
        share(mean(pick("policy_penalty").map((value) => (value <= run.map.limit ? 1 : 0)))),
      );
    }
    add("mean error", write(mean(pick("error"))));
    box.replaceChildren(node("h3", "Selected region"), facts);
  }
  redraw(plot);
}

function prepareMap(plot, run) {
  plot.setAttribute("role", "application");
  plot.setAttribute("tabindex", "0");
  const overlayTrace = run.map.overlay ? 1 : -1;
  plot.on("plotly_click", (event) => {
    const hit = event.points.find(
      (point) => point.curveNumber === 0 || point.curveNumber === overlayTrace,
    );
    if (!hit) return;
    const isNew = hit.curveNumber === overlayTrace;
    showPoint(plot, run, isNew ? hit.pointNumber : hit.customdata[3], isNew);
  });
  plot.on("plotly_selected", (event) => {
    if (!event) return;
    const drawn = event.points.filter((point) => point.curveNumber === 0);
    const rows = drawn.map((point) => point.customdata[3]);
    showRegion(
      plot,
      run,
      rows.flatMap((row) => state.here.get(row) || [row]),
    );
  });
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const count = run.map.points.x.length;
    showPoint(
      plot,
      run,
      state.point === null || state.overlay ? 0 : (state.point + move + count) % count,
    );
  });
  const lasso = control(plot, "map-lasso");
  lasso.setAttribute("aria-pressed", "false");
  lasso.addEventListener("click", () => {
    const on = lasso.getAttribute("aria-pressed") !== "true";
    lasso.setAttribute("aria-pressed", String(on));
    if (on) plot.dataset.lasso = "on";
    else delete plot.dataset.lasso;
    redraw(plot);
  });
  control(plot, "map-reset").addEventListener("click", () => {
    state.point = null;
    lasso.setAttribute("aria-pressed", "false");
    delete plot.dataset.lasso;
    showRegion(plot, run, null);
    const [x, y] = place(run.map.points, viewOf(plot));
    // Plotly keeps a selection of its own, which redrawing does not change.
    Plotly.update(
      plot,
      { selectedpoints: [null] },
      { "xaxis.range": findMapRange(x), "yaxis.range": findMapRange(y), selections: [] },
      [0],
    );
  });
  for (const button of document.querySelectorAll("[data-point]")) {
    button.addEventListener("click", () => showPoint(plot, run, Number(button.dataset.point)));
  }
}
