"""Judge a dataset before training: what is suspicious, and what can be learnt from it."""

from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from gelato.data.disk_columns import measure_width
from gelato.data.observations import shrink_images
from gelato.data.spaces import Discrete
from gelato.data.transitions import Dataset, Standardiser, Transitions, choose_evenly, split
from gelato.errors import InputError

Verdict = Literal["good", "thin", "missing"]

# Rows that checks with many comparisons look at.
_ROWS, _IMAGE_ROWS = 1_000_000, 5_000
_TRAINING_ROWS, _QUERIES, _CHUNK = 20_000, 2_000, 250
_FEWEST_EPISODES, _ENOUGH_EPISODES = 5, 20
_FEWEST_STEPS, _ENOUGH_STEPS = 1_000, 10_000
# Explained share of the variance.
_PREDICTABLE, _BARELY_PREDICTABLE = 0.5, 0.1
_DETERMINISTIC = 0.98
# Share of actions' range, or of the least used discrete action, that counts as varied.
_VARIED, _BARELY_VARIED = 0.2, 0.05
_COVERED, _BARELY_COVERED = 0.85, 0.5
# A held-out step is covered if it is as near as this share of the training steps are to the steps
# of other episodes.
_USUAL = 0.95
# It must also be nearer than this share of the distance between two random steps.
_NEAR = 0.5


@dataclass(frozen=True)
class Finding:
    """One topic of the check: a verdict, what was measured, and what to do."""

    topic: str
    verdict: Verdict
    measured: str
    advice: str = ""

    def describe(self) -> dict[str, str]:
        """Return the fields for JSON."""
        return asdict(self)


def find_warnings(dataset: Dataset) -> list[str]:
    """Return what looks wrong: constant columns, actions that never vary, duplicates."""
    data, warnings = dataset.transitions, []
    # Pixels may be constant: the background of an image is.
    numbers = data.numbers if data.images else data.states
    constant = np.flatnonzero(measure_width(numbers) == 0)
    if len(constant):
        listed = dataset.list_state_names()
        names = ", ".join(listed[column] for column in constant[:10])
        more = f" and {len(constant) - 10} more" if len(constant) > 10 else ""
        warnings.append(f"constant states: {names}{more}; leave them out")
    still = np.flatnonzero(np.atleast_1d(measure_width(data.actions) == 0))
    if len(still):
        names = ", ".join(dataset.name_action(int(column)) for column in still)
        warnings.append(f"actions that never vary: {names}; the effect of others is unknown")
    if dataset.columns and "rewards" not in dataset.columns and not data.reward_code:
        warnings.append("no rewards: add ,rewards=COLUMN or ,reward=my_reward.py before you train")
    elif measure_width(data.rewards) == 0 and not data.terminated.any():
        warnings.append(f"the reward is always {data.rewards[0]:g}")
    repeated = _count_duplicates(data)
    if repeated:
        warnings.append(f"{repeated:,} rows are copies of earlier rows; was a file read twice?")
    if len(data.episode_slices) == 1:
        warnings.append("a single episode: none can be held out, so no model can be fitted")
    return warnings


def _count_duplicates(data: Transitions) -> int:
    """Return how many of the first rows repeat an earlier one, bit by bit."""
    rows = slice(0, _IMAGE_ROWS if data.images else _ROWS)
    chosen = (data.states, data.actions, data.rewards, data.next_states)
    columns = [np.asarray(column[rows]) for column in chosen]
    packed = [np.ascontiguousarray(column.reshape(len(column), -1)) for column in columns]
    table = np.concatenate([column.view(np.uint8) for column in packed], axis=1)
    keys = np.ascontiguousarray(table).view(np.dtype((np.void, table.shape[1])))[:, 0]
    return len(keys) - len(np.unique(keys))


def judge_data(dataset: Dataset) -> list[Finding]:
    """Judge episodes, rewards, actions, coverage, and what a model can be expected to learn."""
    data = dataset.transitions
    if data.images:
        data = replace(
            data,
            states=shrink_images(data.states, data.observed),
            next_states=shrink_images(data.next_states, data.observed),
            images=(),
        )
    findings = [_judge_size(data), _judge_rewards(dataset), _judge_actions(dataset)]
    known = data.with_successors()
    try:
        train, held_out = split(known, 0.2)
    except InputError as error:
        return [*findings, Finding("held-out episodes", "missing", str(error), "see above")]
    probe = _Probe(train, held_out)
    return [*findings, probe.judge_choice(), probe.judge_coverage(), *probe.judge_predictions()]


