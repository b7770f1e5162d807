"""Networks of the model. Activations are smooth, because the metric uses their derivatives."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.model.gaussian import Gaussian

Network = TypeVar("Network")
Metrics = TypeVar("Metrics")

SMOOTH = ("silu", "tanh", "gelu", "softplus")
ACTIVATIONS = {
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "relu": jax.nn.relu,
}
# The trained log-precisions are multiplied by this factor. They must change by several units, but
# one Adam step changes a parameter only by about the learning rate.
_LOG_SCALE = 30.0
# Variance of an untrained network with separate mean and variance, above the minimum.
INITIAL_VARIANCE = 0.05
# Added to the variance of a layer's values before dividing by its root.
NORM_EPSILON = 1e-5


class Linear(eqx.Module):
    """`x ↦ W x + b`.

    A longer input is read in blocks of the layer's input size, and the results are joined: a
    convolution without overlap.
    """

    weight: Float[Array, "*batch out in"]
    bias: Float[Array, "*batch out"] | None

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        inputs = self.weight.shape[-1]
        if x.shape[0] != inputs:
            return jax.vmap(self)(x.reshape(-1, inputs)).ravel()
        # With this operand order, the values of one batch row are adjacent in memory, so
        # normalisation is fast.
        product = x @ self.weight.T
        return product if self.bias is None else product + self.bias


def linear_layers(
    sizes: Sequence[int],
    shortcut: bool = False,
    convolutions: Sequence[tuple[int, int]] = (),
    *,
    key: PRNGKeyArray,
) -> tuple[Linear, ...]:
    """Make untrained layers between these sizes, with weights uniform in ±1/√in.

    With `shortcut`, an additional last layer maps the first size to the last one. `convolutions`
    are sizes of layers before the second size, instead of a layer from the first size. All weights
    come from one draw. `eqx.nn.Linear` makes three, and the sixty arrays of a model took 17 seconds
    to compile.
    """
    pairs = [*convolutions, *pairwise(sizes[1:])] if convolutions else list(pairwise(sizes))
    shapes = [(b, a + 1) for a, b in pairs] + [(sizes[-1], sizes[0])] * shortcut
    stops = np.cumsum([math.prod(shape) for shape in shapes])
    drawn = jnp.split(jax.random.uniform(key, (int(stops[-1]),), minval=-1, maxval=1), stops[:-1])
    blocks = [numbers.reshape(shape) for numbers, shape in zip(drawn, shapes, strict=True)]
    layers = [
        Linear(block[:, :-1] / math.sqrt(a), block[:, -1] / math.sqrt(a))
        for block, (a, _) in zip(blocks, pairs, strict=False)
    ]
    return (*layers, Linear(blocks[-1] / math.sqrt(sizes[0]), None)) if shortcut else tuple(layers)


def choose_convolutions(in_size: int, history: int, width: int) -> list[tuple[int, int]]:
    """Choose the sizes of convolutions that reduce a window to `width` values.

    Each joins a few neighbouring rows; together they join all.
    """
    sizes, row_size, left = [], in_size // history, history
    while left > 1:
        kernel = next((k for k in (4, 2, 3, 5, 7) if left % k == 0), left)
        sizes.append((kernel * row_size, width))
        row_size, left = width, left // kernel
    return sizes


class AbstractNetwork(eqx.Module):
    """A function of one vector. `images.py` has the networks that read or predict images."""

    @abstractmethod
    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        """Return the outputs for one input."""


class MLP(AbstractNetwork):
    """`x ↦ W_L a(… a(W_1 x))`, optionally plus a linear shortcut `S x`.

    The shortcut learns the linear part, which is most of an encoder or decoder. With `history`, x
    is a window of `history` rows, and the first layers are convolutions over its rows. With
    `normalised`, the values of a hidden layer have mean 0 and deviation 1 before the activation.
    """

    layers: tuple[Linear, ...]
    shortcut: Linear | None
    activation: str = eqx.field(static=True)
    normalised: bool = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        hidden: Sequence[int],
        activation: str,
        *,
        shortcut: bool = False,
        final_scale: float = 1.0,
        input_scale: float = 1.0,
        history: int = 1,
        normalised: bool = False,
        key: PRNGKeyArray,
    ) -> None:
        convolutions = choose_convolutions(in_size, history, hidden[0]) if history > 1 else ()
        # The convolutions reduce a window to as many values as a hidden layer has.
        sizes = [in_size, *hidden[: bool(convolutions)], *hidden, out_size]
        layers = list(linear_layers(sizes, shortcut, convolutions, key=key))
        self.shortcut = layers.pop() if shortcut else None
        layers[0] = eqx.tree_at(
            lambda layer: layer.weight, layers[0], input_scale * layers[0].weight
        )
        layers[-1] = jax.tree.map(lambda weight: final_scale * weight, layers[-1])
        self.layers = tuple(layers)
        self.activation, self.normalised = activation, normalised

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        hidden = x
        for layer in self.layers[:-1]:
            plain = layer(hidden)
            hidden = ACTIVATIONS[self.activation](normalise(plain) if self.normalised else plain)
        out = self.layers[-1](hidden)
        return out if self.shortcut is None else out + self.shortcut(x)


def normalise(x: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
    """Return a layer's values with mean 0 and deviation 1."""
    centred = x - jnp.mean(x)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2) + NORM_EPSILON)


