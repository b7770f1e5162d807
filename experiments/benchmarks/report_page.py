"""Measure the report page of a large run: its size, the time to make it, and the time to open it.

python experiments/benchmarks/report_page.py [--transitions 1000000] [--seeds 5] [--run DIR]

This writes results/report_page.json. Run it on an idle machine with two cores.

The run has 1,000,000 transitions, 5 seeds and 5 values of λ. The log is made up: episodes of a
linear system with eleven states and three actions, the sizes of Hopper. The training is cut to a
few updates, because the page does not depend on how good the policies are. The time to open is
compared with an empty Plotly page, in pairs that take turns, with a new browser each.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gelato
from gelato.progress import note
from gelato.report.page.render.page import read_plotly
from gelato.report.page.write import make_report
from gelato.runs.folder import Run
from gelato.runs.records import merge_records

RESULTS = Path(__file__).parents[2] / "results" / "report_page.json"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
_STATES, _ACTIONS = 11, 3
WEIGHTS = (0.3, 1.0, 3.0, 10.0, 30.0)


def write_log(path: Path, transitions: int) -> None:
    """Write a log of a linear system, in episodes of 1,000 steps."""
    rng, episodes = np.random.default_rng(0), max(20, transitions // 1_000)
    steps = transitions // episodes
    dynamics = 0.97 * np.linalg.qr(rng.normal(size=(_STATES, _STATES)))[0]
    effect, feedback = rng.normal(size=(_ACTIONS, _STATES)), rng.normal(size=(_STATES, _ACTIONS))
    state = rng.normal(size=(episodes, _STATES))
    columns: dict[str, list[np.ndarray]] = {"observations": [], "actions": [], "rewards": []}
    for _ in range(steps):
        action = np.tanh(0.3 * state @ feedback + 0.2 * rng.normal(size=(episodes, _ACTIONS)))
        columns["observations"].append(state)
        columns["actions"].append(action)
        columns["rewards"].append(1 - 0.01 * np.square(state).sum(axis=1))
        state = state @ dynamics + 0.1 * action @ effect + 0.05 * rng.normal(size=state.shape)
    arrays = {}
    for name, values in columns.items():
        stacked = np.stack(values, axis=1).astype(np.float32)
        arrays[name] = stacked.reshape(episodes * steps, *stacked.shape[2:])
    timeouts = np.arange(episodes * steps) % steps == steps - 1
    np.savez(path, timeouts=timeouts, **arrays)


def train_quickly(reference: str, run: Path, seeds: int) -> None:
    """Train a grid for a few updates; a finished run is kept."""
    dataset = gelato.load(reference)
    parts = gelato.choose_parts(dataset, "small")
    model = replace(parts.latent.model, updates=200, variance_updates=50)
    agent = replace(parts.sac, updates=500, epoch=500)
    parts = replace(parts, latent=replace(parts.latent, model=model), sac=agent)
    methods = gelato.vary_method(gelato.make_method("gelato", parts), WEIGHTS)
    settings = replace(parts.settings, evaluations=0, points=2_000)
    gelato.train(dataset, run, methods, seeds=seeds, settings=settings)


def add_selection(run: Path) -> None:
    """Write a made-up selection, so that all figures have their full number of marks."""
    folder = Run(run)
    if (run / "selection.json").exists():
        return
    policies: list[dict[str, Any]] = []
    for number, record in enumerate(folder.read_records()):
        estimates = []
        for name in ("cross-model", "value, common λ", "fqe", "importance", "doubly robust"):
            value = float(number)
            estimates.append(
                {
                    "estimator": name,
                    "estimate": value,
                    "low": value - 1,
                    "high": value + 1,
                    "problem": None,
                    "details": {},
                }
            )
        label = {name: record[name] for name in ("method", "seed", "penalty_weight")}
        fraction = record["real_fraction"]
        policies.append(
            {
                "run": str(run),
                "rank": 0.5,
                **label,
                "real_fraction": fraction,
                "estimates": estimates,
            }
        )
    chosen = {name: policies[0][name] for name in ("run", "method", "seed")}
    selection = {
        "chosen": chosen,
        "verdict": "not shown to be better",
        "reasons": ["made up for the benchmark"],
        "estimate": policies[0]["estimates"][0],
        "behaviour": {"mean": 0.0, "low": -1.0, "high": 1.0, "episodes": 1000},
        "agreement": 1.0,
        "outside_share": 0.1,
        "real_episodes": 0,
        "policies": policies,
    }
    folder.write_json("selection", selection)


def open_pages(pages: dict[str, Path], repeats: int) -> dict[str, list[float]]:
    """Open pages in turns; returns the milliseconds until each is loaded and painted."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {name: [] for name in pages}
    with sync_playwright() as playwright:
        for _ in range(repeats):
            for name, path in pages.items():
                options: Any = {"executable_path": "/usr/bin/chromium", "args": FLAGS}
                browser = playwright.chromium.launch(**options)
                page = browser.new_page()
                begun = time.perf_counter()
                page.goto(path.resolve().as_uri(), wait_until="load")
                page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
                found[name].append(1000 * (time.perf_counter() - begun))
                browser.close()
    return found


def write_empty_page(path: Path) -> None:
    """Write a page that holds Plotly and one empty figure."""
    draw = 'Plotly.newPlot("plot", [], {})'
    path.write_text(
        f'<!doctype html><div id="plot"></div><script>{read_plotly()}</script>'
        f"<script>{draw}</script>",
        "utf-8",
    )


def main() -> None:
    """Make the run if needed, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--run", type=Path, default=Path("runs/report-benchmark"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.run.parent.mkdir(parents=True, exist_ok=True)
    log = given.run.with_suffix(".npz")
    if not log.exists():
        write_log(log, given.transitions)
    train_quickly(f"file:{log},low=-1/-1/-1,high=1/1/1", given.run, given.seeds)
    add_selection(given.run)
    page = given.run.parent / f"{given.run.name}.html"
    load, wall, cpu = os.getloadavg()[0], time.perf_counter(), time.process_time()
    make_report(given.run, page)
    result: dict[str, Any] = {
        "transitions": given.transitions,
        "seeds": given.seeds,
        "weights": len(WEIGHTS),
        "cores": os.cpu_count(),
        "megabytes": page.stat().st_size / 1e6,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }
    empty = page.with_name("empty.html")
    write_empty_page(empty)
    opened = open_pages({"report": page, "empty": empty}, given.repeats)
    for name, times in opened.items():
        result[f"{name}_open_ms"] = statistics.median(times)
    result["open_ratio"] = result["report_open_ms"] / result["empty_open_ms"]
    # How many processes wanted a core before the page was made; below 1, the machine was idle.
    result["load_before"] = load
    for name, value in result.items():
        if isinstance(value, float):
            result[name] = float(f"{value:.4g}")
    merge_records(given.results, [result], ("transitions", "seeds", "weights", "cores"))
    note(f"page: {page}")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
