"""Example of a task: an environment, its termination rule and its reference returns.

A cart on a short track must stay in the middle. It falls off at both ends. This termination rule is
known, so the model does not have to learn it.
"""

import tempfile
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

import gelato

EDGE = 1.0


class Cart(gymnasium.Env[np.ndarray, np.ndarray]):
    """The state is position and velocity of a cart; the action is a force in [−1, 1]."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.5, 0.5, 2)
        return self.state.astype(np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        position, velocity = self.state
        velocity += 0.2 * float(action[0]) + self.np_random.normal(0, 0.01)
        position += 0.1 * velocity
        self.state = np.array([position, velocity])
        fallen = bool(abs(position) > EDGE)
        return self.state.astype(np.float32), 1 - abs(position), fallen, False, {}


def has_fallen(state: Float[Array, " state"]) -> Bool[Array, ""]:
    """Return whether the cart is off the track; `gelato` calls this on imagined states."""
    return jnp.abs(state[0]) > EDGE


CART = gelato.register_task(
    gelato.Task(
        "cart",
        ("examples/Cart-v0",),
        entry_point=Cart,
        steps=100,
        # Mean returns of random forces and of a good controller: scores 0 and 100.
        reference_returns=(20.0, 95.0),
        termination=has_fallen,
        state_size=2,
        presets={
            "default": {"sac": {"discount": 0.97}},
            # With these sizes training takes a minute. Do not use them for real results.
            "small": {
                "model": {
                    "hidden": (32, 32),
                    "forward_hidden": (32, 32),
                    "updates": 2_000,
                    "variance_updates": 500,
                },
                "sac": {"hidden": (32, 32), "updates": 3_000, "epoch": 500, "branches": 100},
                "train": {"points": 1_000, "evaluations": 1, "episodes": 5},
            },
        },
    )
)


def record_log(episodes: int = 40) -> gelato.Dataset:
    """Record episodes of a controller that pushes in the right direction, with much noise."""
    environment = gymnasium.make(CART.environment)
    rng = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {}
    for episode in range(episodes):
        state, _ = environment.reset(seed=episode)
        over = False
        while not over:
            force = -state[0] - 0.5 * state[1] + rng.normal(0, 0.5)
            action = np.clip([force], -1, 1).astype(np.float32)
            after, reward, fallen, late, _ = environment.step(action)
            row = (state, action, reward, after, fallen, late)
            names = ("observations", "actions", "rewards", "next_observations")
            for name, value in zip((*names, "terminals", "timeouts"), row, strict=True):
                columns.setdefault(name, []).append(value)
            state, over = after, fallen or late
    return gelato.make_dataset(**columns, environment=CART.environment)


def main() -> None:
    """Train on the data and print normalised scores in the real environment."""
    dataset = record_log()
    print(f"the data has a score of {gelato.summarise(dataset)['normalised_score']:.0f}")
    with tempfile.TemporaryDirectory() as run:
        records = gelato.train(dataset, run, ["gelato", "bc"], preset="small")
    for record in records:
        print(f"{record['method']} has a score of {record['score']:.0f}")


if __name__ == "__main__":
    main()
