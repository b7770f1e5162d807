"""The example with a PyTorch decoder."""

import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.integration


def test_a_converted_decoder_returns_what_torch_returns_and_its_geodesics_converge() -> None:
    torch = pytest.importorskip("torch")
    from examples.torch_decoder import ACTIVATIONS, convert
    from gelato.geometry import Pullback, geodesics

    torch.manual_seed(0)
    layers = [torch.nn.Linear(2, 8)]
    for activation in ACTIVATIONS:
        layers += [activation(), torch.nn.Linear(8, 8, bias=activation is not torch.nn.Tanh)]
    network = torch.nn.Sequential(*layers)
    decode = convert(network)
    point = np.array([0.3, -0.8], np.float32)
    expected = network(torch.from_numpy(point)).detach().numpy()
    np.testing.assert_allclose(decode(jnp.asarray(point)), expected, rtol=1e-4, atol=1e-6)
    found = geodesics(Pullback(decode), point[None], -point[None])
    assert found.converged.all()
    with pytest.raises(TypeError, match="ReLU"):
        convert(torch.nn.Sequential(torch.nn.ReLU()))
