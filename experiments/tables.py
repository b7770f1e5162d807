"""Tables of the docs whose rows combine several records."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy import stats

from experiments.paper import DATASETS, paper_return, sort_as_paper
from gelato.report.policy_table import (
    aggregate,
    as_text,
    choose_format,
    format_spread,
    format_value,
    markdown_table,
    summarise_policies,
)
from gelato.runs.records import Record, read_records
from gelato.tasks.driving import DRIVING_TASKS

TASKS = {task.name: task for task in DRIVING_TASKS}

LEVEL = 0.95
_KNOWN = ("usable", "coverage", "least_coverage", "relative_width", "relative_error")
_DRIVING_METHODS = ("data", "bc", "gelato", "gelato-l2", "gelato-ensemble", "gelato-none")


def select(records: Sequence[Record], **values: object) -> list[Record]:
    """Select the records that have these values."""
    return [
        record for record in records if all(record[name] == value for name, value in values.items())
    ]


def list_values(records: Sequence[Record], name: str) -> list[str]:
    """List the different values of a field in order of appearance."""
    return list(dict.fromkeys(str(record[name]) for record in records))


def mean_of(records: Sequence[Record], name: str) -> float:
    """Average a field; a missing value counts as 0."""
    return float(np.mean([float(record[name] or 0) for record in records]))


def locomotion_table(records: list[Record]) -> str:
    """Write returns and scores of policies, with the paper's numbers."""
    return as_text(sort_as_paper(records), "md", paper_return)


_VIEWS = {
    "full": "full state",
    "none": "positions",
    "4": "positions, history of 4",
    "16": "positions, history of 16",
}


def histories_table(records: list[Record]) -> str:
    """Write what hidden velocities cost, and what a history brings back; means over seeds."""
    policies = select(records, kind="policy")
    rows = []
    for task in list_values(policies, "task"):
        whole = select(policies, task=task, view="full")
        for view, words in _VIEWS.items():
            found = select(policies, task=task, view=view)
            if not found:
                continue
            returns = [float(record["return"] or 0) for record in found]
            share = f"{np.mean(returns) / mean_of(whole, 'return'):.0%}" if whole else "–"
            spread = np.std(returns, ddof=1) if len(returns) > 1 else 0.0
            rows.append(
                [
                    task,
                    words,
                    f"{mean_of(found, 'delta_r2'):.3f}",
                    f"{np.mean(returns):,.0f} ± {spread:,.0f}",
                    f"{mean_of(found, 'score'):.1f}",
                    share,
                    str(len(found)),
                ]
            )
    heads = ("task", "observed", "R² of change", "return", "score", "of the full state's", "seeds")
    return markdown_table(list(heads), rows)


def histories_penalties(records: list[Record]) -> str:
    """Write how well penalties rank the true error with hidden velocities; means over seeds."""
    judged = select(records, kind="penalty")
    shifts, rows = list_values(judged, "shift"), []
    for task in list_values(judged, "task"):
        for view, words in _VIEWS.items():
            for penalty in list_values(select(judged, task=task, view=view), "penalty"):
                cells = [task, words, penalty]
                for shift in shifts:
                    found = select(judged, task=task, view=view, penalty=penalty, shift=shift)
                    cells.append(f"{mean_of(found, 'spearman'):.2f}" if found else "–")
                rows.append(cells)
    return markdown_table(["task", "observed", "penalty", *shifts], rows)


def images_table(records: list[Record]) -> str:
    """Write the returns of policies on images next to those of their data; means over seeds."""
    rows = []
    for task in list_values(records, "task"):
        for where in list_values(select(records, task=task), "device"):
            found = select(records, task=task, device=where)
            returns = [float(record["return"] or 0) for record in found]
            spread = np.std(returns, ddof=1) if len(returns) > 1 else 0.0
            peaks = []
            for record in found:
                peak = record["device_peak_bytes"] or record["host_peak_bytes"]
                peaks.append(float(peak or 0) / 1e9)
            rows.append(
                [
                    task,
                    where,
                    f"{mean_of(found, 'data_return'):,.1f}",
                    f"{np.mean(returns):,.1f} ± {spread:,.1f}",
                    f"{mean_of(found, 'delta_r2'):.3f}",
                    f"{mean_of(found, 'reward_r2'):.3f}",
                    f"{mean_of(found, 'frames_per_second'):,.0f}",
                    f"{max(peaks):.1f} GB",
                    str(len(found)),
                ]
            )
    heads = ["task", "device", "return of the data", "return", "R² of change", "R² of reward"]
    return markdown_table([*heads, "frames per second", "peak memory", "seeds"], rows)


