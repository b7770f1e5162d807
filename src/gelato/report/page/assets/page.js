// Draws the figures of the page from its records. Every figure is drawn when it comes near the
// window, and drawn again when a control or the theme changes.
"use strict";
(() => {
  const records = JSON.parse(document.getElementById("records").textContent);
  const runs = records.runs || [records];
  const root = document.documentElement;
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon"];
  const HUES = ["blue", "orange", "green", "pink", "brown", "sky"];
  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };

  // Helpers

  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const hue = (place) => color(HUES[place % HUES.length]);
  const fade = (hex, alpha) => {
    const value = parseInt(hex.slice(1), 16);
    return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${alpha})`;
  };
  const write = (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e9)) {
      return value.toExponential(digits - 1).replace("-", "−");
    }
    if (Math.abs(value) >= 10 ** digits) return Math.round(value).toLocaleString("en-US").replace("-", "−");
    return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 8 }).replace("-", "−");
  };
  const share = (value) => (value === null || value === undefined ? "–" : `${write(100 * value, value < 0.1 ? 2 : 3)}%`);
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
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

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
    hoverlabel: { bgcolor: color("raised"), bordercolor: color("muted"), font: { color: color("ink"), size: 13 } },
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
  const colorScale = () => ["low", "middle", "high"].map((name, place) => [place / 2, color(`scale-${name}`)]);
  const empty = (text) => [[], layout({ visible: false }, { visible: false }, {
    annotations: [note(text, 0.5, 0.5, { xref: "paper", yref: "paper" })],
  })];

  // Figures: each function returns traces and a layout

  const bars = (histogram, title, average) => {
    const { edges, counts } = histogram;
    const middle = counts.map((_, place) => (edges[place] + edges[place + 1]) / 2);
    const width = counts.map((_, place) => 0.94 * (edges[place + 1] - edges[place]) || 1);
    const ranges = counts.map((_, place) => `${write(edges[place])} to ${write(edges[place + 1])}`);
    return [
      [{
        type: "bar", x: middle, y: counts, width, customdata: ranges,
        marker: { color: color("blue"), line: { width: 0 } },
        hovertemplate: "%{customdata}: %{y} episodes<extra></extra>",
      }],
      layout(axis(title), axis("episodes"), {
        shapes: [rule(average, "x", "dash", "ink")],
        annotations: [note("mean", average, 1, { yref: "paper", yanchor: "bottom" })],
        margin: { l: 56, r: 16, t: 24, b: 48 },
      }),
    ];
  };

  const figures = {
    returns: (plot, run) => bars(run.data.returns, "return", run.data.summary.return_mean),
    lengths: (plot, run) => bars(run.data.lengths, "steps", run.data.summary.length_mean),

    accuracy: (plot, run) => {
      const seed = run.model.check.seeds.find((each) => each.seed === run.model.seed);
      const pairs = seed.delta_r2_per_dimension
        .map((value, place) => [value, run.model.names[place]])
        .filter(([value]) => value !== null)
        .sort((a, b) => a[0] - b[0])
        .slice(0, 24)
        .reverse();
      if (!pairs.length) return empty("no column changes");
      const values = pairs.map(([value]) => value);
      const names = pairs.map(([, name]) => plain(name));
      // Two traces, because a pattern applies to a whole trace.
      const bar = (rows, tone, shape) => ({
        type: "bar", orientation: "h", x: rows.map((row) => Math.max(values[row], -0.5)), y: rows.map((row) => names[row]),
        customdata: rows.map((row) => values[row]), text: rows.map((row) => write(values[row], 2)),
        marker: { color: color(tone), pattern: { shape, fillmode: "overlay", fgcolor: color("raised"), size: 6, solidity: 0.25 } },
        textposition: "outside", cliponaxis: false, width: Math.min(0.8, 0.16 * pairs.length),
        hovertemplate: "%{y}: R² %{customdata:.3f}<extra></extra>",
      });
      const rows = values.map((_, row) => row);
      return [
        [bar(rows.filter((row) => values[row] >= 0.5), "blue", ""), bar(rows.filter((row) => values[row] < 0.5), "orange", "/")],
        layout(
          axis("R² of the change", { range: [Math.max(-0.5, Math.min(0, ...values)), 1.08] }),
          axis("", { type: "category", categoryorder: "array", categoryarray: names }),
          { barmode: "overlay" },
        ),
      ];
    },

    growth: (plot, run) => {
      const { rollouts } = run.model.check.seeds.find((each) => each.seed === run.model.seed);
      const steps = rollouts.rmse.map((_, place) => place + 1);
      const line = (values, name, tone, dash, symbol) => ({
        x: [0, ...steps], y: [0, ...values], name, mode: steps.length < 15 ? "lines+markers" : "lines",
        line: { color: color(tone), width: 2.5, dash }, marker: { symbol },
        hovertemplate: "step %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
      });
      return [
        [line(rollouts.rmse, "model", "blue", "solid", "circle"), line(rollouts.rmse_of_no_change, "no change", "orange", "dash", "square")],
        layout(axis("steps ahead", wholeTicks(steps)), axis("RMSE (standard deviations)", { rangemode: "tozero" }), { showlegend: true }),
      ];
    },

    fans: (plot, run) => {
      const fan = run.model.fans[Number(chosen(plot, "fan-column") || 0)];
      if (!fan) return empty("no column changes");
      const steps = fan.truth.map((_, place) => place);
      const band = (low, high, alpha, name) => [
        { x: steps, y: fan.quantiles[high], mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false },
        { x: steps, y: fan.quantiles[low], mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: fade(color("blue"), alpha), name, hoverinfo: "skip" },
      ];
      return [
        [
          ...band(0, 4, 0.18, "90% of rollouts"),
          ...band(1, 3, 0.3, "50% of rollouts"),
          { x: steps, y: fan.quantiles[2], mode: "lines", name: "median", line: { color: color("blue"), width: 2 } },
          { x: steps, y: fan.truth, mode: "lines+markers", name: "what happened", line: { color: color("ink"), width: 1.5, dash: "dash" }, marker: { size: 4 } },
        ],
        layout(axis("steps ahead", wholeTicks(steps)), axis(plain(fan.name)), { showlegend: true }),
      ];
    },

    curves: (plot, run) => {
      const metric = chosen(plot, "curve-metric");
      const traces = [];
      run.policies.curves.filter((curve) => curve.metric === metric).forEach((curve, place) => {
        const tone = hue(place);
        if (curve.low.some((value) => value !== null)) {
          const known = curve.steps.map((_, step) => step).filter((step) => curve.low[step] !== null);
          traces.push({
            x: [...known.map((step) => curve.steps[step]), ...known.reverse().map((step) => curve.steps[step])],
            y: [...known.slice().reverse().map((step) => curve.high[step]), ...known.map((step) => curve.low[step])],
            fill: "toself", fillcolor: fade(tone, 0.13), line: { width: 0 }, hoverinfo: "skip", showlegend: false, mode: "lines",
          });
        }
        traces.push({
          x: curve.steps, y: curve.mean, name: plain(curve.method), mode: "lines+markers",
          line: { color: tone, width: 2.25, dash: DASHES[place % DASHES.length] },
          marker: { symbol: SYMBOLS[place % SYMBOLS.length], size: 7, maxdisplayed: 12 },
          hovertemplate: `%{y:.4g} after %{x:,} steps (${curve.seeds} seed${curve.seeds > 1 ? "s" : ""})<extra>%{fullData.name}</extra>`,
        });
      });
      const data = run.policies.data_return;
      const withData = metric === "return" && data !== null;
      const names = control(plot, "curve-metric").selectedOptions[0].textContent;
      return [traces, layout(axis("steps of training"), axis(names), {
        showlegend: true,
        shapes: withData ? [rule(data, "y")] : [],
        annotations: withData ? [note("return in the log", 1, data, { xref: "paper", xanchor: "right", yanchor: "bottom" })] : [],
      })];
    },

    grid: (plot, run) => {
      const name = chosen(plot, "grid-estimator");
      const { policies } = run.policies;
      const weights = [...new Set(policies.map((policy) => policy.penalty_weight))].sort((a, b) => a - b);
      const methods = [...new Set(policies.map((policy) => policy.method))];
      const perWeight = new Map(weights.map((weight) => [weight, policies.filter((policy) => policy.penalty_weight === weight)]));
      const place = (policy) => {
        const same = perWeight.get(policy.penalty_weight);
        return weights.indexOf(policy.penalty_weight) + (same.indexOf(policy) - (same.length - 1) / 2) * (0.6 / Math.max(same.length, 4));
      };
      const label = (policy) => plain(`${policy.method}, seed ${policy.seed}`);
      const find = (policy) => policy.estimates.find((each) => each.estimator === name && !each.problem && each.estimate !== null);
      const usable = policies.filter(find);
      const traces = [];
      if (usable.length) {
        const values = usable.map((policy) => find(policy));
        const side = (key, sign) => values.map((each) => (each[key] === null ? 0 : Math.max(0, sign * (each[key] - each.estimate))));
        traces.push({
          x: usable.map(place), y: values.map((each) => each.estimate), mode: "markers", name: "estimate",
          text: usable.map(label),
          error_y: { type: "data", symmetric: false, array: side("high", 1), arrayminus: side("low", -1), color: fade(color("blue"), 0.55), thickness: 1.5, width: 3 },
          marker: { color: color("blue"), symbol: usable.map((policy) => (policy.chosen ? "star" : "circle")), size: usable.map((policy) => (policy.chosen ? 16 : 9)), line: { color: color("raised"), width: 1 } },
          hovertemplate: "%{text}<br>estimate %{y:.4g}<extra></extra>",
        });
      }
      const measured = policies.filter((policy) => policy.return !== null);
      if (measured.length && (name === "cross-model" || name === "measured return")) {
        traces.push({
          x: measured.map((policy) => place(policy) + 0.02), y: measured.map((policy) => policy.return), mode: "markers", name: "measured return",
          text: measured.map(label), marker: { color: color("orange"), symbol: "diamond-open", size: 10, line: { width: 2 } },
          hovertemplate: "%{text}<br>measured %{y:.4g}<extra></extra>",
        });
      }
      if (!traces.length) return empty("no estimates; run gelato select");
      const data = run.policies.data_return;
      return [traces, layout(
        axis("penalty weight λ", { tickvals: weights.map((_, index) => index), ticktext: weights.map((weight) => (weight === null ? "none" : write(weight))), range: [-0.6, weights.length - 0.4] }),
        axis(plain(name)),
        { showlegend: true, shapes: name === "cross-model" && data !== null ? [rule(data, "y")] : [], meta: methods },
      )];
    },

    estimators: (plot, run) => {
      const [x, y] = [chosen(plot, "estimator-x"), chosen(plot, "estimator-y")];
      const { policies, compared, correlations } = run.policies;
      if (!x || !y) return empty("too few policies or estimates");
      const value = (policy, name) => {
        if (name === "measured return") return policy.return;
        const found = policy.estimates.find((each) => each.estimator === name && !each.problem);
        return found ? found.estimate : null;
      };
      const methods = [...new Set(policies.map((policy) => policy.method))];
      const traces = methods.map((method, place) => {
        const own = policies.filter((policy) => policy.method === method && value(policy, x) !== null && value(policy, y) !== null);
        return {
          x: own.map((policy) => value(policy, x)), y: own.map((policy) => value(policy, y)), mode: "markers", name: plain(method),
          text: own.map((policy) => plain(`${policy.method}, seed ${policy.seed}${policy.chosen ? " (selected)" : ""}`)),
          marker: { color: hue(place), symbol: SYMBOLS[place % SYMBOLS.length], size: 11, line: { color: color("raised"), width: 1 } },
          hovertemplate: "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        };
      });
      const rank = correlations[compared.indexOf(x)][compared.indexOf(y)];
      return [traces, layout(axis(plain(x)), axis(plain(y)), {
        showlegend: methods.length <= 8,
        annotations: [note(`rank correlation ${write(rank, 2)}`, 0.02, 0.99, { xref: "paper", yref: "paper", xanchor: "left", yanchor: "top", font: { size: 13, color: color("ink") } })],
      })];
    },

    threshold: (plot, run) => {
      const { histogram, thresholds, false_alarms: alarms, misses } = run.trust;
      const place = Number(chosen(plot, "threshold"));
      const at = thresholds[place];
      control(plot, "threshold").setAttribute("aria-valuetext", `U ${write(at)}`);
      control(plot, "threshold-result").textContent =
        `U ≤ ${write(at)}: false alarms ${share(alarms[place])}, misses ${share(misses[place])}`;
      const middle = histogram.inside.map((_, bin) => (histogram.edges[bin] + histogram.edges[bin + 1]) / 2);
      // Known steps rise, foreign steps hang, so that no bar hides another.
      const bar = (values, sign, name, tone, shape) => ({
        type: "bar", x: middle, y: values.map((value) => sign * value), customdata: values, name,
        marker: { color: color(tone), pattern: { shape, fillmode: "overlay", fgcolor: color("raised"), size: 6, solidity: 0.25 } },
        hovertemplate: "U near %{x:.2f}: %{customdata:.1%}<extra>%{fullData.name}</extra>",
      });
      const most = Math.max(...histogram.inside, ...histogram.outside);
      const ticks = [-1, -0.5, 0, 0.5, 1].map((part) => part * Number((most * 0.9).toPrecision(1)));
      return [
        [bar(histogram.inside, 1, "held-out steps (known)", "blue", ""), bar(histogram.outside, -1, "out-of-distribution pairs (foreign)", "orange", "/")],
        layout(axis("penalty U"), axis("share", { tickvals: ticks, ticktext: ticks.map((tick) => share(Math.abs(tick))), zerolinecolor: color("muted") }), {
          barmode: "relative", bargap: 0.06, showlegend: true,
          shapes: [{ ...rule(at, "x", "solid", "ink"), line: { color: color("ink"), width: 2.5 } }],
          annotations: [
            note("◂ trusted", at, 1, { yref: "paper", yanchor: "bottom", xanchor: "right", xshift: -6, font: { size: 12, color: color("ink") } }),
            note("not trusted ▸", at, 1, { yref: "paper", yanchor: "bottom", xanchor: "left", xshift: 6, font: { size: 12, color: color("ink") } }),
          ],
          margin: { l: 56, r: 16, t: 24, b: 48 },
        }),
      ];
    },

    episodes: (plot, run) => {
      const choice = chosen(plot, "episode");
      if (!choice) return empty("no held-out episode");
      const fresh = choice.startsWith("new-");
      const list = fresh ? run.trust.new_log.episodes : run.trust.episodes;
      const episode = list[Number(choice.replace("new-", ""))];
      const { limit } = run.trust;
      const outside = episode.penalty.map((value) => value > limit);
      return [
        [{
          x: episode.step, y: episode.penalty, mode: "lines+markers", line: { color: fade(color("blue"), 0.55), width: 1.5 },
          marker: { color: outside.map((is) => color(is ? "orange" : "blue")), symbol: outside.map((is) => (is ? "triangle-up" : "circle")), size: outside.map((is) => (is ? 9 : 4)) },
          hovertemplate: "step %{x}: U %{y:.3g}<extra></extra>",
        }],
        layout(axis("step"), axis("penalty U", { rangemode: "tozero" }), {
          shapes: [rule(limit, "y")],
          annotations: [note("limit", 1, limit, { xref: "paper", xanchor: "right", yanchor: "bottom" })],
        }),
      ];
    },

    survival: (plot, run) => {
      const still = run.trust.policy.still_inside;
      const expected = still.map((_, place) => (1 - run.trust.false_alarm_rate) ** (place + 1));
      return [
        [{
          x: still.map((_, place) => place + 1), y: expected, mode: "lines", name: "false alarms alone", line: { color: color("muted"), width: 1.5, dash: "dash" },
          hovertemplate: "step %{x}: %{y:.0%}<extra>%{fullData.name}</extra>",
        }, {
          name: "the policy",
          x: still.map((_, place) => place + 1), y: still, mode: "lines", fill: "tozeroy", fillcolor: fade(color("blue"), 0.12),
          line: { color: color("blue"), width: 2.5, shape: "hv" }, hovertemplate: "step %{x}: %{y:.0%}<extra></extra>",
        }],
        layout(axis("steps"), axis("rollouts still inside", { range: [0, 1.04], tickformat: ".0%" }), { showlegend: true }),
      ];
    },

    map: (plot, run) => drawMap(plot, run),
  };

  // The map

  const state = { point: null, overlay: false, region: null };
  const viewOf = (plot) => {
    const columns = chosen(plot, "map-view") === "columns";
    return { columns, x: Number(chosen(plot, "map-x") || 0), y: Number(chosen(plot, "map-y") || 0) };
  };
  const place = (points, view) =>
    view.columns ? [points.states[view.x], points.states[view.y]] : [points.x, points.y];

  function drawMap(plot, run) {
    const { map } = run;
    const { points } = map;
    const view = viewOf(plot);
    control(plot, "map-columns").hidden = !view.columns;
    const name = chosen(plot, "map-colour");
    const values = points[name];
    const judged = name === "policy_penalty" ? points.policy_penalty : points.penalty;
    const trusted = judged ? judged.map((value) => value !== null && value <= map.limit) : points.x.map(() => true);
    const [x, y] = place(points, view);
    const title = control(plot, "map-colour").selectedOptions[0].textContent;
    // In a grid world many steps share a place.
    const size = new Set(x.map((value, index) => `${value},${y[index]}`)).size < 600 ? 8 : 5.5;
    const skewed = ["penalty", "policy_penalty", "error"].includes(name);
    const traces = [{
      x, y, mode: "markers", name: "steps of the log",
      customdata: points.episode.map((episode, index) => [episode, points.step[index], values[index]]),
      marker: {
        color: values, colorscale: colorScale(),
        cmin: skewed ? 0 : quantile(values, 0.01), cmax: skewed ? Math.max(quantile(values, 0.98), 1e-9) : quantile(values, 0.99),
        symbol: trusted.map((is) => (is ? "circle" : "triangle-up")), size: trusted.map((is) => (is ? size : 1.5 * size)),
        opacity: 0.85, line: { color: color("raised"), width: 0.4 },
        colorbar: { title: { text: title, side: "right", font: { size: 12, color: color("muted") } }, thickness: 10, outlinewidth: 0, tickfont: { size: 11, color: color("muted") } },
      },
      hovertemplate: "episode %{customdata[0]}, step %{customdata[1]}<br>%{customdata[2]:.4g}<extra></extra>",
      selected: { marker: { opacity: 1 } }, unselected: { marker: { opacity: 0.12 } },
      selectedpoints: state.region,
    }];
    if (map.overlay) {
      const [ox, oy] = place(map.overlay, view);
      traces.push({
        x: ox, y: oy, mode: "markers", name: "new log", customdata: map.overlay.episode.map((episode, index) => [episode, map.overlay.step[index]]),
        marker: { symbol: "x-thin", size: 7, line: { color: color("pink"), width: 1.5 } },
        hovertemplate: "new log, episode %{customdata[0]}, step %{customdata[1]}<extra></extra>",
      });
    }
    if (run.paths && control(plot, "map-paths")?.checked) traces.push(...drawPaths(run.paths, view));
    if (state.point !== null) traces.push(...drawPoint(map, view));
    const names = view.columns ? [map.state_names[view.x], map.state_names[view.y]] : map.axes;
    return [traces, layout(axis(plain(names[0]), { zeroline: false }), axis(plain(names[1]), { zeroline: false, scaleanchor: view.columns ? undefined : "x" }), {
      dragmode: plot.dataset.lasso ? "lasso" : "zoom",
      uirevision: `${view.columns}-${view.x}-${view.y}`,
      showlegend: Boolean(map.overlay),
      newselection: { line: { color: color("ink"), width: 1.5, dash: "dot" } },
    })];
  }

  function drawPaths(paths, view) {
    const traces = [];
    paths.paths.forEach((path, number) => {
      const [x, y] = view.columns ? [path.states[view.x], path.states[view.y]] : [path.x, path.y];
      const last = x.length - 1;
      traces.push({
        x, y, mode: "lines", line: { color: color("orange"), width: 2, dash: DASHES[number % DASHES.length] }, showlegend: false,
        hovertemplate: `path ${number + 1}<extra></extra>`,
      }, {
        x: [x[0], x[last]], y: [y[0], y[last]], mode: "markers", showlegend: false,
        marker: { symbol: ["circle-open", "x"], size: [11, 12], color: color("orange"), line: { width: 2.5 } },
        hovertemplate: `path ${number + 1}, return ${write(path.return)}<extra></extra>`,
      });
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
      { ...lines, mode: "lines", line: { color: color("ink"), width: 1.5 }, hoverinfo: "skip", showlegend: false },
      { x: [x[at]], y: [y[at]], mode: "markers", marker: { symbol: "circle-open", size: 18, color: color("ink"), line: { width: 3 } }, hoverinfo: "skip", showlegend: false },
    ];
  }

  const panel = (name) => document.querySelector(`[data-control="${name}"]`);

  function showPoint(plot, run, at, overlay = false) {
    Object.assign(state, { point: at, overlay });
    const { map } = run;
    const points = overlay ? map.overlay : map.points;
    const box = panel("point-panel");
    box.replaceChildren(node("h3", `${overlay ? "New log, episode" : "Episode"} ${points.episode[at]}, step ${points.step[at]}`));
    if (points.trusted) {
      const yes = Boolean(points.trusted[at]);
      box.append(node("p", yes ? "✓ trusted" : "✕ not trusted", { class: `state ${yes ? "yes" : "no"}` }));
    }
    const facts = node("dl");
    const add = (name, value) => value !== undefined && facts.append(node("dt", name), node("dd", value));
    if (points.penalty) add("penalty U", `${write(points.penalty[at])} (limit ${write(map.limit)})`);
    if (points.policy_penalty) {
      const inside = points.policy_penalty[at] <= map.limit;
      add("policy’s action", `${inside ? "✓" : "✕"} U ${write(points.policy_penalty[at])}`);
    }
    add("error of the model", write(points.error[at]));
    add("reward", write(points.reward[at]));
    add("return", write(points.return[at]));
    if (points.held_out) add("used for", points.held_out[at] ? "testing the model" : "fitting the model");
    box.append(facts);
    const listValues = (title, names, columns) => {
      const list = node("dl");
      names.forEach((name, column) => columns[column] && list.append(node("dt", name), node("dd", write(columns[column][at], 4))));
      box.append(node("h4", title), list);
    };
    listValues(`State${map.state_columns > map.state_names.length ? ` (${map.state_names.length} of ${map.state_columns} columns)` : ""}`, map.state_names, points.states);
    listValues("Action", map.action_names, points.actions);
    if (!overlay && map.neighbours[at].length) {
      const list = node("ol");
      map.neighbours[at].forEach((other, place) => {
        const item = node("li");
        const button = node("button", `episode ${points.episode[other]}, step ${points.step[other]}`, { type: "button", class: "link" });
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
        add("policy’s actions trusted", share(mean(pick("policy_penalty").map((value) => (value <= run.map.limit ? 1 : 0)))));
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
      const hit = event.points.find((point) => point.curveNumber === 0 || point.curveNumber === overlayTrace);
      if (hit) showPoint(plot, run, hit.pointNumber, hit.curveNumber === overlayTrace);
    });
    plot.on("plotly_selected", (event) => {
      if (!event) return;
      showRegion(plot, run, event.points.filter((point) => point.curveNumber === 0).map((point) => point.pointNumber));
    });
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const count = run.map.points.x.length;
      showPoint(plot, run, state.point === null || state.overlay ? 0 : (state.point + move + count) % count);
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
      showRegion(plot, run, null);
      Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true, selections: [] });
    });
    for (const button of document.querySelectorAll("[data-point]")) {
      button.addEventListener("click", () => showPoint(plot, run, Number(button.dataset.point)));
    }
  }

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
  window.matchMedia("print").addEventListener("change", (event) => (event.matches ? preparePrint() : endPrint()));

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
})();
