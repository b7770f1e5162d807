"""The map: sampled steps of the data in the plane, with their neighbours and their trust."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Num

from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset, choose_evenly
from gelato.geometry import Near, nearest_under_metric
from gelato.model.training import FittedModel
from gelato.progress import working
from gelato.report.latent_space import build_decoder_metric, encode_states
from gelato.report.page.collect.data import MOST_COLUMNS, choose_shown_columns
from gelato.report.page.collect.frames import list_frames
from gelato.report.page.collect.plane import Plane, find_plane
from gelato.report.page.collect.source import Source, name_actions
from gelato.report.page.records import MapSection
from gelato.training.policy_trust import ask_policy
from gelato.uncertainty.bounds import Predicted, predict_pairs
from gelato.uncertainty.embedded import rms
from gelato.uncertainty.penalty import NO_EXCLUSION, penalise
from gelato.uncertainty.trust import Trust

MOST_POINTS = 4_000
_MOST_NEW_POINTS = 2_000
_NEIGHBOURS, _SHORTLIST = 5, 16


@dataclass(frozen=True)
class MapPoints:
    """The section, and what later sections need of it."""

    section: MapSection
    plane: Plane
    states: Float[np.ndarray, "n state"]
    names: tuple[str, ...]
    """The names of all columns of the states."""
    trusted: np.ndarray | None
    """Whether the policy's action is trusted at each point, or the logged action without one."""


def collect_map(source: Source, new_log: Dataset | None = None) -> MapPoints | None:
    """Sample steps of the data evenly and describe each of them."""
    fitted = source.fitted
    if fitted is None:
        return None
    data, trust = fitted.dataset.transitions, source.trust
    with working("drawing the map of the data"):
        rows, held_out, own_rows = _choose_rows(source)
        chosen = data[rows]
        states, inputs = chosen.numbers, chosen.inputs
        codes = encode_states(fitted, fitted.seed(source.model_index), inputs)
        plane = find_plane(codes)
        columns = choose_shown_columns(states, MOST_COLUMNS)
        points, predicted = _describe_rows(source, fitted.dataset, rows, codes, plane, columns)
        points["held_out"] = held_out.astype(int)
        if trust is not None:
            points |= _judge(trust, predicted, own_rows)
        trusted = points.get("trusted")
        if trust is not None and source.policy is not None:
            verdict = trust(inputs, ask_policy(source.policy, inputs))
            points["policy_penalty"] = verdict.penalty
            trusted = verdict.trusted
        neighbours, lengths = _find_neighbours(source, states, codes)
        overlay = None
        if new_log is not None:
            overlay = _describe_new_log(source, new_log, plane, columns)
    names = tuple(fitted.dataset.list_state_names())
    section = MapSection(
        title=_title(codes.shape[1], plane),
        axes=("z[0]", "z[1]") if plane.variance is None else ("component 1", "component 2"),
        variance=plane.variance,
        total=len(data),
        limit=None if trust is None else trust.limit,
        state_names=tuple(names[column] for column in columns),
        state_columns=states.shape[1],
        action_names=name_actions(fitted.dataset)[: len(points["actions"])],
        points=points,
        neighbours=neighbours,
        distances=lengths,
        overlay=overlay,
        overlay_name=None if new_log is None else new_log.reference,
    )
    judged = None if trusted is None else np.asarray(trusted, bool)
    return MapPoints(section, plane, states, names, judged)


def _title(size: int, plane: Plane) -> str:
    if plane.variance is None:
        return f"the latent space itself, which has {size} dimension{'s' if size > 1 else ''}"
    return (
        f"the two main directions of the {size}-dimensional latent space, which show "
        f"{plane.variance:.0%} of its variance"
    )


def _choose_rows(
    source: Source,
) -> tuple[Int[np.ndarray, " n"], np.ndarray, Int[np.ndarray, " n"]]:
    """Choose rows of the data; say which are held out, and which data points of U they are.

    A row that U searches neighbours among must not be its own neighbour.
    """
    train, held_out = source.rows_of_parts
    total = len(train) + len(held_out)
    count = min(MOST_POINTS, total)
    few = min(len(held_out), max(1, round(count * len(held_out) / total)))
    from_train = choose_evenly(train, count - few)
    from_held_out = choose_evenly(held_out, few)
    rows = np.concatenate([train[from_train], held_out[from_held_out]])
    is_held_out = np.arange(len(rows)) >= len(from_train)
    own_rows = np.full(len(rows), NO_EXCLUSION, np.int32)
    if source.trust is not None:
        searched = choose_evenly(train, source.trust.points)
        place = np.searchsorted(searched, from_train).clip(max=len(searched) - 1)
        found = searched[place] == from_train
        own_rows[: len(from_train)][found] = place[found]
    order = np.argsort(rows, kind="stable")
    return rows[order], is_held_out[order], own_rows[order]