def locomotion_grid(records: list[Record]) -> str:
    """Write mean returns ± deviation over seeds: datasets are rows, methods are columns.

    The last columns are the mean return of the data and the paper's GELATO.
    """
    summary = summarise_policies(sort_as_paper(records))
    methods = list_values(summary, "method")
    rows = []
    for dataset in list_values(summary, "dataset"):
        cells = select(summary, dataset=dataset)
        form = choose_format(cells)
        row = [dataset]
        for method in methods:
            found = select(cells, method=method)
            row.append(format_spread(found[0], "return", form) if found else "–")
        row.append(format_value(cells[0]["data_return"], form))
        row.append(format_value(paper_return(dataset, "gelato"), form))
        rows.append(row)
    means = {row["method"]: row for row in aggregate(records)}
    last = ["mean score (number of datasets)"]
    for method in methods:
        mean = means.get(method)
        last.append("–" if mean is None else f"{mean['mean_score']:.1f} ({mean['datasets']})")
    columns = ["dataset", *methods, "the data itself", "paper's GELATO"]
    return markdown_table(columns, [*rows, [*last, "–", "–"]])


def uncertainty_table(records: list[Record]) -> str:
    """Write rank correlation / AUROC of penalties by shift, means over model seeds, best first."""
    shifts = list_values(records, "shift")

    def mean(rows: list[Record], score: str) -> float | None:
        found = [float(row[score] or 0) for row in rows if row[score] is not None]
        return sum(found) / len(found) if found else None

    def cell(rows: list[Record]) -> str:
        return " / ".join(format_value(mean(rows, name), ".2f") for name in ("spearman", "auroc"))

    lines = []
    for dataset in list_values(records, "dataset"):
        of_dataset = select(records, dataset=dataset)
        by_penalty = {
            name: select(of_dataset, penalty=name) for name in list_values(of_dataset, "penalty")
        }
        ordered = sorted(by_penalty.items(), key=lambda item: -(mean(item[1], "spearman") or 0))
        for penalty, rows in ordered:
            cells = [cell(select(rows, shift=shift)) for shift in shifts]
            time = f"{mean(rows, 'microseconds') or 0:,.0f}"
            lines.append((dataset, penalty, *cells, cell(rows), time))
    return markdown_table(("dataset", "penalty", *shifts, "mean", "µs"), lines)


def penalty_weight_table(records: list[Record]) -> str:
    """Write mean returns by dataset, penalty and λ, best first."""
    fields = ("dataset", "penalty", "penalty_weight", "real_fraction", "updates")
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        key = tuple(str(record[name]) for name in fields)
        groups.setdefault(key, []).append(record)
    ordered = sorted(
        groups.items(), key=lambda item: (item[0][0], -mean_of(item[1], "return_late"))
    )
    rows = []
    for (*setting, updates), seeds in ordered:
        returns = [f"{mean_of(seeds, name):,.0f}" for name in ("return_late", "return_last")]
        rows.append((*setting, f"{int(updates):,}", *returns, str(len(seeds))))
    names = ("dataset", "penalty", "λ", "fraction of real data", "updates")
    return markdown_table((*names, "return, last three evaluations", "last", "seeds"), rows)


