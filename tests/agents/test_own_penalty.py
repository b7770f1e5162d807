"""A penalty from outside the library: registered or as a value, in both spaces, or refused."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import gelato
from examples import own_penalty
from gelato.errors import InputError
from gelato.uncertainty import registry
from gelato.uncertainty.penalty import AbstractPenalty


class Constant(AbstractPenalty):
    """`U` is the same everywhere. The number is an array, like the data of most penalties."""

    level: jax.Array

    def __call__(self, e, exclude=-1):
        del exclude
        return self.level.astype(e.dtype)


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PENALTIES", dict(registry._PENALTIES))


@pytest.mark.slow
@pytest.mark.usefixtures("clean_registry")
def test_a_registered_penalty_a_function_and_a_value_are_trained_with_in_both_spaces(
    shared_store: Path, tmp_path: Path
) -> None:
    own_penalty.register()
    with pytest.raises(InputError, match="registered already"):
        own_penalty.register()
    dataset = gelato.load("four-rooms-hole,transitions=600")
    parts = own_penalty.choose_tiny_parts(dataset)
    parts = replace(parts, sac=replace(parts.sac, updates=4, epoch=2, branches=4))
    constant, methods = Constant(jnp.ones(())), []
    for name in ("gelato", "mopo"):
        method = gelato.make_method(name, parts)
        for penalty in ("nearest-point", own_penalty.build_nearest_point, constant):
            methods.append(replace(method, name=f"{name}-{len(methods)}", penalty=penalty))
    settings = replace(parts.settings, points=400)
    records = gelato.train(dataset, tmp_path / "run", methods, settings=settings, workers=1)
    assert [record["penalty"] for record in records] == [
        "nearest-point",
        "build_nearest_point",
        "Constant",
    ] * 2
    assert records[0]["mean_penalty"] == pytest.approx(records[1]["mean_penalty"], rel=1e-4)
    assert records[3]["mean_penalty"] > 0
    described = json.loads((tmp_path / "run" / "run.json").read_text())["methods"]
    assert described[2]["penalty"] == "Constant"
    with pytest.raises(InputError, match="works in latent space, not in state space"):
        replace(gelato.make_method("mopo", parts), penalty="geodesic")
