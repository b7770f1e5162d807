"""The decoder of the benchmark: an ensemble of Gaussian SiLU networks fitted to a curved map.

The targets have eleven dimensions, like a Hopper state. At `d = 35`, `G` is regular only because
of the ensemble.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.geometry import EnsemblePullback

OUT, MEMBERS, WIDTH = 11, 5, 256


class Decoder(eqx.Module):
    """`M` networks `z -> (μ, log σ)` with two hidden layers; parameters have `M` as first axis."""

    members: eqx.nn.MLP

    def __init__(self, dim: int, *, key: PRNGKeyArray):
        def member(key: PRNGKeyArray) -> eqx.nn.MLP:
            return eqx.nn.MLP(dim, 2 * OUT, WIDTH, 2, activation=jax.nn.silu, key=key)

        self.members = eqx.filter_vmap(member)(jr.split(key, MEMBERS))

    def __call__(
        self, point: Float[Array, " dim"]
    ) -> tuple[Float[Array, "M out"], Float[Array, "M out"]]:
        """Return the means and standard deviations of all members."""
        outputs = eqx.filter_vmap(lambda member: member(point))(self.members)
        return outputs[:, :OUT], 0.05 + jax.nn.softplus(outputs[:, OUT:])


def build_metric(decoder: Decoder) -> EnsemblePullback:
    """Build the expected pullback metric of the decoder (the corollary of Theorem 2)."""
    return EnsemblePullback(decoder)


def sample_latents(dim: int, count: int, *, key: PRNGKeyArray) -> Float[Array, "count dim"]:
    """Sample points near a curved sheet of at most six dimensions, like embedded trajectories."""
    intrinsic = min(dim, 6)
    sheet_key, noise_key = jr.split(key)
    R = jr.normal(jr.key(2), (dim, intrinsic), dtype=jnp.float32)
    u = jr.normal(sheet_key, (count, intrinsic), dtype=jnp.float32)
    return 1.4 * jnp.sin(0.5 * u @ R.T) + 0.2 * jr.normal(
        noise_key, (count, dim), dtype=jnp.float32
    )


def draw_target(dim: int) -> tuple[Float[Array, "hidden dim"], Float[Array, "out hidden"]]:
    """Draw `W` and `A` of the target `A sin(W z)`, which is curved at the scale of the latents."""
    frequency_key, amplitude_key = jr.split(jr.key(1))
    W = 1.2 * jr.normal(frequency_key, (32, dim), dtype=jnp.float32) / jnp.sqrt(dim)
    return W, jr.normal(amplitude_key, (OUT, 32), dtype=jnp.float32) / jnp.sqrt(16)


def train(dim: int, steps: int = 600, batch: int = 256) -> Decoder:
    """Fit the ensemble by Gaussian likelihood with separate batches per member; deterministic."""
    W, A = draw_target(dim)
    init_key, data_key = jr.split(jr.key(0))
    decoder = Decoder(dim, key=init_key)
    optimiser = optax.adam(optax.cosine_decay_schedule(2e-3, steps))

    def loss(decoder: Decoder, key: PRNGKeyArray) -> Float[Array, ""]:
        def one(member: eqx.nn.MLP, key: PRNGKeyArray) -> Float[Array, ""]:
            z_key, noise_key = jr.split(key)
            z = sample_latents(dim, batch, key=z_key)
            wave = jnp.sin(z @ W.T) @ A.T
            target = wave + 0.1 * (1 + jnp.sin(wave)) * jr.normal(noise_key, wave.shape)
            out = jax.vmap(member)(z)
            scale = 0.05 + jax.nn.softplus(out[:, OUT:])
            return jnp.mean(jnp.log(scale) + 0.5 * ((target - out[:, :OUT]) / scale) ** 2)

        return jnp.sum(eqx.filter_vmap(one)(decoder.members, jr.split(key, MEMBERS)))

    def step(
        carry: tuple[Decoder, optax.OptState], key: PRNGKeyArray
    ) -> tuple[tuple[Decoder, optax.OptState], Array]:
        params, state = carry
        value, grads = jax.value_and_grad(lambda p: loss(eqx.combine(p, static), key))(params)
        updates, state = optimiser.update(grads, state)
        return (optax.apply_updates(params, updates), state), value

    params, static = eqx.partition(decoder, eqx.is_array)
    run = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))
    (params, _), _losses = run((params, optimiser.init(params)), jr.split(data_key, steps))
    return eqx.combine(params, static)