def settings_table(records: list[Record]) -> str:
    """Write mean ± standard deviation over seeds: settings are rows, datasets are columns."""
    columns = {
        "method": "{method}",
        "λ": "{penalty_weight:g}",
        "real data": "{real_fraction:.0%}",
        "branches × steps": "{branches:,d} × {horizon:d}",
        "replay": "{replay:,d}",
        "updates": "{updates:,d}",
    }
    datasets = [name for name in DATASETS if select(records, dataset=name)]
    settings: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        setting = tuple(template.format(**record) for template in columns.values())
        settings.setdefault(setting, []).append(record)
    rows = []
    for setting, found in settings.items():
        cells = [_describe_setting(select(found, dataset=name)) for name in datasets]
        rows.append((*setting, *cells))
    return markdown_table((*columns, *datasets), rows)


def _describe_setting(seeds: list[Record]) -> str:
    """Write a cell: mean and deviation of returns (low evaluations / all evaluations)."""
    if not seeds:
        return "–"
    returns = np.array([row["return"] or 0 for row in seeds], float)
    low = sum(int(row["low_evaluations"] or 0) for row in seeds)
    evaluations = sum(int(row["evaluations"] or 0) for row in seeds)
    counts = f" ({low}/{evaluations})" if evaluations else ""
    return f"{returns.mean():,.0f} ± {returns.std(ddof=1):,.0f}{counts}"


def selection_table(records: Sequence[Record]) -> str:
    """Write how well each estimator ranks the policies of each dataset.

    Regrets are in points of normalised score: the best policy's score minus that of the best of the
    first k. An estimate that is missing ranks last.
    """
    rows = []
    by_estimator: dict[str, list[tuple[float, float, float]]] = {}
    for dataset in list_values(records, "dataset"):
        of_dataset = select(records, dataset=dataset)
        for estimator in list_values(of_dataset, "estimator"):
            scores = score_ranking(select(of_dataset, estimator=estimator))
            by_estimator.setdefault(estimator, []).append(scores)
            rows.append((dataset, estimator, *map(_format_ranking, scores)))
    if len(list_values(records, "dataset")) == 1:
        by_estimator = {}
    for estimator, found in by_estimator.items():
        columns = [[value for value in column if not np.isnan(value)] for column in zip(*found)]
        means = [float(np.mean(column)) if column else float("nan") for column in columns]
        rows.append((f"mean of {len(found)}", estimator, *map(_format_ranking, means)))
    columns = ("dataset", "estimator", "rank correlation", "regret@1", "regret@3")
    return markdown_table(columns, rows)


def ranking_rules_table(records: Sequence[Record]) -> str:
    """Write how well rules to rank policies do, all computed from the same estimates."""
    datasets = list_values(records, "dataset")
    rows = []
    for rule in _make_rules(select(records, dataset=datasets[0])):
        scores = []
        for dataset in datasets:
            of_dataset = select(records, dataset=dataset)
            policies = select(of_dataset, estimator="cross-model")
            values = _make_rules(of_dataset)[rule]
            ranked = [
                {**policy, "estimate": float(value)}
                for policy, value in zip(policies, values, strict=True)
            ]
            scores.append(score_ranking(ranked)[:2])
        cells = [f"{rho:.2f} / {regret:.2f}" for rho, regret in scores]
        means = np.mean(scores, axis=0)
        rows.append((rule, *cells, f"{means[0]:.2f} / {means[1]:.2f}"))
    return markdown_table(("ranked by", *datasets, "mean"), rows)


def _make_rules(records: Sequence[Record]) -> dict[str, Float[np.ndarray, " policies"]]:
    """Return what every rule ranks the policies of one dataset by."""
    cross = _index_policies(records, "cross-model")
    fqe, common = _index_policies(records, "fqe"), _index_policies(records, "value, common λ")
    median, low = (np.array([record[f] for record in cross.values()]) for f in ("estimate", "low"))
    details = [json.loads(str(record["details"])) for record in cross.values()]
    quantile = np.array([each["lower_quantile"] for each in details])
    deviation = np.array([each["deviation"] for each in details])
    ranks = [stats.rankdata(quantile)]
    for others in (fqe, common):
        # An excluded estimate ranks last.
        known = [-np.inf if others[k]["problem"] else others[k]["estimate"] for k in cross]
        ranks.append(stats.rankdata(known))
    return {
        "cross-model, lower quantile": quantile,
        "cross-model, median": median,
        "cross-model, median − ½ deviation": median - deviation / 2,
        "cross-model, lower bound of the interval": low,
        "ranks of lower quantile and FQE": ranks[0] + ranks[1],
        "ranks of lower quantile, FQE and value, common λ": ranks[0] + ranks[1] + ranks[2],
        "FQE": ranks[1],
        "value, common λ": ranks[2],
    }


