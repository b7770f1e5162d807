"""Training in blocks: which results are kept."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gelato.errors import InputError
from gelato.runs import loop
from gelato.runs.folder import Run


@pytest.mark.parametrize("broken", [jnp.inf, jnp.nan])
def test_what_is_no_longer_finite_is_not_kept_and_what_never_was_is(
    broken: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    start = {"bound": jnp.full(1, jnp.inf), "weight": jnp.zeros(1)}

    def block(
        state: dict[str, jnp.ndarray], updates: int
    ) -> tuple[dict[str, jnp.ndarray], dict[str, np.ndarray]]:
        weight = state["weight"] + updates
        return {**state, "weight": jnp.where(weight > 4, broken, weight)}, {"loss": np.zeros(1)}

    folder = Run(tmp_path)
    settings = {"labels": [{"seed": 0}], "length": 2, "title": "counting"}
    with (
        folder.lock(),
        pytest.raises(InputError, match="not finite after 6 updates; the last checkpoint is kept"),
    ):
        loop.run_blocks(folder, start, block, total=8, **settings)
    assert folder.checkpoints == [2, 4]


def test_a_training_that_follows_another_counts_from_its_end(tmp_path: Path) -> None:
    folder, begun = Run(tmp_path), []

    def block(state: jnp.ndarray, updates: int) -> tuple[jnp.ndarray, dict[str, np.ndarray]]:
        begun.append(float(state[0]))
        return state + updates, {"loss": np.zeros(1)}

    settings = {"labels": [{"seed": 0}], "length": 2, "title": "counting"}
    with folder.lock():
        loop.run_blocks(folder, jnp.zeros(1), block, total=4, **settings)
        folder.save_checkpoint(4, jnp.full(1, 10.0))
        assert loop.run_blocks(folder, jnp.zeros(1), block, first=4, total=7, **settings)[0] == 13
    assert begun == [0, 2, 10, 12]
    assert [row["step"] for row in folder.metrics] == ["2", "4", "6", "7"]