def _describe_rows(
    source: Source,
    dataset: Dataset,
    rows: Int[np.ndarray, " n"],
    codes: Float[np.ndarray, "n latent"],
    plane: Plane,
    columns: list[int],
) -> tuple[dict[str, Any], Predicted]:
    """Describe rows of any data of the same spaces, one list per quantity."""
    fitted = source.fitted
    assert fitted is not None
    data, places = dataset.transitions, plane(codes)
    chosen = data[rows]
    states, actions = chosen.numbers, np.asarray(chosen.actions)
    starts = np.array([episode.start for episode in data.episode_slices])
    episodes = np.searchsorted(starts, rows, side="right") - 1
    predicted = _predict(fitted, source.model_index, chosen.inputs, actions)
    following = fitted.scaling.states(np.asarray(chosen.next_states))
    errors = np.asarray(rms(predicted.mean - following))
    known = np.asarray(data.has_successor)[rows]
    points = {
        "x": places[:, 0],
        "y": places[:, 1],
        "episode": episodes,
        "step": rows - starts[episodes],
        "return": episode_returns(data)[episodes],
        "reward": np.asarray(data.rewards)[rows],
        "error": np.where(known, errors, np.nan),
        "states": states[:, columns].T,
        "actions": actions.reshape(len(rows), -1)[:, :MOST_COLUMNS].T,
    }
    if data.images:
        points["frames"] = list_frames(chosen.pixels, data.observed)
    return points, predicted


def _predict(
    fitted: FittedModel, index: int, inputs: np.ndarray, actions: Num[np.ndarray, "n *action"]
) -> Predicted:
    scaling = fitted.scaling
    encoded = scaling.action_space.encode(jnp.asarray(actions))
    return predict_pairs(fitted.seed(index), jnp.asarray(scaling.inputs(inputs)), encoded)


def _judge(
    trust: Trust, predicted: Predicted, own_rows: Int[np.ndarray, " n"] | None = None
) -> dict[str, Any]:
    """Judge logged pairs; a data point of U is not its own neighbour."""
    if own_rows is None:
        values = np.asarray(trust.penalise(predicted.embeddings))
    else:
        raw = penalise(trust.calibrated.penalty, predicted.embeddings, jnp.asarray(own_rows))
        values = np.asarray(trust.calibrated.scale(raw))
    return {"penalty": values, "trusted": (values <= trust.limit).astype(int)}


def _find_neighbours(
    source: Source, states: Float[np.ndarray, "n state"], codes: Float[np.ndarray, "n latent"]
) -> tuple[list[list[int]], list[list[float]]]:
    """Find the nearest other states of every point by geodesic distance in the latent space.

    Equal states count once: in a grid world all nearest points would be the same cell.
    """
    assert source.fitted is not None
    if source.fitted.dataset.transitions.images:
        # The metric of thousands of pixels takes minutes for all pairs.
        return [[] for _ in states], [[] for _ in states]
    _, first, place = np.unique(states, axis=0, return_index=True, return_inverse=True)
    k = min(_NEIGHBOURS, len(first) - 1)
    if k < 1:
        return [[] for _ in states], [[] for _ in states]
    metric = build_decoder_metric(source.fitted.seed(source.model_index))
    distinct = jnp.asarray(codes[first])
    found = source.try_to(
        "neighbours",
        lambda: nearest_under_metric(
            metric,
            distinct,
            distinct,
            k,
            shortlist=min(_SHORTLIST, len(first) - 1),
            # Exact enough for neighbours; the default solver needs minutes.
            solver=Near(),
            exclude=np.arange(len(first)),
        ),
    )
    if found is None:
        return [[] for _ in states], [[] for _ in states]
    place = place.reshape(-1)
    return first[found.indices][place].tolist(), found.distances[place].tolist()


def _describe_new_log(
    source: Source, new_log: Dataset, plane: Plane, columns: list[int]
) -> dict[str, Any]:
    """Describe steps of another log, on the same map."""
    fitted = source.fitted
    assert fitted is not None
    rows = choose_evenly(new_log.transitions, _MOST_NEW_POINTS)
    inputs = new_log.transitions[rows].inputs
    codes = encode_states(fitted, fitted.seed(source.model_index), inputs)
    points, predicted = _describe_rows(source, new_log, rows, codes, plane, columns)
    if source.trust is not None:
        points |= _judge(source.trust, predicted)
    return points