class GaussianMLP(eqx.Module):
    """`x ↦ N(μ(x), σ²(x))`; one network computes mean and variance: an MLP, or `network`."""

    network: AbstractNetwork
    minimum_variance: float = eqx.field(static=True)
    initial_variance: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        hidden: Sequence[int],
        activation: str,
        minimum_variance: float,
        *,
        shortcut: bool = False,
        initial_variance: float = 1.0,
        input_scale: float = 1.0,
        history: int = 1,
        normalised: bool = False,
        network: AbstractNetwork | None = None,
        key: PRNGKeyArray,
    ) -> None:
        self.network = network or MLP(
            in_size,
            2 * out_size,
            hidden,
            activation,
            shortcut=shortcut,
            input_scale=input_scale,
            history=history,
            normalised=normalised,
            key=key,
        )
        self.minimum_variance, self.initial_variance = minimum_variance, initial_variance

    def __call__(self, x: Float[Array, " in"]) -> Gaussian:
        mean, raw_variance = jnp.split(self.network(x), 2)
        return Gaussian(
            mean, make_positive(raw_variance, self.minimum_variance, self.initial_variance)
        )


class RadialVariance(AbstractNetwork):
    """`σ⁻²(x) = 1 + Σₖ wₖ exp(−‖x − cₖ‖²/2h²)`.

    Far from the centres the variance is 1, that of the standardised data. The variance of an MLP is
    arbitrary between the points it was fitted to. A metric that shows gaps in the data needs a
    variance that grows there (Arvanitidis, Hansen and Hauberg, 2018).
    """

    centres: Float[Array, "*batch centres in"]
    width: Float[Array, "*batch"]
    slow_weights: Float[Array, "*batch out centres"]

    def __init__(self, in_size: int, out_size: int, centres: int) -> None:
        self.centres, self.width = jnp.zeros((centres, in_size)), jnp.ones(())
        self.slow_weights = jnp.full((out_size, centres), 3.0 / _LOG_SCALE)

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        # Centres are not trained: one that moves into a gap would make the variance small there.
        centres, width = jax.lax.stop_gradient((self.centres, self.width))
        kernels = jnp.exp(-jnp.sum((x - centres) ** 2, axis=-1) / (2 * width**2))
        return 1 / (1 + self.weights @ kernels)

    @property
    def weights(self) -> Float[Array, "*batch out centres"]:
        """The weights `wₖ` of the kernels."""
        return jnp.exp(_LOG_SCALE * self.slow_weights)