def _index_policies(records: Sequence[Record], estimator: str) -> dict[tuple[object, ...], Record]:
    """Index the records of one estimator by policy."""
    fields = ("penalty_weight", "real_fraction", "seed")
    return {tuple(r[f] for f in fields): r for r in select(records, estimator=estimator)}


def choices_table(records: Sequence[Record]) -> str:
    """Write what `select` chose and said for each dataset, and what turned out to be true.

    Times on a CPU are left out, because other programs may have used it.
    """
    timed = any(record["device"] != "CPU" for record in records)
    rows = []
    for record in records:
        values = {name: float(value or 0) for name, value in record.items() if _is_number(value)}
        form = "{:,.1f}" if abs(values["data_return"]) < 1_000 else "{:,.0f}"
        numbers = {name: form.format(value) for name, value in values.items()}
        interval = "unbounded"
        if record["low"] is not None and record["high"] is not None:
            interval = f"{numbers['low']} to {numbers['high']}"
        share = values["select_seconds"] / values["train_seconds"]
        true = numbers["return"]
        if record["return_error"] is not None:
            true += f" ± {form.format(1.96 * values['return_error'])}"
        rows.append(
            (
                str(record["dataset"]),
                f"{numbers['data_return']} ({numbers['data_low']} to {numbers['data_high']})",
                f"{record['method']}, seed {record['seed']}",
                f"{numbers['estimate']} ({interval})",
                str(record["verdict"]),
                true,
                f"{numbers['mean_return']} / {numbers['best_return']}",
                *([f"{share:.0%}"] if timed else []),
            )
        )
    columns = (
        "dataset",
        "logged return",
        "chosen of the grid",
        "estimated return",
        "verdict",
        "true return",
        "grid: mean / best",
        *(["time of select / train"] if timed else []),
    )
    return markdown_table(columns, rows)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def own_log_table(records: Sequence[Record]) -> str:
    """Write the estimated and the true return of every policy of a user's own log."""
    rows = []
    for record in records:
        exported = record.get("method") is None
        if not exported and record["estimator"] != "cross-model":
            continue
        bounds = [f"{float(record[name] or 0):,.0f}" for name in ("estimate", "low", "high")]
        if exported:
            policy = (
                "exported, measured",
                "–",
                "–",
                "–",
                f"{bounds[0]} ({bounds[1]} to {bounds[2]})",
            )
        else:
            true = f"{float(record['return'] or 0):,.0f}"
            interval = f"{bounds[1]} to {bounds[2]}"
            policy = (
                f"λ={record['penalty_weight']}",
                str(record["seed"]),
                bounds[0],
                interval,
                true,
            )
        rows.append(policy)
    columns = ("policy", "seed", "estimated return", "95% interval", "true return")
    return markdown_table(columns, rows)


def own_log_ranking(records: Sequence[Record]) -> str:
    """Write how well each estimator ranks the policies of a user's own log."""
    return selection_table([record for record in records if record.get("method") is not None])


def known_answers_table(records: Sequence[Record]) -> str:
    """Write coverage and width of intervals on systems whose answers are known."""
    rows = []
    for record in records:
        numbers = [f"{float(record[name] or 0):.2f}" for name in _KNOWN]
        rows.append((str(record["system"]), str(record["estimator"]), *numbers))
    columns = (
        "system",
        "estimator",
        "usable",
        "coverage",
        "worst policy",
        "width/spread",
        "error/spread",
    )
    return markdown_table(columns, rows)