def _grade(value: float | int, good: float | int, thin: float | int) -> Verdict:
    if value >= good:
        return "good"
    return "thin" if value >= thin else "missing"


def _judge_size(data: Transitions) -> Finding:
    episodes, steps = len(data.episode_slices), len(data)
    verdicts: list[Verdict] = [
        _grade(episodes, _ENOUGH_EPISODES, _FEWEST_EPISODES),
        _grade(steps, _ENOUGH_STEPS, _FEWEST_STEPS),
    ]
    worst = max(verdicts, key=["good", "thin", "missing"].index)
    advice = f"record at least {_ENOUGH_EPISODES} episodes and {_ENOUGH_STEPS:,} steps"
    if episodes < _FEWEST_EPISODES <= steps:
        advice += "; if there are more episodes, name `episode`, `timeouts` or `terminals`"
    return Finding(
        "amount",
        worst,
        f"{steps:,} steps in {episodes:,} episodes",
        "" if worst == "good" else advice,
    )


def _judge_rewards(dataset: Dataset) -> Finding:
    data, topic = dataset.transitions, "rewards"
    rewards = np.asarray(data.rewards)
    if np.ptp(rewards) == 0 and rewards[0] and data.terminated.any():
        return Finding(topic, "good", f"{rewards[0]:g} per step until an episode terminates")
    if np.ptp(rewards) == 0:
        return Finding(
            topic,
            "missing",
            f"every reward is {rewards[0]:g}",
            "add ,rewards=COLUMN or ,reward=my_reward.py",
        )
    _, counts = np.unique(rewards[choose_evenly(rewards, _ROWS)], return_counts=True)
    rare = 1 - counts.max() / counts.sum()
    verdict = _grade(rare, 0.05, 0.001)
    return Finding(
        topic,
        "thin" if verdict == "missing" else verdict,
        f"{rewards.min():.4g} to {rewards.max():.4g}; {rare:.1%} differ from the most frequent one",
        "" if verdict == "good" else "rewards are rare; reward progress as well",
    )


def _judge_actions(dataset: Dataset) -> Finding:
    data, topic = dataset.transitions, "variety of actions"
    space = data.action_space
    if isinstance(space, Discrete):
        counts = np.bincount(np.asarray(data.actions), minlength=space.n)
        share = float(counts.min() / counts.sum() * space.n)
        verdict = _grade(share, _VARIED, _BARELY_VARIED)
        measured = f"the rarest of {space.n} actions has {counts.min():,} steps"
    else:
        low, high = np.quantile(data.actions, (0.05, 0.95), axis=0)
        bounds = np.array([space.low, space.high], np.float64)
        width = np.where(np.isfinite(bounds).all(axis=0), bounds[1] - bounds[0], np.nan)
        width = np.where(np.isfinite(width), width, np.ptp(data.actions, axis=0))
        shares = (high - low) / np.maximum(width, 1e-12)
        narrowest = int(np.argmin(shares))
        verdict = _grade(float(shares[narrowest]), _VARIED, _BARELY_VARIED)
        measured = (
            f"90% of {dataset.name_action(narrowest)} lie in {shares[narrowest]:.0%} of its range"
        )
    advice = "record with more varied actions, or correct low= and high="
    return Finding(topic, verdict, measured, "" if verdict == "good" else advice)