class SplitGaussian(eqx.Module):
    """`x ↦ N(μ(x), σ²(x))` with two networks, so that one can be frozen while the other trains.

    They are MLPs, or those that `make` returns for a random key.
    """

    mean: AbstractNetwork
    raw_variance: AbstractNetwork
    minimum_variance: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        hidden: Sequence[int],
        activation: str,
        minimum_variance: float,
        *,
        shortcut: bool = False,
        centres: int = 0,
        input_scale: float = 1.0,
        make: Callable[[PRNGKeyArray], AbstractNetwork] | None = None,
        key: PRNGKeyArray,
    ) -> None:
        mean_key, variance_key = jax.random.split(key)
        if make is not None:
            self.mean = make(mean_key)
        else:
            self.mean = MLP(
                in_size,
                out_size,
                hidden,
                activation,
                shortcut=shortcut,
                input_scale=input_scale,
                key=mean_key,
            )
        if centres:
            self.raw_variance = RadialVariance(in_size, out_size, centres)
        elif make is not None:
            self.raw_variance = make(variance_key)
        else:
            self.raw_variance = MLP(in_size, out_size, hidden, activation, key=variance_key)
        self.minimum_variance = minimum_variance

    def variance(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        """Return `σ²(x)` without the mean."""
        if isinstance(self.raw_variance, RadialVariance):
            return self.minimum_variance + self.raw_variance(x)
        return make_positive(self.raw_variance(x), self.minimum_variance, INITIAL_VARIANCE)

    def __call__(self, x: Float[Array, " in"]) -> Gaussian:
        return Gaussian(self.mean(x), self.variance(x))


class Mixture(eqx.Module):
    """Several networks `x ↦ N(μⱼ(x), σⱼ²(x))`, of which each is right with the same probability.

    The member is the first axis of all arrays of `members`.
    """

    members: Any

    def __call__(self, x: Float[Array, " in"]) -> Gaussian:
        """Return mean and variance of the mixture."""
        return self.predict_all(x).merge()

    def predict_all(self, x: Float[Array, " in"]) -> Gaussian:
        """Return the prediction of every member, stacked."""
        return eqx.filter_vmap(lambda member: member(x))(self.members)

    def __len__(self) -> int:
        return len(jax.tree.leaves(eqx.filter(self.members, eqx.is_array))[0])


def make_positive(
    raw: Float[Array, " dim"], minimum: float, at_zero: float
) -> Float[Array, " dim"]:
    """Return `minimum + softplus(raw + c)`; `c` is chosen so that 0 gives `minimum + at_zero`."""
    return minimum + jax.nn.softplus(raw + softplus_offset(at_zero))


def softplus_offset(at_zero: float) -> float:
    """Return the `c` with `softplus(c) = at_zero`."""
    return math.log(math.expm1(at_zero))


def descend(
    optimiser: optax.GradientTransformation,
    state: optax.OptState,
    module: Network,
    loss: Callable[[Network], tuple[Float[Array, ""], Metrics]],
    adjust: Callable[[Network], Network] = lambda change: change,
) -> tuple[Network, optax.OptState, Metrics]:
    """Update all arrays of a module by one step of the optimiser, towards a smaller loss.

    `loss` also returns metrics. `adjust` can alter the change before it is applied.
    """
    trainable, static = eqx.partition(module, eqx.is_array)

    def measure(trainable: Network) -> tuple[Float[Array, ""], Metrics]:
        return loss(eqx.combine(trainable, static))

    gradient, metrics = jax.grad(measure, has_aux=True)(trainable)
    change, state = optimiser.update(gradient, state, trainable)
    changed = eqx.combine(optax.apply_updates(trainable, adjust(change)), static)
    return changed, state, metrics


def hold_constant(module: Network) -> Network:
    """Return the module as constants: a loss has no gradient for them."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_array(x) else x, module)


def apply_members(members: Any, *inputs: Float[Array, "n _"]) -> Any:
    """Apply every member of an ensemble to every row.

    The member is the first axis of the weights and of the result. Each member gets one copy of
    the inputs: a layer is then one batched product without a transpose.
    """
    count = len(jax.tree.leaves(eqx.filter(members, eqx.is_array))[0])
    own = [jnp.broadcast_to(x, (count, *x.shape)) for x in inputs]
    return eqx.filter_vmap(lambda member, *own: jax.vmap(member)(*own))(members, *own)
