"""Stack pytrees and take entries of them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from gelato.arrays import stack, take


class _Tree(eqx.Module):
    array: jnp.ndarray
    number: float
    name: str


def _tree(n: int) -> _Tree:
    return _Tree(jnp.full((2, 3), n), float(n), "same")


def test_what_is_stacked_can_be_taken_apart_again() -> None:
    together = stack([_tree(n) for n in range(4)])
    assert (
        together.array.shape == (4, 2, 3)
        and together.number.shape == (4,)
        and together.name == "same"
    )
    for index in range(4):
        one = take(together, index)
        np.testing.assert_array_equal(one.array, _tree(index).array)
        assert one.number == index and one.name == "same"
    np.testing.assert_array_equal(take(together, np.array([3, 1])).number, [3, 1])