class _Probe:
    """Predictions of held-out episodes by least squares and by the nearest training step."""

    def __init__(self, train: Transitions, held_out: Transitions):
        rows = choose_evenly(train, _TRAINING_ROWS)
        episodes = (np.cumsum(np.asarray(train.ends)) - np.asarray(train.ends))[rows]
        train, held_out = train[rows], held_out[choose_evenly(held_out, _QUERIES)]
        self._states = Standardiser.fit(np.asarray(train.states))
        self._spread = np.maximum(_list_actions(train).std(axis=0), 1e-6)
        self._train, self._test = self._describe(train), self._describe(held_out)
        self._changes = [_list_targets(part) for part in (train, held_out)]
        self._acted = [_list_actions(part) for part in (train, held_out)]
        self._nearest, self._distances = _find_nearest(self._train, self._test)
        sample = choose_evenly(self._train, _QUERIES)
        _, self._usual = _find_nearest(
            self._train, self._train[sample], (episodes, episodes[sample])
        )

        backwards = self._train[sample[::-1]]
        self._typical = np.median(np.linalg.norm(self._train[sample] - backwards, axis=1))

    def _describe(self, data: Transitions) -> Float[np.ndarray, "n input"]:
        """Return states and actions, each column in units of its standard deviation."""
        actions = _list_actions(data) / self._spread
        parts = [np.asarray(self._states(np.asarray(data.states))), actions]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def judge_choice(self) -> Finding:
        """Ask whether the log shows different actions in the same state."""
        size = self._states.mean.shape[0]
        inputs = [part[:, :size] for part in (self._train, self._test)]
        linear = _explain(_fit_linear(inputs[0], self._acted[0], inputs[1]), self._acted[1])
        nearest, _ = _find_nearest(inputs[0], inputs[1])
        same = _explain(self._acted[0][nearest], self._acted[1])
        best = max(linear, same)
        verdict: Verdict = "thin" if best > _DETERMINISTIC else "good"
        return Finding(
            "actions per state",
            verdict,
            f"the state predicts {max(best, 0):.0%} of their variance",
            "" if verdict == "good" else "nothing shows what other actions do; add exploration",
        )

    def judge_coverage(self) -> Finding:
        """Ask whether held-out episodes are near the others."""
        limit = min(np.quantile(self._usual, _USUAL), _NEAR * self._typical) + 1e-6
        share = float((self._distances <= limit).mean())
        verdict = _grade(share, _COVERED, _BARELY_COVERED)
        return Finding(
            "coverage",
            verdict,
            f"{share:.0%} of held-out steps are near other episodes",
            "" if verdict == "good" else "record more episodes from the same starts and policies",
        )

    def judge_predictions(self) -> list[Finding]:
        """Ask what a model can be expected to learn about the next state and the reward."""
        (train, train_reward), (test, test_reward) = self._changes
        findings = []
        for topic, known, truth, advice in (
            (
                "next state",
                train,
                test,
                "observations may lack a velocity or a delay; add columns that hold them",
            ),
            (
                "next reward",
                train_reward,
                test_reward,
                "rewards depend on something that is not observed, or are rare",
            ),
        ):
            linear = _explain(_fit_linear(self._train, known, self._test), truth)
            nearest = _explain(known[self._nearest], truth)
            verdict = _grade(max(linear, nearest), _PREDICTABLE, _BARELY_PREDICTABLE)
            findings.append(
                Finding(
                    topic,
                    verdict,
                    f"R² linear {linear:.2f}, nearest step {nearest:.2f}",
                    "" if verdict == "good" else advice,
                )
            )
        return findings


def _list_targets(data: Transitions) -> tuple[np.ndarray, np.ndarray]:
    changes = np.asarray(data.next_states, np.float64) - np.asarray(data.states, np.float64)
    return changes, np.asarray(data.rewards, np.float64)[:, None]


def _list_actions(data: Transitions) -> Float[np.ndarray, "n action"]:
    if isinstance(data.action_space, Discrete):
        return np.eye(data.action_space.n)[np.asarray(data.actions)]
    return np.asarray(data.actions, np.float64)


def _fit_linear(inputs: np.ndarray, targets: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return least-squares predictions for the queries."""
    ones = [np.ones((len(part), 1)) for part in (inputs, queries)]
    known = np.concatenate([inputs, ones[0]], axis=1, dtype=np.float64)
    weights, *_ = np.linalg.lstsq(known, targets, rcond=1e-8)
    return np.concatenate([queries, ones[1]], axis=1, dtype=np.float64) @ weights


def _explain(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Return R², the mean over the columns that vary."""
    variance = truth.var(axis=0)
    varies = variance > 1e-12
    if not varies.any():
        return 1.0
    error = ((predicted - truth) ** 2).mean(axis=0)
    return float((1 - error[varies] / variance[varies]).mean())


def _find_nearest(
    points: Float[np.ndarray, "n input"],
    queries: Float[np.ndarray, "k input"],
    groups: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest point of each query, and its distance.

    With `groups` of points and of queries, a query's own group does not count.
    """
    squares = (points**2).sum(axis=1)
    found = np.empty(len(queries), np.int64)
    distances = np.empty(len(queries))
    for start in range(0, len(queries), _CHUNK):
        rows = slice(start, start + _CHUNK)
        part = queries[rows]
        gaps = squares - 2 * part @ points.T
        if groups is not None:
            gaps[groups[1][rows, None] == groups[0]] = np.inf
        found[rows] = gaps.argmin(axis=1)
        # The difference again: the expanded square loses digits where points are close.
        distances[rows] = np.linalg.norm(part - points[found[rows]], axis=1)
    return found, distances
