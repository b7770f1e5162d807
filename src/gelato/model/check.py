"""Measure the accuracy of a fitted model on held-out episodes, for one step and in rollouts."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from scipy.stats import norm

from gelato.data.transitions import Transitions, choose_evenly
from gelato.model.config import ModelConfig
from gelato.model.data_checks import describe_rank_problem
from gelato.model.fit import normalise_batch, normalise_inputs
from gelato.model.latent import LatentModel, Scaling, predict
from gelato.model.objective import Batch, compute_objective_terms
from gelato.model.training import FittedModel
from gelato.tasks.task import Rule, find_termination_rule

LEVELS = (0.5, 0.9, 0.99)
HORIZON = 50
_CHUNK, _IMAGE_CHUNK = 4096, 256
_ROWS = 100_000
_STARTS = 128
# Values of images in memory together.
_VALUES = 2**26
_SAMPLES, _IMAGE_SAMPLES = 32, 8
# A latent dimension is active if the variance of its posterior mean over the data exceeds this
# (Burda et al., 2016).
_ACTIVE_VARIANCE = 0.01


class StepRecord(eqx.Module):
    """Predictions for held-out rows, in normalised units. The first axis is the row."""

    mean: Float[Array, "*n state"]
    variance: Float[Array, "*n state"]
    log_density: Float[Array, "*n"]
    reward: Float[Array, "*n 1"]
    ends: Bool[Array, "*n"]
    latent: Float[Array, "*n latent"]


def check_model(fitted: FittedModel, *, with_rollouts: bool = True) -> dict[str, Any]:
    """Measure every seed on the held-out episodes of its fit; return values for JSON."""
    _, held_out = fitted.parts
    # Images are checked on fewer rows, because all of them are in memory as floats.
    most = min(_ROWS, _VALUES // held_out.layout.size) if held_out.images else _ROWS
    rows = choose_evenly(held_out, most)
    seeds = []
    for index, seed in enumerate(fitted.seeds):
        model = fitted.seed(index)
        found = _check_seed(fitted, model, held_out, rows, with_rollouts=with_rollouts)
        seeds.append({"seed": seed, **found})
    state_size = held_out.states.shape[1]
    embedding_size = fitted.config.latent_size + held_out.action_space.size
    warnings = []
    if 2 * fitted.config.decoders * state_size < embedding_size:
        warnings.append(describe_rank_problem(fitted.config.decoders, state_size, embedding_size))
    for result in seeds:
        if 2 * result["active_latents"] < min(fitted.config.latent_size, state_size):
            warnings.append(
                f"seed {result['seed']}: only {result['active_latents']} of "
                f"{fitted.config.latent_size} latent dimensions are active: the posterior "
                "collapsed. Use a smaller KL weight or minimum variance"
            )
    return {
        "run": str(fitted.run.folder),
        "dataset": fitted.dataset.reference,
        "held_out_transitions": len(held_out),
        "held_out_episodes": len(held_out.episode_slices),
        "evaluated": len(rows),
        "warnings": warnings,
        "seeds": seeds,
    }


def _check_seed(
    fitted: FittedModel,
    model: LatentModel,
    held_out: Transitions,
    rows: np.ndarray,
    *,
    with_rollouts: bool,
) -> dict[str, Any]:
    chosen = held_out[rows]
    batch = normalise_batch(chosen, fitted.scaling, jnp.ones((len(rows), model.members)))
    rule = find_termination_rule(fitted.dataset.environment, batch.states.shape[1])
    step = _predict_rows(model, fitted.scaling, rule, batch)
    states, truth = np.asarray(batch.states), np.asarray(batch.next_states)
    error, change = np.asarray(step.mean) - truth, truth - states
    ended = np.asarray(chosen.terminated)
    result = {
        "delta_r2": _compute_r2(error, change),
        "delta_r2_per_dimension": [
            _compute_r2(error[:, [d]], change[:, [d]]) for d in range(model.observed.numbers)
        ],
        "negative_log_likelihood": float(-step.log_density.mean()),
        **{
            f"coverage_{round(100 * level)}": _compute_coverage(
                error, np.asarray(step.variance), level
            )
            for level in LEVELS
        },
        "reward_r2": _compute_r2(
            np.asarray(step.reward - batch.rewards), np.asarray(batch.rewards)
        ),
        **_compute_termination_scores(np.asarray(step.ends), ended),
        "termination_by": "learned head" if rule is None else "known rule",
        "active_latents": int((np.asarray(step.latent).var(axis=0) > _ACTIVE_VARIANCE).sum()),
        "objective": _objective(model, batch, fitted.config),
    }
    if with_rollouts:
        result["rollouts"] = measure_rollouts(fitted, model, held_out)
    return result


def _predict_rows(
    model: LatentModel, scaling: Scaling, rule: Rule | None, batch: Batch
) -> StepRecord:
    """Predict one step from every row, in chunks of bounded memory."""
    parts = []
    chunk = _IMAGE_CHUNK if model.observed.images else _CHUNK
    for start in range(0, batch.rewards.shape[0], chunk):
        part = _take_rows(batch, slice(start, start + chunk))
        parts.append(_predict_chunk(model, scaling, rule, part))
    return jax.tree.map(lambda *columns: np.concatenate(columns), *parts)


@eqx.filter_jit
def _predict_chunk(
    model: LatentModel, scaling: Scaling, rule: Rule | None, part: Batch
) -> StepRecord:
    return jax.vmap(lambda row: _predict_row(model, scaling, rule, row))(part)


def _take_rows(batch: Batch, rows: slice) -> Batch:
    return jax.tree.map(lambda column: column[rows], batch)


def _predict_row(model: LatentModel, scaling: Scaling, rule: Rule | None, row: Batch) -> StepRecord:
    prediction = predict(model, row.inputs, row.actions)
    next_state = prediction.next_state()
    ends = (
        prediction.termination > 0.5
        if rule is None
        else rule(jnp.asarray(scaling.states.inverse(next_state.mean)))
    )
    return StepRecord(
        mean=next_state.mean,
        variance=next_state.variance,
        log_density=prediction.log_density(row.next_states),
        reward=prediction.reward.mean,
        ends=ends,
        latent=model.encode(row.inputs).mean,
    )


def _compute_r2(error: np.ndarray, target: np.ndarray) -> float | None:
    """Return `1 − Σ error² / Σ (target − mean)²` over all columns; None for a constant target."""
    spread = np.square(target - target.mean(axis=0), dtype=np.float64).sum()
    if spread < 1e-12 * len(target):
        return None
    return float(1 - np.square(error, dtype=np.float64).sum() / spread)


def _compute_coverage(error: np.ndarray, variance: np.ndarray, level: float) -> float:
    """Return how often the truth lies in the central interval of this level."""
    return float((np.abs(error) <= norm.ppf(0.5 + level / 2) * np.sqrt(variance)).mean())


def _compute_termination_scores(
    predicted: np.ndarray, truth: np.ndarray
) -> dict[str, float | int | None]:
    hits = int((predicted & truth).sum())
    return {
        "terminations": int(truth.sum()),
        "termination_precision": hits / int(predicted.sum()) if predicted.any() else None,
        "termination_recall": hits / int(truth.sum()) if truth.any() else None,
    }


_objective_terms = eqx.filter_jit(compute_objective_terms)


def _objective(model: LatentModel, batch: Batch, config: ModelConfig) -> dict[str, float]:
    terms = _objective_terms(
        model,
        model.encoder,
        _take_rows(batch, slice(_IMAGE_CHUNK if model.observed.images else _CHUNK)),
        minimum_variance=config.minimum_variance,
        per_dimension=config.variance_per_dimension,
        key=jax.random.key(0),
    )
    return {name: float(value) for name, value in terms.items()}


def choose_sequence_starts(held_out: Transitions, horizon: int, starts: int) -> np.ndarray:
    """Choose start rows of `horizon` steps each in held-out episodes, spread evenly."""
    firsts = [np.arange(rows.start, rows.stop - horizon + 1) for rows in held_out.episode_slices]
    available = np.concatenate(firsts)
    return available[choose_evenly(available, starts)]


def find_longest_horizon(held_out: Transitions) -> int:
    """Return the longest open-loop rollout that held-out episodes allow, at most `HORIZON`."""
    return min(HORIZON, max(rows.stop - rows.start for rows in held_out.episode_slices))


@eqx.filter_jit
def sample_rollouts(
    model: LatentModel,
    state: Float[Array, " input"],
    actions: Float[Array, "horizon action"],
    *,
    samples: int = _SAMPLES,
    key: PRNGKeyArray,
) -> Float[Array, "samples horizon state"]:
    """Sample open-loop rollouts: encode `z` once, then `z′ ~ F(E(z, a))`.

    Each sample uses one random decoder, and each step a random forward network. States are decoded
    at the mean of that network, because the decoders' σ was fitted to predictions from this mean.
    """

    def one(key: PRNGKeyArray) -> Float[Array, "horizon state"]:
        member_key, key = jax.random.split(key)
        member = jax.random.randint(member_key, (), 0, model.members)

        def step(
            z: Float[Array, " latent"], given: tuple[Array, PRNGKeyArray]
        ) -> tuple[Float[Array, " latent"], Float[Array, " state"]]:
            action, key = given
            forward_key, decoder_key = jax.random.split(key)
            e = model.embedding(z, action)
            forward, _ = model.draw_outcome(e, key=forward_key)
            decoded = model.decode(forward.mean)
            noise = jax.random.normal(decoder_key, decoded.mean.shape[1:])
            deviation = jnp.sqrt(decoded.variance[member])
            state = decoded.mean[member] + deviation * noise
            return model.support(forward.sample(key=forward_key)), state

        keys = jax.random.split(key, actions.shape[0])
        return jax.lax.scan(step, model.encode(state).mean, (actions, keys))[1]

    return jax.vmap(one)(jax.random.split(key, samples))


def measure_rollouts(
    fitted: FittedModel, model: LatentModel, held_out: Transitions
) -> dict[str, Any]:
    """Measure the error of mean open-loop rollouts after each number of steps.

    The result also has the error of predicting no change, for comparison.
    """
    horizon = find_longest_horizon(held_out)
    count, samples = _STARTS, _SAMPLES
    if held_out.images:
        samples = _IMAGE_SAMPLES
        count = min(count, max(1, _VALUES // (samples * horizon * held_out.observed.size)))
    starts = choose_sequence_starts(held_out, horizon, count)
    window = starts[:, None] + np.arange(horizon)
    keys = jax.random.split(jax.random.key(0), len(starts))
    scale = fitted.scaling.states
    states = jnp.asarray(scale(np.asarray(held_out.states[starts])))
    truth = np.asarray(scale(np.asarray(held_out.next_states[window])))
    actions = fitted.scaling.action_space.encode(np.asarray(held_out.actions)[window])
    run = jax.vmap(
        lambda state, actions, key: sample_rollouts(model, state, actions, samples=samples, key=key)
    )
    inputs = normalise_inputs(held_out[starts], fitted.scaling)
    sampled = np.asarray(run(inputs, actions, keys))
    low, high = np.quantile(sampled, (0.05, 0.95), axis=1)
    error = np.sqrt(np.square(sampled.mean(axis=1) - truth).mean(axis=(0, 2)))
    no_change = np.sqrt(np.square(np.asarray(states)[:, None] - truth).mean(axis=(0, 2)))
    return {
        "horizon": horizon,
        "starts": len(starts),
        "rmse": error.tolist(),
        "rmse_of_no_change": no_change.tolist(),
        "coverage_90": ((low <= truth) & (truth <= high)).mean(axis=(0, 2)).tolist(),
    }
