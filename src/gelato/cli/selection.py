"""`gelato select`: choose a policy from the log alone."""

import math
from typing import TYPE_CHECKING

from tyro.conf import Positional

from gelato.cli.arguments import MovedData, Trainings
from gelato.cli.output import print_fields, print_json, print_table, print_title
from gelato.errors import InputError

if TYPE_CHECKING:
    from gelato.selection.estimate import Estimate
    from gelato.selection.select import Selection

_SHOWN = 10
_COLUMNS = ("cross-model", "fqe", "value, common λ", "doubly robust")


def run_selection(
    runs: Positional[Trainings],
    all_estimators: bool = False,
    budget: int = 0,
    environment: str | None = None,
    json: bool = False,
    fitted_to: MovedData = None,
) -> None:
    """Choose the best policy of one or several runs without a simulator, and say how good it is.

    Policies are estimated from the log alone: by rollouts in models they were not trained in, which
    decide, and by fitted Q evaluation as a cross-check. The verdict is `better than the data`, `do
    not deploy` or `not shown to be better`. `evaluate` and `export` then use the chosen policy.

    Args:
        runs: Folders of `gelato train`, all on the same data.
        all_estimators: Also show the value under one common λ and importance weighting, which take
            no part in the choice.
        budget: Number of real episodes to spend on the best candidates; it needs the environment.
        environment: Environment of these episodes, such as `Pendulum-v1`. Default: the one that
            recorded the data.
        json: Print one JSON object instead of a report.
    """
    from gelato.data.reference import load
    from gelato.selection.select import select
    from gelato.tasks.environments import check_environment

    if not runs:
        raise InputError("name the folder of at least one run")
    if environment is not None:
        check_environment(environment)
    data = None if fitted_to is None else load(fitted_to)
    found = select(
        runs, all_estimators=all_estimators, budget=budget, environment=environment, data=data
    )
    if json:
        print_json(found.describe())
    else:
        print_verdict(found)


def print_verdict(found: "Selection") -> None:
    """Print the choice and the reasons for it."""
    from gelato.report.references import shorten_reference

    names = {estimate.estimator for estimate in found.chosen.estimates}
    estimators = [name for name in _COLUMNS if name in names]
    rows = []
    for candidate, score in found.ranking[:_SHOWN]:
        cells = [_write(candidate.find(name)) for name in estimators]
        cautious = f"{score:,.4g}" if math.isfinite(score) else "-"
        rows.append((candidate.method, candidate.seed, cautious, *cells))
    print_title(f"{shorten_reference(found.dataset)}, estimates from the log alone, best first")
    print_table(("policy", "seed", "cautious return", *estimators), rows)
    if found.trials:
        print_title("real episodes")
        tried = []
        for trial in found.trials:
            label = trial.candidate.method, str(trial.candidate.seed), str(len(trial.returns))
            tried.append((*label, _write(trial.estimate)))
        print_table(("policy", "seed", "episodes", "return"), tried)
    behaviour, estimate = found.behaviour, found.estimate
    spent = sum(len(trial.returns) for trial in found.trials)
    source = f"{spent} real episodes" if spent else "the log alone, no real episode"
    fields = {
        "verdict": found.verdict,
        "because": found.reasons[0],
        "estimated return": f"{_write(estimate)} (from {source})",
        "logged return": f"{behaviour.mean:,.4g} ({behaviour.low:,.4g} to {behaviour.high:,.4g}, "
        f"{behaviour.episodes:,} episodes)",
        "steps outside the data": "unknown"
        if found.outside_share is None
        else f"{found.outside_share:.0%}",
        "agreement of estimators": _describe_agreement(found.agreement),
    }
    for number, reason in enumerate(found.reasons[1:], start=1):
        fields[f"note {number}"] = reason
    print_fields(f"chosen: {found.chosen.method}, seed {found.chosen.seed}", fields)


def _write(estimate: "Estimate | None") -> str:
    if estimate is None:
        return "-"
    if not estimate.usable or estimate.low is None or estimate.high is None:
        return "excluded"
    return f"{estimate.estimate:,.4g} ({estimate.low:,.4g} to {estimate.high:,.4g})"


def _describe_agreement(agreement: float | None) -> str:
    if agreement is None:
        return "unknown; too few policies to compare"
    words = "they agree" if agreement > 0.6 else "they agree in part"
    if agreement < 0.2:
        words = "they do not agree"
    return f"{words} (rank correlation of cross-model and fqe {agreement:.2f})"
