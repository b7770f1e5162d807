"""How good a fitted model is, on held-out episodes: one step ahead, and along real action sequences."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from scipy.stats import norm

from gelato.data.transitions import Transitions, evenly
from gelato.envs.termination import Rule, termination_rule
from gelato.model.config import ModelConfig
from gelato.model.fit import normalised_batch
from gelato.model.latent import LatentModel, Scaling, predict
from gelato.model.objective import Batch, objective_terms
from gelato.model.training import FittedModel, rank_warning

LEVELS = (0.5, 0.9, 0.99)
HORIZON = 50
_CHUNK = 4096
_ROWS = 100_000
_STARTS = 128
_SAMPLES = 32
# A latent dimension is active where its posterior mean varies over the data by more than this (Burda et al., 2016).
_ACTIVE_VARIANCE = 0.01


class StepRecord(eqx.Module):
    """Predictions for held-out rows in normalised units; the first axis is the row."""

    mean: Float[Array, "*n state"]
    variance: Float[Array, "*n state"]
    log_density: Float[Array, "*n"]
    reward: Float[Array, "*n 1"]
    ends: Bool[Array, "*n"]
    latent: Float[Array, "*n latent"]


def check_model(fitted: FittedModel, *, with_rollouts: bool = True) -> dict[str, Any]:
    """Measure every seed on the held-out episodes of its fit; plain values that print and serialise."""
    _, held_out = fitted.parts
    rows = evenly(held_out, _ROWS)
    seeds = [
        {"seed": seed, **_check_seed(fitted, fitted.seed(index), held_out, rows, with_rollouts=with_rollouts)}
        for index, seed in enumerate(fitted.seeds)
    ]
    state_size = held_out.states.shape[1]
    embedding_size = fitted.config.latent_size + held_out.action_space.size
    warnings = []
    if 2 * fitted.config.decoders * state_size < embedding_size:
        warnings.append(rank_warning(fitted.config.decoders, state_size, embedding_size))
    for result in seeds:
        if 2 * result["active_latents"] < min(fitted.config.latent_size, state_size):
            warnings.append(
                f"seed {result['seed']}: only {result['active_latents']} of {fitted.config.latent_size} latent "
                "dimensions are in use; the posterior has collapsed. Lower the KL weight or the minimum variance"
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
    fitted: FittedModel, model: LatentModel, held_out: Transitions, rows: np.ndarray, *, with_rollouts: bool
) -> dict[str, Any]:
    chosen = held_out[rows]
    batch = normalised_batch(chosen, fitted.scaling, jnp.ones((len(rows), model.members)))
    rule = termination_rule(fitted.dataset.environment, batch.states.shape[1])
    step = _steps(model, fitted.scaling, rule, batch)
    states, truth = np.asarray(batch.states), np.asarray(batch.next_states)
    error, change = np.asarray(step.mean) - truth, truth - states
    ended = np.asarray(chosen.terminated)
    result = {
        "delta_r2": _r2(error, change),
        "delta_r2_per_dimension": [_r2(error[:, [d]], change[:, [d]]) for d in range(error.shape[1])],
        "negative_log_likelihood": float(-step.log_density.mean()),
        **{f"coverage_{round(100 * level)}": _coverage(error, np.asarray(step.variance), level) for level in LEVELS},
        "reward_r2": _r2(np.asarray(step.reward - batch.rewards), np.asarray(batch.rewards)),
        **_termination_scores(np.asarray(step.ends), ended),
        "termination_by": "learned head" if rule is None else "known rule",
        "active_latents": int((np.asarray(step.latent).var(axis=0) > _ACTIVE_VARIANCE).sum()),
        "objective": _objective(model, batch, fitted.config),
    }
    if with_rollouts:
        result["rollouts"] = rollout_errors(fitted, model, held_out)
    return result


def _steps(model: LatentModel, scaling: Scaling, rule: Rule | None, batch: Batch) -> StepRecord:
    """One-step predictions, in chunks of bounded memory."""

    @eqx.filter_jit
    def chunk(model: LatentModel, part: Batch) -> StepRecord:
        return jax.vmap(lambda row: _step(model, scaling, rule, row))(part)

    starts = range(0, batch.rewards.shape[0], _CHUNK)
    parts = [chunk(model, _rows(batch, slice(start, start + _CHUNK))) for start in starts]
    return jax.tree.map(lambda *columns: np.concatenate(columns), *parts)


def _rows(batch: Batch, rows: slice) -> Batch:
    return jax.tree.map(lambda column: column[rows], batch)


def _step(model: LatentModel, scaling: Scaling, rule: Rule | None, row: Batch) -> StepRecord:
    prediction = predict(model, row.states, row.actions)
    next_state = prediction.next_state()
    ends = prediction.termination > 0.5 if rule is None else rule(jnp.asarray(scaling.states.inverse(next_state.mean)))
    return StepRecord(
        mean=next_state.mean,
        variance=next_state.variance,
        log_density=prediction.log_density(row.next_states),
        reward=prediction.reward.mean,
        ends=ends,
        latent=model.encode(row.states).mean,
    )


def _r2(error: np.ndarray, target: np.ndarray) -> float | None:
    """`1 − Σ error² / Σ (target − mean)²` over all columns; None for a constant target."""
    spread = np.square(target - target.mean(axis=0), dtype=np.float64).sum()
    return None if spread < 1e-12 * len(target) else float(1 - np.square(error, dtype=np.float64).sum() / spread)


def _coverage(error: np.ndarray, variance: np.ndarray, level: float) -> float:
    """How often the truth lies in the central interval of that level."""
    return float((np.abs(error) <= norm.ppf(0.5 + level / 2) * np.sqrt(variance)).mean())


def _termination_scores(predicted: np.ndarray, truth: np.ndarray) -> dict[str, float | int | None]:
    hits = int((predicted & truth).sum())
    return {
        "terminations": int(truth.sum()),
        "termination_precision": hits / int(predicted.sum()) if predicted.any() else None,
        "termination_recall": hits / int(truth.sum()) if truth.any() else None,
    }


def _objective(model: LatentModel, batch: Batch, config: ModelConfig) -> dict[str, float]:
    terms = eqx.filter_jit(objective_terms)(
        model,
        model.encoder,
        _rows(batch, slice(_CHUNK)),
        minimum_variance=config.minimum_variance,
        per_dimension=config.variance_per_dimension,
        key=jax.random.key(0),
    )
    return {name: float(value) for name, value in terms.items()}


def action_sequences(held_out: Transitions, horizon: int, starts: int) -> np.ndarray:
    """First rows of stretches of `horizon` steps inside held-out episodes, spread over all there are."""
    firsts = [np.arange(rows.start, rows.stop - horizon + 1) for rows in held_out.episode_slices]
    available = np.concatenate(firsts)
    return available[evenly(available, starts)]


def longest_horizon(held_out: Transitions) -> int:
    """The longest open-loop rollout the held-out episodes allow, at most `HORIZON`."""
    return min(HORIZON, max(rows.stop - rows.start for rows in held_out.episode_slices))


@eqx.filter_jit
def rollout(
    model: LatentModel,
    state: Float[Array, " state"],
    actions: Float[Array, "horizon action"],
    *,
    samples: int = _SAMPLES,
    key: PRNGKeyArray,
) -> Float[Array, "samples horizon state"]:
    """Open-loop rollouts: `z` encoded once, then `z′ ~ F(E(z, a))`, each sample seen through a decoder of its own.

    It looks at `F`'s mean: the decoders' σ is the error of a step from there.
    """

    def one(key: PRNGKeyArray) -> Float[Array, "horizon state"]:
        member_key, key = jax.random.split(key)
        member = jax.random.randint(member_key, (), 0, model.members)

        def step(z: Float[Array, " latent"], given: Any) -> Any:
            action, key = given
            forward_key, decoder_key = jax.random.split(key)
            e = model.embedding(z, action)
            decoded = model.decode(model.forward(e).mean)
            noise = jax.random.normal(decoder_key, decoded.mean.shape[1:])
            return model.imagine(e, key=forward_key), decoded.mean[member] + jnp.sqrt(decoded.variance[member]) * noise

        keys = jax.random.split(key, actions.shape[0])
        return jax.lax.scan(step, model.encode(state).mean, (actions, keys))[1]

    return jax.vmap(one)(jax.random.split(key, samples))


def rollout_errors(fitted: FittedModel, model: LatentModel, held_out: Transitions) -> dict[str, Any]:
    """Error of the mean of open-loop rollouts after each number of steps, beside that of predicting no change."""
    horizon = longest_horizon(held_out)
    starts = action_sequences(held_out, horizon, _STARTS)
    batch = normalised_batch(held_out, fitted.scaling, jnp.zeros((len(held_out), 0)))
    window = starts[:, None] + np.arange(horizon)
    keys = jax.random.split(jax.random.key(0), len(starts))
    states, truth = batch.states[starts], np.asarray(batch.next_states[window])
    run = jax.vmap(lambda state, actions, key: rollout(model, state, actions, key=key))
    sampled = np.asarray(run(states, batch.actions[window], keys))
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
