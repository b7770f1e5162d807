"""Draw the walks of policies in Four Rooms, next to the data with its hole and the penalty.

python experiments/figures/paths.py --run RUN --out FILE.png
"""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.figures.command import run_figure
from gelato.data.recipes import RECIPES
from gelato.errors import InputError
from gelato.model.training import FittedModel, load_model
from gelato.report.figures import FigureRequest
from gelato.report.references import shorten_reference
from gelato.report.style import BLUE, INK, MARK, SHADE, add_legend, label_panels, save
from gelato.runs.folder import Run
from gelato.runs.records import read_records
from gelato.tasks import make_environment
from gelato.tasks.four_rooms import (
    ACTIONS,
    FOUR_ROOMS_GOAL,
    FREE,
    GOAL,
    SIZE,
    encode_position,
    find_cell,
)
from gelato.training import TrainedPolicy, trained_policies
from gelato.uncertainty.build import PenaltyInputs, build_penalty
from gelato.uncertainty.calibration import calibrate
from gelato.uncertainty.embedded import embed
from gelato.uncertainty.penalty import penalise

_WALKS = 8
_HOLE = next(recipe.hole for recipe in RECIPES.values() if recipe.hole is not None)


def draw_paths(request: FigureRequest) -> None:
    """Draw data, penalty and walks of a run of `gelato train four-rooms-hole`.

    For each method, draw the seed with the highest critic value; the title says so.
    """
    run = request.run
    policies = choose_most_valued(run)
    if policies[0].environment != FOUR_ROOMS_GOAL.environment:
        name = shorten_reference(policies[0].dataset)
        raise InputError(f"{run}: was trained on {name}. Train on four-rooms-hole")
    given = Run(run).description.get("model")
    fitted = load_model(Path(given) if given else run / "model")
    figure = Figure(figsize=(2.9 * (2 + len(policies)), 3.9), layout="constrained")
    axes = figure.subplots(1, 2 + len(policies))
    _draw_plan(axes[0], "where the data was")
    image = axes[0].imshow(np.ma.masked_equal(_count_visits(fitted), 0), cmap="Blues", vmin=0)
    figure.colorbar(
        image,
        ax=axes[0],
        location="bottom",
        shrink=0.8,
        label="transitions from a cell",
    )
    _draw_plan(axes[1], f"penalty of a step to the right\n(model seed {policies[0].seed})")
    image = axes[1].imshow(_penalise_plan(fitted, policies[0].seed), cmap="cividis", vmin=0)
    figure.colorbar(
        image, ax=axes[1], location="bottom", shrink=0.8, label="calibrated geodesic penalty U"
    )
    for axis, trained in zip(axes[2:], policies, strict=True):
        _draw_walks(axis, trained)
    label_panels(list(axes))
    add_legend(figure, list(axes[2:]))
    seeds = len(Run(run).description["seeds"])
    title = f"{_WALKS} walks of each policy"
    if seeds > 1:
        title += (
            f"; of {seeds} seeds, the one whose critic gives the first states the highest value"
        )
    figure.suptitle(title, fontsize=9)
    save(figure, request.out)


def choose_most_valued(run: Path) -> list[TrainedPolicy]:
    """Return, for every method, the policy with the largest value in its own pessimistic MDP."""
    records = read_records(Run(run).results)
    values = {(record["method"], record["seed"]): record["initial_value"] for record in records}

    def value(trained: TrainedPolicy) -> float:
        known = values[trained.method, trained.seed]
        return -math.inf if known is None else float(known)

    by_method = groupby(trained_policies(run), key=lambda trained: trained.method)
    return [max(own, key=value) for _, own in by_method]


def _draw_plan(axes: Axes, title: str) -> None:
    axes.imshow(np.where(FREE, np.nan, 1.0), cmap="gray", vmin=0, vmax=3.5)
    for region, colour, label in ((_HOLE, MARK, "hole"), (GOAL, BLUE, "goal")):
        top, left, bottom, right = region
        corner, size = (left - 0.5, top - 0.5), (right - left + 1, bottom - top + 1)
        axes.add_patch(
            Rectangle(corner, *size, fill=False, edgecolor=colour, linewidth=1.8, zorder=3)
        )
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(
            (left + right) / 2,
            bottom + 1,
            label,
            color=colour,
            ha="center",
            va="center",
            bbox=box,
            zorder=4,
        )
    axes.set(title=title, xticks=[], yticks=[], xlim=(-0.5, SIZE - 0.5), ylim=(SIZE - 0.5, -0.5))
    axes.set_facecolor(SHADE)


def _count_visits(fitted: FittedModel) -> Float[np.ndarray, "rows columns"]:
    counts = np.zeros(FREE.shape)
    for state in np.asarray(fitted.dataset.transitions.states):
        counts[find_cell(state)] += 1
    return counts


def _penalise_plan(fitted: FittedModel, seed: int) -> Float[np.ndarray, "rows columns"]:
    """Compute `U` of a step to the right from every free cell."""
    model = fitted.seed(fitted.seeds.index(seed))
    train, held_out = (embed(model, fitted.scaling, part) for part in fitted.parts)
    raw = build_penalty("geodesic", PenaltyInputs(model, train, held_out, segments=1))
    penalty = calibrate(raw, model, fitted.scaling, train)
    cells = np.argwhere(FREE)
    right = jax.nn.one_hot(ACTIONS.index("right"), len(ACTIONS))

    def embed_one(state: Float[Array, " state"]) -> Float[Array, " embedding"]:
        return model.embedding(model.encode(state).mean, right)

    states = jnp.asarray(fitted.scaling.states(encode_position(cells)))
    values = penalise(penalty, jax.vmap(embed_one)(states))
    plan = np.full(FREE.shape, np.nan)
    plan[tuple(cells.T)] = np.asarray(values)
    return plan


def _draw_walks(axes: Axes, trained: TrainedPolicy) -> None:
    environment = make_environment(FOUR_ROOMS_GOAL.environment)
    returns = []
    for seed in range(_WALKS):
        observation, info = environment.reset(seed=seed)
        cells, total, ended = [info["cell"]], 0.0, False
        while not ended:
            observation, reward, terminated, truncated, info = environment.step(
                trained.policy(observation)
            )
            cells.append(info["cell"])
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
        # Each walk is shifted slightly, so that walks over the same cells stay visible.
        walk = np.array(cells) + (seed - _WALKS / 2) * 0.06
        axes.plot(walk[:, 1], walk[:, 0], color=INK, linewidth=0.9, alpha=0.8, zorder=2)
        start = {"marker": "o", "color": INK, "markersize": 3, "zorder": 2}
        axes.plot(*walk[0, ::-1], linestyle="none", label="start of a walk", **start)
        end = {"marker": "D", "color": BLUE, "label": "end, the goal was reached"}
        if total == 0:
            end = {"marker": "X", "color": MARK, "label": "end, the goal was not reached"}
        axes.plot(*walk[-1, ::-1], linestyle="none", markersize=5, zorder=5, **end)
    steps = f"{np.mean(returns):.0f} of {FOUR_ROOMS_GOAL.steps} steps at the goal"
    _draw_plan(axes, f"{trained.method}, seed {trained.seed}\n{steps}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure from the command line."""
    run_figure(draw_paths, __doc__, arguments)


if __name__ == "__main__":
    main()
