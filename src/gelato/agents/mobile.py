"""MOBILE: SAC with a penalty on the inconsistency of Bellman targets (Sun et al., ICML 2023).

    U(z, a) = std_i E_{z′ ~ P_i(z, a)} E_{a′ ~ π} [ min_j Q_j(z′, a′) ]

over the members `P_i` of the ensemble. Rewards of imagined rows become `r − λU`. Members that
disagree about a state matter only if its value depends on it. U changes while the critics learn, so
it is computed in every update and not once per rollout, as the penalties of other methods are.

Two differences from SAC follow the authors' code: plain critics, and no entropy in the targets.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gelato.agents.agent import View
from gelato.agents.networks import Actor, Critic
from gelato.agents.replay import Experience
from gelato.agents.sac import SAC, Draws, SACState, compute_soft_values
from gelato.dynamics.interface import AbstractDynamics
from gelato.dynamics.state import StateDynamics


@dataclass(frozen=True)
class MOBILE(SAC):
    """SAC with a penalty on the inconsistency of Bellman targets."""

    needs_ensemble = True
    penalises = True

    critic_norm: bool = False
    """Whether the hidden layers of the critics are normalised."""
    soft_targets: bool = False
    """Whether the targets of the critics contain the entropy of the policy."""
    samples: int = 10
    """Next states drawn from every network of the ensemble."""

    def prepare_batch(
        self,
        view: View,
        state: SACState,
        batch: Experience,
        from_log: Bool[Array, " size"],
        draws: Draws,
    ) -> Experience:
        """Subtract the penalty from the rewards of imagined rows."""
        assert view.dynamics is not None
        actor, critics = state.networks.actor, state.target_critics
        U = self.measure_inconsistency(view.dynamics, actor, critics, batch, key=draws.key)
        rewards = batch.rewards - jnp.where(from_log, 0.0, view.penalty_weight * U)
        return eqx.tree_at(lambda b: b.rewards, batch, rewards)

    def measure_inconsistency(
        self,
        dynamics: AbstractDynamics,
        actor: Actor,
        critics: Critic,
        batch: Experience,
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, " size"]:
        """Return the standard deviation over members of the mean value of their next states."""
        assert isinstance(dynamics, StateDynamics)
        state_key, action_key = jax.random.split(key)

        def draw(
            z: Float[Array, " state"], action: Float[Array, " action"], key: PRNGKeyArray
        ) -> Float[Array, "samples members state"]:
            sample = jax.vmap(
                lambda key: dynamics.sample_elites(dynamics.embed(z, action), key=key)
            )
            return sample(jax.random.split(key, self.samples))

        keys = jax.random.split(state_key, len(batch.rewards))
        drawn = jax.vmap(draw)(batch.latents, batch.actions, keys)
        shape = drawn.shape[:-1]
        states = drawn.reshape(-1, drawn.shape[-1])
        noise = jax.random.normal(action_key, (len(states), actor.space.size))
        values, _ = compute_soft_values(actor, critics, states, jnp.zeros(()), noise)
        by_member = jnp.mean(values.reshape(shape), axis=1)
        return jnp.std(by_member, axis=1, ddof=1)
