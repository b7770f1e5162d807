// The figures of the sections Data and Model. Each function returns traces and a layout.
const bars = (histogram, title, average) => {
  const { edges, counts } = histogram;
  const middle = counts.map((_, place) => (edges[place] + edges[place + 1]) / 2);
  const width = counts.map((_, place) => 0.94 * (edges[place + 1] - edges[place]) || 1);
  const ranges = counts.map((_, place) => `${write(edges[place])} to ${write(edges[place + 1])}`);
  return [
    [
      {
        type: "bar",
        x: middle,
        y: counts,
        width,
        customdata: ranges,
        marker: { color: color("blue"), line: { width: 0 } },
        hovertemplate: "%{customdata}: %{y} episodes<extra></extra>",
      },
    ],
    layout(axis(title), axis("episodes"), {
      shapes: [rule(average, "x", "dash", "ink")],
      annotations: [note("mean", average, 1, { yref: "paper", yanchor: "bottom" })],
      margin: { l: 56, r: 16, t: 24, b: 48 },
    }),
  ];
};

// Bars end at −0.5; a number to the left of a negative bar needs some room.
const findLowest = (values) => {
  const lowest = Math.min(0, ...values);
  return lowest < 0 ? Math.max(-0.5, lowest) - 0.25 : 0;
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
    plot.style.height = `${Math.max(20, 4 + 1.4 * pairs.length)}rem`;
    const values = pairs.map(([value]) => value);
    const names = pairs.map(([, name]) => plain(name));
    // Two traces, because a pattern applies to a whole trace.
    const bar = (rows, tone, shape) => ({
      type: "bar",
      orientation: "h",
      x: rows.map((row) => Math.max(values[row], -0.5)),
      y: rows.map((row) => names[row]),
      customdata: rows.map((row) => values[row]),
      text: rows.map((row) => write(values[row], 2)),
      marker: {
        color: color(tone),
        pattern: { shape, fillmode: "overlay", fgcolor: color("raised"), size: 6, solidity: 0.25 },
      },
      textposition: "outside",
      cliponaxis: false,
      width: Math.min(0.8, 0.16 * pairs.length),
      hovertemplate: "%{y}: R² %{customdata:.3f}<extra></extra>",
    });
    const rows = values.map((_, row) => row);
    return [
      [
        bar(
          rows.filter((row) => values[row] >= 0.5),
          "blue",
          "",
        ),
        bar(
          rows.filter((row) => values[row] < 0.5),
          "orange",
          "/",
        ),
      ],
      layout(
        axis("R² of the change", { range: [findLowest(values), 1.08] }),
        axis("", { type: "category", categoryorder: "array", categoryarray: names, dtick: 1 }),
        { barmode: "overlay" },
      ),
    ];
  },

  growth: (plot, run) => {
    const { rollouts } = run.model.check.seeds.find((each) => each.seed === run.model.seed);
    const steps = rollouts.rmse.map((_, place) => place + 1);
    const line = (values, name, tone, dash, symbol) => ({
      x: [0, ...steps],
      y: [0, ...values],
      name,
      mode: steps.length < 15 ? "lines+markers" : "lines",
      line: { color: color(tone), width: 2.5, dash },
      marker: { symbol },
      hovertemplate: "step %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
    });
    return [
      [
        line(rollouts.rmse, "model", "blue", "solid", "circle"),
        line(rollouts.rmse_of_no_change, "no change", "orange", "dash", "square"),
      ],
      layout(
        axis("steps ahead", wholeTicks(steps)),
        axis("RMSE (standard deviations)", { rangemode: "tozero" }),
        { showlegend: true },
      ),
    ];
  },

  fans: (plot, run) => {
    const fan = run.model.fans[Number(chosen(plot, "fan-column") || 0)];
    if (!fan) return empty("no column changes");
    const steps = fan.truth.map((_, place) => place);
    const band = (low, high, alpha, name) => [
      {
        x: steps,
        y: fan.quantiles[high],
        mode: "lines",
        line: { width: 0 },
        hoverinfo: "skip",
        showlegend: false,
      },
      {
        x: steps,
        y: fan.quantiles[low],
        mode: "lines",
        line: { width: 0 },
        fill: "tonexty",
        fillcolor: fade(color("blue"), alpha),
        name,
        hoverinfo: "skip",
      },
    ];
    return [
      [
        ...band(0, 4, 0.18, "90% of rollouts"),
        ...band(1, 3, 0.3, "50% of rollouts"),
        {
          x: steps,
          y: fan.quantiles[2],
          mode: "lines",
          name: "median",
          line: { color: color("blue"), width: 2 },
        },
        {
          x: steps,
          y: fan.truth,
          mode: "lines+markers",
          name: "what happened",
          line: { color: color("ink"), width: 1.5, dash: "dash" },
          marker: { size: 4 },
        },
      ],
      layout(axis("steps ahead", wholeTicks(steps)), axis(plain(fan.name)), { showlegend: true }),
    ];
  },
};