def score_ranking(records: Sequence[Record]) -> tuple[float, float, float]:
    """Return rank correlation, regret@1 and regret@3 of one estimator on one dataset."""
    name = "score" if records[0]["score"] is not None else "return"
    true = np.array([float(record[name] or 0) for record in records])
    estimates = [record["estimate"] for record in records]
    if all(value is None for value in estimates):
        return float("nan"), float("nan"), float("nan")
    known = [-np.inf if value is None else float(value) for value in estimates]
    order = np.argsort(-np.array(known), kind="stable")
    regrets = [float(true.max() - true[order[:k]].max()) for k in (1, 3)]
    if np.unique(known).size < 2:
        return float("nan"), *regrets
    return float(stats.spearmanr(stats.rankdata(known), true).statistic), *regrets


def _format_ranking(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def driving_table(records: Sequence[Record]) -> str:
    """Write a row for each driving task and method, mean ± standard deviation over seeds.

    The best return is bold. Returns that do not differ from it significantly (Welch's test, 95%)
    are in italics.
    """
    rows: list[tuple[str, ...]] = []
    for task in TASKS:
        of_task = select(records, dataset=task)
        methods = sorted(list_values(of_task, "method"), key=_DRIVING_METHODS.index)
        last = {method: last_records(of_task, task, method) for method in methods}
        policies = [seeds for method, seeds in last.items() if method != "data"]
        best = max(policies, key=lambda seeds: mean_of(seeds, "return"), default=[])
        for method, seeds in last.items():
            mark = ""
            if method != "data":
                mark = "**" if seeds is best else "*" if is_tied(seeds, best) else ""
            rows.append((task, *_describe_driving(method, seeds, mark)))
    columns = ("task", "method", "return", "crash rate", "length", "seeds", "episodes")
    return markdown_table(columns, rows)


def _describe_driving(method: str, seeds: Sequence[Record], mark: str) -> tuple[str, ...]:
    returns = [float(record["return"] or 0) for record in seeds]
    spread = f" ± {np.std(returns, ddof=1):.2f}" if len(returns) > 1 else ""
    crashes = "–" if seeds[0]["crash_rate"] is None else f"{mean_of(seeds, 'crash_rate'):.0%}"
    episodes = sorted({int(record["episodes"] or 0) for record in seeds})
    return (
        "the data itself" if method == "data" else method,
        f"{mark}{np.mean(returns):.2f}{spread}{mark}",
        crashes,
        f"{mean_of(seeds, 'length'):.1f}",
        str(len(seeds)),
        " to ".join(map(str, episodes)),
    )


def last_records(records: Sequence[Record], dataset: str, method: str) -> list[Record]:
    """Select the records of a method's last policies, one for each seed."""
    found = select(records, dataset=dataset, method=method)
    steps = max((int(record["steps"] or 0) for record in found), default=0)
    return select(found, steps=steps)


def is_tied(seeds: Sequence[Record], best: Sequence[Record]) -> bool:
    """Return whether Welch's test finds no significant difference between two methods' returns."""
    returns = [[float(record["return"] or 0) for record in rows] for rows in (seeds, best)]
    if min(map(len, returns)) < 2:
        return False
    return not stats.ttest_ind(*returns, equal_var=False).pvalue < 1 - LEVEL


def mopo_table(records: list[Record]) -> str:
    """Write scores of MOPO's variants, best first, and what the simulator says about the model."""
    names = ("first_value", "discounted", "real_r2", "real_nll", "real_disagreement")
    variants = list_values(records, "variant")
    variants.sort(key=lambda name: -mean_of(select(records, variant=name), "score"))
    rows = []
    for variant in variants:
        seeds = select(records, variant=variant)
        scores = ", ".join(f"{row['score']:.1f}" for row in seeds)
        cells = [f"{mean_of(seeds, name):.3g}" for name in names]
        cells[2] = f"{mean_of(seeds, 'real_r2'):.4f}"
        rows.append((variant, f"{mean_of(seeds, 'score'):.1f}", scores, *cells))
    columns = ("variant", "score", "seeds", "value of first states", "real value")
    return markdown_table((*columns, "R² here", "−log-likelihood here", "disagreement"), rows)


def mopo_ensembles_table(records: list[Record]) -> str:
    """Write the held-out accuracy of MOPO's ensembles by recipe and updates, means over seeds."""
    rows = []
    for key, seeds in group_records(records, ("dataset", "ensemble", "step")).items():
        dataset, recipe, step = key
        cells = [f"{mean_of(seeds, name):.4f}" for name in ("r2", "r2_smallest", "r2_reward")]
        nll, sigma = f"{mean_of(seeds, 'nll'):.2f}", f"{mean_of(seeds, 'sigma'):.2f}"
        rows.append((dataset, recipe, f"{int(step):,}", *cells, nll, sigma, str(len(seeds))))
    columns = ("dataset", "recipe", "updates", "R² of change", "smallest", "R² of reward")
    return markdown_table((*columns, "−log-likelihood", "largest σ", "seeds"), rows)


def critics_table(records: list[Record]) -> str:
    """Write the scores of variants: the last evaluation, and the mean of the second half."""
    rows = []
    for key, seeds in group_records(records, ("dataset", "method", "variant")).items():
        dataset, method, variant = key
        last = ", ".join(f"{row['score']:.1f}" for row in seeds)
        late = ", ".join(f"{row['late_score']:.1f}" for row in seeds)
        step, total = int(seeds[0]["step"] or 0), int(seeds[0]["total"] or 0)
        updates = f"{step:,}" if step == total else f"{step:,} of {total:,}"
        mean = f"{mean_of(seeds, 'score'):.1f}"
        value = f"{mean_of(seeds, 'first_value'):.0f}"
        rows.append((dataset, method, variant, updates, mean, last, late, value))
    columns = ("dataset", "method", "variant", "updates", "score", "seeds", "second half")
    return markdown_table((*columns, "value of first states"), rows)


def ablation_table(records: Sequence[Record]) -> str:
    """Write the mean score of each change of the recipe, and its difference to the recipe itself.

    Differences are between equal datasets and seeds. The interval is over seeds: that of a mean
    over these datasets, each with its own variance.
    """
    rows = []
    groups = group_records(records, ("recipe", "penalty_weight", "change"))
    # The recipe comes first and everything together last.
    ordered = sorted(groups, key=lambda key: (key[0], key[2] != "none", key[2] == "all"))
    for recipe, weight, change in ordered:
        found = groups[recipe, weight, change]
        base = select(records, recipe=recipe, change="none")
        scores = f"{mean_over(found, 'score'):.1f}", f"{mean_over(found, 'late_score'):.1f}"
        difference = compare_seeds(found, base) if change != "none" else "–"
        datasets = len(list_values(found, "dataset"))
        updates = f"{int(found[0]['updates'] or 0):,}"
        count = f"{datasets} × {len(list_values(found, 'seed'))}"
        rows.append((change, f"{float(weight):g}", updates, count, *scores, difference))
    columns = ("change", "λ", "updates", "datasets × seeds", "score", "second half")
    return markdown_table((*columns, "difference to `none`"), rows)


def ablation_grid(records: Sequence[Record]) -> str:
    """Write the mean score of every change by dataset, with the scores of all seeds."""
    rows = []
    for (dataset, change), found in group_records(records, ("dataset", "change")).items():
        seeds = ", ".join(f"{row['score']:.1f}" for row in found)
        rows.append((dataset, change, f"{mean_of(found, 'score'):.1f}", seeds))
    return markdown_table(("dataset", "change", "score", "seeds"), rows)


def mean_over(records: Sequence[Record], name: str) -> float:
    """Average a field over datasets; every dataset counts the same."""
    groups = group_records(records, ("dataset",)).values()
    return float(np.mean([mean_of(found, name) for found in groups]))


def compare_seeds(records: Sequence[Record], base: Sequence[Record]) -> str:
    """Write the mean difference in score over common datasets and its 95% interval over seeds."""
    scores = {(row["dataset"], row["seed"]): float(row["score"] or 0) for row in base}
    gaps: dict[str, list[float]] = {}
    for row in records:
        before = scores.get((row["dataset"], row["seed"]))
        if before is not None:
            gaps.setdefault(str(row["dataset"]), []).append(float(row["score"] or 0) - before)
    if not gaps:
        return "–"
    mean = float(np.mean([np.mean(each) for each in gaps.values()]))
    freedom = sum(len(each) - 1 for each in gaps.values())
    if min(map(len, gaps.values())) < 2:
        return f"{mean:+.1f}"
    variance = sum(np.var(each, ddof=1) / len(each) for each in gaps.values())
    half = stats.t.ppf(0.5 + LEVEL / 2, freedom) * np.sqrt(variance) / len(gaps)
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def cells_table(records: Sequence[Record]) -> str:
    """Write the scores of the cell that `select` chose, and the mean of the best cell."""
    rows = []
    for (dataset, method), found in group_records(records, ("dataset", "method")).items():
        cells = group_records(found, ("penalty_weight", "real_fraction")).values()
        chosen = [row for row in found if row["selected"]]
        best = max(cells, key=lambda cell: mean_of(cell, "score"))
        seeds = ", ".join(f"{row['score']:.1f}" for row in chosen)
        cell = describe_cell(chosen[0]) if chosen else "–"
        mean = f"{mean_of(chosen, 'score'):.1f}" if chosen else "–"
        top = f"{mean_of(best, 'score'):.1f} ({describe_cell(best[0])})"
        rows.append((dataset, method, cell, mean, seeds, top, str(len(cells))))
    for (method,), found in group_records(records, ("method",)).items():
        chosen = [row for row in found if row["selected"]]
        datasets = len(list_values(found, "dataset"))
        mean = f"{mean_over(chosen, 'score'):.1f}" if chosen else "–"
        rows.append((f"mean of {datasets}", method, "–", mean, "–", "–", "–"))
    columns = ("dataset", "method", "selected cell", "score", "seeds", "best cell", "cells")
    return markdown_table(columns, rows)


def describe_cell(record: Record) -> str:
    """Write λ and the fraction of real data of a cell."""
    return f"λ {record['penalty_weight']:g}, {100 * float(record['real_fraction'] or 0):g}% real"


def group_records(
    records: Sequence[Record], names: Sequence[str]
) -> dict[tuple[str, ...], list[Record]]:
    """Group records by the values of these fields, in order of appearance."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(str(record[name]) for name in names), []).append(record)
    return groups


def chaos_table(records: list[Record]) -> str:
    """Write the trials and faults of `make chaos` by kind and stage, summed over its seeds."""
    counts: dict[tuple[str, str], list[int]] = {}
    kills = late = trials = faults = 0
    for record in records:
        kind, where = str(record["kind"]), str(record["where"])
        if kind in ("broken copy", "time"):
            continue
        count = counts.setdefault((kind, where), [0, 0])
        count[0] += int(record["trials"] or 0)
        count[1] += int(record["faults"] or 0)
    for (kind, where), (made, found) in counts.items():
        trials, faults = trials + made, faults + found
        if "kill" in kind:
            kills += made
            late += made if "after the first checkpoint" in where else 0
    rows = [
        (kind, where, f"{made:,}", f"{found:,}") for (kind, where), (made, found) in counts.items()
    ]
    rows.append(("**all**", "", f"{trials:,}", f"{faults:,}"))
    table = markdown_table(["disturbance", "command and stage", "trials", "faults"], sorted(rows))
    lines = [table]
    if kills:
        lines.append(f"\n{kills:,} kills, {late / kills:.0%} of them after the first checkpoint.\n")
    for record in select(records, kind="time"):
        seconds = record["seconds"]
        took = "time not recorded" if seconds is None else f"{float(seconds) / 3600:.2f} hours"
        lines.append(f"Seed {record['seed']}: {record['where']}, {took}.\n")
    return "".join(lines)


def broken_table(records: list[Record]) -> str:
    """Write how many trials report each deliberately broken copy."""
    rows = [
        (str(r["where"]), f"{r['faults']:,} of {r['trials']:,}")
        for r in select(records, kind="broken copy")
    ]
    return markdown_table(["removed", "trials that report it"], rows)


def growth_table(records: list[Record]) -> str:
    """Write time and memory of every stage, one row per size."""
    sizes = sorted({_number(record["transitions"]) for record in records})
    stages = ["import", "summary", "split", "fit", "embed"]
    rows = []
    for size in sizes:
        row = [f"{size:,.0f}"]
        for stage in stages:
            found = select(records, transitions=size, stage=stage)
            row.append(_write_growth(found[0]) if found else "–")
        rows.append(row)
    return markdown_table(["transitions", *stages], rows)


def _write_growth(record: Record) -> str:
    seconds, memory = _number(record["seconds"]), _number(record["peak_memory_gb"])
    return f"{seconds:,.{0 if seconds >= 10 else 1}f} s, {memory:.2f} GB"


def growth_fit_table(records: list[Record]) -> str:
    """Write the speed of fits from the disk and from memory."""
    rows = []
    for record in sorted(select(records, stage="fit"), key=lambda r: _number(r["transitions"])):
        rows.append(
            [
                f"{record['transitions']:,}",
                f"{record['updates_per_second']:.0f}",
                f"{record['updates_per_second_from_memory']:.0f}",
                f"{record['disk_ratio']:.0%}",
                f"{record['processor_ratio']:.0%}",
            ]
        )
    heads = ["transitions", "updates/s from disk", "from memory", "speed", "processor"]
    return markdown_table(heads, rows)


def growth_extrapolation(records: list[Record]) -> str:
    """Extrapolate the stages to 10⁹ transitions and 1,000 trials on 8 and 64 GPUs."""
    rows, trials = 1e9, 1_000
    once = ("import", "summary")
    one_time = {stage: _extrapolate(records, stage, "seconds", rows) for stage in once}
    split = _extrapolate(records, "split", "seconds", rows)
    stored = _number(records[0]["bytes"]) / _number(records[0]["transitions"])
    results = Path(__file__).parents[1] / "results"
    fits = select(
        read_records(results / "model.json"), dataset="hopper-medium", preset="default", seed=0
    )
    speeds = read_records(results / "speed.json")
    what = "from the data of hopper-medium to gelato alone, 5 seeds"
    training = _number(select(speeds, what=what)[0]["value"])
    together = int(_number(fits[0]["seeds_at_once"]))
    group = split + _number(fits[0]["seconds"]) + training
    read = 256 * stored * _number(fits[0]["updates_per_second"])
    memory = {
        stage: _extrapolate(records, stage, "peak_memory_gb", rows) for stage in ("import", "fit")
    }
    cells = [
        ["disk for the store", *[f"{rows * stored / 1e9:,.0f} GB"] * 2],
        ["import, once, in one process", *[f"{one_time['import'] / 3600:.1f} h"] * 2],
        ["summary, once", *[f"{one_time['summary'] / 60:.0f} min"] * 2],
        ["memory of the import", *[f"{memory['import']:.1f} GB"] * 2],
        ["memory of a fit on the host", *[f"{memory['fit']:.1f} GB"] * 2],
        ["split, in every group", *[f"{split / 60:.1f} min"] * 2],
    ]
    last: list[list[str]] = [["read by all fits at once"], ["1,000 trials"]]
    for devices in (8, 64):
        rounds = -(-trials // together // devices)
        last[0].append(f"{devices * read / 1e9:.2g} GB/s")
        last[1].append(f"{rounds * group / 3600:.1f} h")
    return markdown_table(["", "8 GPUs", "64 GPUs"], [*cells, *last])


def _extrapolate(records: list[Record], stage: str, field: str, rows: float) -> float:
    """Extend the line through the two largest sizes."""
    found = sorted(select(records, stage=stage), key=lambda r: _number(r["transitions"]))
    (first, low), (second, high) = (
        (_number(record["transitions"]), _number(record[field])) for record in found[-2:]
    )
    return high + max(high - low, 0) / (second - first) * (rows - second)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
