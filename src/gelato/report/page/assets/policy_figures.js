// The figures of the sections Policies and Trust.
// A trace without points: the legend names the line that a shape draws.
const loggedReturn = () => ({
  x: [null],
  y: [null],
  mode: "lines",
  name: "return in the log",
  line: { color: color("muted"), width: 1.5, dash: "dash" },
});

// With two or three seeds an interval is so wide that the lines of the means would look flat. The
// axis holds all means; a band may reach beyond it, by at most the span of the means on each side.
function findRange(curves, extra) {
  const means = curves.flatMap((curve) => curve.mean).concat(extra === null ? [] : [extra]);
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const span = high - low || Math.abs(high) || 1;
  const bounds = curves.flatMap((curve) => [...curve.low, ...curve.high]);
  const known = bounds.filter((value) => value !== null);
  return {
    range: [
      Math.max(low - span, Math.min(low, ...known)) - 0.05 * span,
      Math.min(high + span, Math.max(high, ...known)) + 0.05 * span,
    ],
  };
}

// Measured episodes may be much longer than the logged ones; then their returns do not compare.
const areLonger = (run) => Boolean(run.paths && !run.paths.comparable);

Object.assign(figures, {
  curves: (plot, run) => {
    const metric = chosen(plot, "curve-metric");
    const traces = [];
    const curves = run.policies.curves.filter((curve) => curve.metric === metric);
    curves.forEach((curve, place) => {
      const tone = hue(place);
      if (curve.low.some((value) => value !== null)) {
        const known = curve.steps
          .map((_, step) => step)
          .filter((step) => curve.low[step] !== null);
        traces.push({
          x: [
            ...known.map((step) => curve.steps[step]),
            ...known.reverse().map((step) => curve.steps[step]),
          ],
          y: [
            ...known
              .slice()
              .reverse()
              .map((step) => curve.high[step]),
            ...known.map((step) => curve.low[step]),
          ],
          fill: "toself",
          fillcolor: fade(tone, 0.13),
          line: { width: 0 },
          hoverinfo: "skip",
          showlegend: false,
          mode: "lines",
        });
      }
      traces.push({
        x: curve.steps,
        y: curve.mean,
        name: plain(curve.method),
        mode: "lines+markers",
        line: { color: tone, width: 2.25, dash: DASHES[place % DASHES.length] },
        marker: { symbol: SYMBOLS[place % SYMBOLS.length], size: 7, maxdisplayed: 12 },
        hovertemplate:
          `%{y:.4g} after %{x:,} steps (seeds: ${curve.seeds})` +
          "<extra>%{fullData.name}</extra>",
      });
    });
    const data = run.policies.data_return;
    const withData = metric === "return" && data !== null && !areLonger(run);
    if (withData) traces.push(loggedReturn());
    const names = control(plot, "curve-metric").selectedOptions[0].textContent;
    return [
      traces,
      layout(axis("steps of training"), axis(names, findRange(curves, withData ? data : null)), {
        showlegend: true,
        shapes: withData ? [rule(data, "y")] : [],
      }),
    ];
  },

  grid: (plot, run) => {
    const name = chosen(plot, "grid-estimator");
    const { policies } = run.policies;
    const weights = [...new Set(policies.map((policy) => policy.penalty_weight))].sort(
      (a, b) => a - b,
    );
    const methods = [...new Set(policies.map((policy) => policy.method))];
    const perWeight = new Map(
      weights.map((weight) => [
        weight,
        policies.filter((policy) => policy.penalty_weight === weight),
      ]),
    );
    const place = (policy) => {
      const same = perWeight.get(policy.penalty_weight);
      return (
        weights.indexOf(policy.penalty_weight) +
        (same.indexOf(policy) - (same.length - 1) / 2) * (0.6 / Math.max(same.length, 4))
      );
    };
    const label = (policy) => plain(`${policy.method}, seed ${policy.seed}`);
    const find = (policy) =>
      policy.estimates.find(
        (each) => each.estimator === name && !each.problem && each.estimate !== null,
      );
    const traces = [];
    // The selected policy is a trace of its own, so that the legend names its mark.
    const mark = (usable, title, symbol, size) => {
      if (!usable.length) return;
      const values = usable.map((policy) => find(policy));
      const side = (key, sign) =>
        values.map((each) =>
          each[key] === null ? 0 : Math.max(0, sign * (each[key] - each.estimate)),
        );
      traces.push({
        x: usable.map(place),
        y: values.map((each) => each.estimate),
        mode: "markers",
        name: title,
        text: usable.map(label),
        error_y: {
          type: "data",
          symmetric: false,
          array: side("high", 1),
          arrayminus: side("low", -1),
          color: fade(color("blue"), 0.55),
          thickness: 1.5,
          width: 3,
        },
        marker: {
          color: color("blue"),
          symbol,
          size,
          line: { color: color("raised"), width: 1 },
        },
        hovertemplate: "%{text}<br>estimate %{y:.4g}<extra></extra>",
      });
    };
    const usable = policies.filter(find);
    mark(
      usable.filter((policy) => !policy.chosen),
      "estimate",
      "circle",
      9,
    );
    mark(
      usable.filter((policy) => policy.chosen),
      "selected policy",
      "star",
      16,
    );
    const measured = policies.filter((policy) => policy.return !== null);
    const isLonger = areLonger(run);
    if (measured.length && (name === "measured return" || (name === "cross-model" && !isLonger))) {
      traces.push({
        x: measured.map((policy) => place(policy) + 0.02),
        y: measured.map((policy) => policy.return),
        mode: "markers",
        name: "measured return",
        text: measured.map(label),
        marker: { color: color("orange"), symbol: "diamond-open", size: 10, line: { width: 2 } },
        hovertemplate: "%{text}<br>measured %{y:.4g}<extra></extra>",
      });
    }
    if (!traces.length) return empty("no estimates; run gelato select");
    const data = run.policies.data_return;
    const comparable =
      data !== null && (name === "cross-model" || (name === "measured return" && !isLonger));
    if (comparable) traces.push(loggedReturn());
    return [
      traces,
      layout(
        axis("penalty weight λ", {
          tickvals: weights.map((_, index) => index),
          ticktext: weights.map((weight) => (weight === null ? "none" : write(weight))),
          range: [-0.6, weights.length - 0.4],
        }),
        axis(plain(name)),
        {
          showlegend: true,
          shapes: comparable ? [rule(data, "y")] : [],
          meta: methods,
        },
      ),
    ];
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
      const own = policies.filter(
        (policy) =>
          policy.method === method && value(policy, x) !== null && value(policy, y) !== null,
      );
      return {
        x: own.map((policy) => value(policy, x)),
        y: own.map((policy) => value(policy, y)),
        mode: "markers",
        name: plain(method),
        text: own.map((policy) =>
          plain(`${policy.method}, seed ${policy.seed}${policy.chosen ? " (selected)" : ""}`),
        ),
        marker: {
          color: hue(place),
          symbol: SYMBOLS[place % SYMBOLS.length],
          size: 11,
          line: { color: color("raised"), width: 1 },
        },
        hovertemplate: "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
      };
    });
    const rank = correlations[compared.indexOf(x)][compared.indexOf(y)];
    return [
      traces,
      layout(axis(plain(x)), axis(plain(y)), {
        showlegend: methods.length <= 8,
        margin: { l: 56, r: 16, t: 28, b: 48 },
        annotations: [
          note(`rank correlation ${write(rank, 2)}`, 0, 1, {
            xref: "paper",
            yref: "paper",
            xanchor: "left",
            yanchor: "bottom",
            font: { size: 13, color: color("ink") },
          }),
        ],
      }),
    ];
  },

  threshold: (plot, run) => {
    const { histogram, thresholds, false_alarms: alarms, misses } = run.trust;
    const place = Number(chosen(plot, "threshold"));
    const at = thresholds[place];
    control(plot, "threshold").setAttribute("aria-valuetext", `U ${write(at)}`);
    control(plot, "threshold-result").textContent =
      `U ≤ ${write(at)}: false alarms ${share(alarms[place])}, misses ${share(misses[place])}`;
    const middle = histogram.inside.map(
      (_, bin) => (histogram.edges[bin] + histogram.edges[bin + 1]) / 2,
    );
    // Known steps rise, foreign steps hang, so that no bar hides another.
    const bar = (values, sign, name, tone, shape) => ({
      type: "bar",
      x: middle,
      y: values.map((value) => sign * value),
      customdata: values,
      name,
      marker: {
        color: color(tone),
        pattern: { shape, fillmode: "overlay", fgcolor: color("raised"), size: 6, solidity: 0.25 },
      },
      hovertemplate: "U near %{x:.2f}: %{customdata:.1%}<extra>%{fullData.name}</extra>",
    });
    const most = Math.max(...histogram.inside, ...histogram.outside);
    const ticks = [-1, -0.5, 0, 0.5, 1].map((part) => part * Number((most * 0.9).toPrecision(1)));
    return [
      [
        bar(histogram.inside, 1, "held-out steps of the log", "blue", ""),
        bar(histogram.outside, -1, "made-up steps far from the data", "orange", "/"),
      ],
      layout(
        axis("penalty U"),
        axis("share", {
          tickvals: ticks,
          ticktext: ticks.map((tick) => share(Math.abs(tick))),
          zerolinecolor: color("muted"),
        }),
        {
          barmode: "relative",
          bargap: 0.06,
          showlegend: true,
          shapes: [{ ...rule(at, "x", "solid", "ink"), line: { color: color("ink"), width: 2.5 } }],
          annotations: [
            note("◂ trusted", at, 1, {
              yref: "paper",
              yanchor: "bottom",
              xanchor: "right",
              xshift: -6,
              font: { size: 12, color: color("ink") },
            }),
            note("not trusted ▸", at, 1, {
              yref: "paper",
              yanchor: "bottom",
              xanchor: "left",
              xshift: 6,
              font: { size: 12, color: color("ink") },
            }),
          ],
          margin: { l: 56, r: 16, t: 24, b: 48 },
        },
      ),
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
      [
        {
          x: episode.step,
          y: episode.penalty,
          mode: "lines+markers",
          line: { color: fade(color("blue"), 0.55), width: 1.5 },
          marker: {
            color: outside.map((is) => color(is ? "orange" : "blue")),
            symbol: outside.map((is) => (is ? "triangle-up" : "circle")),
            size: outside.map((is) => (is ? 9 : 4)),
            opacity: 1,
          },
          hovertemplate: "step %{x}: U %{y:.3g}<extra></extra>",
        },
      ],
      layout(axis("step"), axis("penalty U", { rangemode: "tozero" }), {
        shapes: [rule(limit, "y")],
        annotations: [
          note("limit", 1, limit, { xref: "paper", xanchor: "right", yanchor: "bottom" }),
        ],
      }),
    ];
  },

  survival: (plot, run) => {
    const still = run.trust.policy.still_inside;
    const expected = still.map((_, place) => (1 - run.trust.false_alarm_rate) ** (place + 1));
    return [
      [
        {
          x: still.map((_, place) => place + 1),
          y: expected,
          mode: "lines",
          name: "false alarms alone",
          line: { color: color("muted"), width: 1.5, dash: "dash" },
          hovertemplate: "step %{x}: %{y:.0%}<extra>%{fullData.name}</extra>",
        },
        {
          name: "the policy",
          x: still.map((_, place) => place + 1),
          y: still,
          mode: "lines",
          fill: "tozeroy",
          fillcolor: fade(color("blue"), 0.12),
          line: { color: color("blue"), width: 2.5, shape: "hv" },
          hovertemplate: "step %{x}: %{y:.0%}<extra></extra>",
        },
      ],
      layout(
        axis("steps"),
        axis("rollouts still inside", { range: [-0.03, 1.04], tickformat: ".0%" }),
        { showlegend: true },
      ),
    ];
  },

  map: (plot, run) => drawMap(plot, run),
});
