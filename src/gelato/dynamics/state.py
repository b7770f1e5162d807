"""MOPO's dynamics: an ensemble of networks in normalised state space.

    (s′ − s, r) ~ N(μᵢ(s, a), σᵢ²(s, a)),  i a random elite at every step

Members are fitted by likelihood, each to its own sample of the data. The elites are those that
predict held-out episodes best.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.dynamics.interface import AbstractDynamics, Action, Embedded, Imagined, Latent
from gelato.errors import InputError, require_positive
from gelato.model.gaussian import Gaussian
from gelato.model.latent import Scaling
from gelato.model.networks import MLP
from gelato.tasks.task import Rule


@dataclass(frozen=True)
class EnsembleConfig:
    """Settings of the ensemble and its fit; the sizes are those of MOPO."""

    members: int = 7
    """Networks in the ensemble."""
    elites: int = 5
    """Number of networks used for rollouts: those with the smallest held-out loss."""
    hidden: tuple[int, ...] = (200, 200, 200, 200)
    """Widths of the hidden layers."""
    batch_size: int = 256
    """Transitions per update and network."""
    learning_rate: float = 1e-3
    """Learning rate of Adam, at the start if it decays."""
    learning_rate_decay: bool = False
    """Whether the learning rate decays to 1% along a cosine."""
    weight_decay: tuple[float, float] = (1.25e-5, 5e-5)
    """Factors of `½‖W‖²` in the loss for the first and the last layer, linear between them."""
    log_variance: tuple[float, float] = (-10.0, 0.5)
    """Soft bounds on log σ². If they are trained, these are the first values."""
    bound_weight: float = 0.005
    """Factor of the distance between these bounds in the loss, which trains them; 0: fixed."""
    bootstrap: bool = True
    """Whether every network has its own sample of the data, drawn with replacement."""
    by_error: bool = True
    """Whether held-out squared error selects weights and elites; otherwise likelihood does."""
    patience: int = 20_000
    """A fit ends after so many updates in which no network improves; 0: never."""
    updates: int = 300_000
    """Largest number of updates."""

    def __post_init__(self) -> None:
        require_positive(self, "members", "elites", "hidden", "batch_size", "learning_rate")
        require_positive(self, "updates")
        if self.elites > self.members:
            raise InputError(
                f"elites={self.elites}: must be at most the number of members, {self.members}"
            )
        low, high = self.log_variance
        if not low < high:
            raise InputError(
                f"the ensemble's log_variance is {self.log_variance}; the first bound must be the "
                "smaller one"
            )
        if min(*self.weight_decay, self.bound_weight, self.patience) < 0:
            raise InputError(
                "the ensemble's weight_decay, bound_weight and patience must not be negative"
            )


class Member(eqx.Module):
    """One network: `(s, a) ↦ N(μ, σ²)` for state change and reward, and a termination logit."""

    network: MLP
    low: Float[Array, "*batch target"]
    high: Float[Array, "*batch target"]

    def __call__(self, pair: Float[Array, " pair"]) -> tuple[Gaussian, Float[Array, ""]]:
        *_, end = out = self.network(pair)
        mean, raw = jnp.split(out[:-1], 2)
        log_variance = self.high - jax.nn.softplus(self.high - raw)
        log_variance = self.low + jax.nn.softplus(log_variance - self.low)
        return Gaussian(mean, jnp.exp(log_variance)), end


class StateDynamics(AbstractDynamics):
    """An ensemble, best member first. The `elites` imagine steps; policies see the state itself."""

    members: Member
    scaling: Scaling
    low: Float[Array, "*batch state"]
    high: Float[Array, "*batch state"]
    elites: int = eqx.field(static=True)
    rule: Rule | None = eqx.field(static=True)

    def encode(self, state: Float[Array, " input"]) -> Latent:
        return state

    def embed(self, latent: Latent, action: Action) -> Embedded:
        return jnp.concatenate([latent, action])

    def imagine(self, embedding: Embedded, *, key: PRNGKeyArray) -> Imagined:
        choice_key, noise_key, end_key = jax.random.split(key, 3)
        outcomes, ends = self.predict(embedding)
        which = jax.random.randint(choice_key, (), 0, self.elites)
        sample = Gaussian(outcomes.mean[which], outcomes.variance[which]).sample(key=noise_key)
        state = embedding[: len(sample) - 1] + sample[:-1]
        reward = self.scaling.rewards.inverse(sample[-1:])[0]
        if self.rule is None:
            ended = jax.random.bernoulli(end_key, jax.nn.sigmoid(ends[which]))
        else:
            ended = self.rule(jnp.asarray(self.scaling.states.inverse(state)))
        # Clip the state to the range of the data, because networks extrapolate without bound
        # outside it. The termination rule gets the state before clipping.
        return Imagined(jnp.clip(state, self.low, self.high), reward, ended)

    def sample_elites(
        self, embedding: Embedded, *, key: PRNGKeyArray
    ) -> Float[Array, "elites state"]:
        """Sample a next state from every elite."""
        outcomes, _ = self.predict(embedding)
        elites = Gaussian(outcomes.mean[: self.elites], outcomes.variance[: self.elites])
        change = elites.sample(key=key)[:, :-1]
        return jnp.clip(embedding[: change.shape[1]] + change, self.low, self.high)

    def predict(self, embedding: Embedded) -> tuple[Gaussian, Float[Array, " members"]]:
        """Return every member's outcome and log-odds of an end."""
        return eqx.filter_vmap(lambda member: member(embedding))(self.members)
