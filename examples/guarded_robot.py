"""A control loop that hands over to a safe controller where the learned policy is not trusted.

The robot is a cart with a pole (`InvertedPendulum-v5`). An operator recorded calm operation, a
policy was learned from this log, and both are exported with their guard as one ONNX file. Then the
pole is pushed, harder than anything in the log. Far from the data a network may do anything. The
guard says so before the action is taken, and a controller that was designed and not learned takes
over until the robot is back in the data.

    python examples/guarded_robot.py            # 5 minutes on 2 cores
    python examples/guarded_robot.py --short    # to see it run
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime

import gelato
from gelato.data import Dataset
from gelato.policy import export_guarded
from gelato.runs import Record, merge_records

ENVIRONMENT, LARGEST = "InvertedPendulum-v5", 3.0
# Gains of a linear controller for position, angle and their velocities.
OPERATOR = np.array([0.35, 6.0, 0.45, 1.0])
SAFE = np.array([1.5, 12.0, 1.6, 2.5])
# A push adds this much to the angular velocity, in radians per second, every 150 steps.
PUSHES, EVERY = (0.0, 1.0, 2.0), 150
STEPS = 300

Controller = Callable[[np.ndarray], np.ndarray]


@dataclass
class Guarded:
    """The exported policy and, where it is not trusted, a fallback if there is one."""

    session: onnxruntime.InferenceSession
    fallback: Controller | None
    steps: int = 0
    handed_over: int = 0

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        row = observation.astype(np.float32)[None]
        action, trusted = self.session.run(["action", "trusted"], {"observation": row})
        self.steps += 1
        if trusted[0] or self.fallback is None:
            return action[0]
        self.handed_over += 1
        return self.fallback(observation)


def control(gains: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """Push the cart in proportion to the state."""
    return np.clip(gains @ observation, -LARGEST, LARGEST)[None].astype(np.float32)


def operate(observation: np.ndarray) -> np.ndarray:
    """Keep the pole up as the operator did."""
    return control(OPERATOR, observation)


def keep_safe(observation: np.ndarray) -> np.ndarray:
    """Keep the pole up with more force; it knows nothing of the log."""
    return control(SAFE, observation)


def record(episodes: int, steps: int = 100) -> Dataset:
    """Record calm operation: nobody pushes, and the operator's hand trembles a little."""
    environment, rng = gymnasium.make(ENVIRONMENT), np.random.default_rng(0)
    rows: list[tuple[np.ndarray, np.ndarray, float, np.ndarray, bool, bool]] = []
    for episode in range(episodes):
        state, _ = environment.reset(seed=1_000 + episode)
        for step in range(steps):
            noise = 0.1 * rng.standard_normal(1)
            action = np.clip(operate(state) + noise, -LARGEST, LARGEST).astype(np.float32)
            after, reward, fell, _, _ = environment.step(action)
            rows.append((state, action, float(reward), after, fell, step == steps - 1))
            state = after
            if fell:
                break
    states, actions, rewards, following, fell_rows, ends = map(np.array, zip(*rows, strict=True))
    return gelato.make_dataset(
        states,
        actions,
        rewards,
        next_observations=following,
        terminals=fell_rows,
        timeouts=ends & ~fell_rows,
        action_space=gelato.data.Continuous((-LARGEST,), (LARGEST,)),
        environment=ENVIRONMENT,
        reference="calm operation",
    )


def learn(dataset: Dataset, folder: Path, updates: int) -> Path:
    """Fit a model, learn a policy from the log, and export both as one file."""
    parts = gelato.choose_parts(dataset, "small")
    config = replace(parts.latent.model, updates=updates, variance_updates=updates // 5)
    fitted = gelato.fit_model(dataset, folder / "model", config=config)
    cloning = replace(parts.cloning, updates=updates, epoch=min(updates, 1_000), hidden=(64, 64))
    settings = replace(parts.settings, evaluations=1, episodes=2)
    gelato.train(dataset, folder / "run", gelato.Method("bc", cloning), settings=settings)
    policy = gelato.trained_policies(folder / "run")[0].policy
    export_guarded(policy, gelato.Trust(fitted), folder / "guarded.onnx")
    return folder / "guarded.onnx"


def falls(controller: Controller, push: float, episodes: int) -> float:
    """Return the share of episodes in which the pole falls."""
    environment = gymnasium.make(ENVIRONMENT)
    body = environment.unwrapped
    fallen = 0
    for episode in range(episodes):
        state, _ = environment.reset(seed=episode)
        rng = np.random.default_rng(episode)
        for step in range(STEPS):
            if push and step % EVERY == EVERY // 2:
                speeds = body.data.qvel.copy()
                speeds[1] += push * rng.choice([-1, 1])
                body.set_state(body.data.qpos.copy(), speeds)
                state = np.concatenate([body.data.qpos, body.data.qvel])
            state, _, fell, _, _ = environment.step(controller(state))
            if fell:
                fallen += 1
                break
    return fallen / episodes


def main() -> None:
    """Learn, export, and compare the policy with and without its guard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a poor policy in a few episodes")
    parser.add_argument("--results", type=Path, help="also merge the records into this JSON file")
    arguments = parser.parse_args()
    short = arguments.short
    episodes, updates = (5, 1_000) if short else (50, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        path = learn(record(episodes=60), Path(folder), updates)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for push in PUSHES:
        alone = falls(Guarded(session, None), push, episodes)
        guarded = Guarded(session, keep_safe)
        with_guard = falls(guarded, push, episodes)
        share = guarded.handed_over / guarded.steps
        if arguments.results is not None:
            row: Record = {
                "what": "robot",
                "push": push,
                "unguarded_failures": alone,
                "guarded_failures": with_guard,
                "handed_over": round(share, 4),
                "episodes": episodes,
            }
            keys = ("what", "dataset", "penalty", "points", "push")
            merge_records(arguments.results, [row], keys)
        print(
            f"push {push:.1f} rad/s: {alone:.0%} of episodes fail without the guard, "
            f"{with_guard:.0%} with it (safe controller in {share:.1%} of steps)"
        )


if __name__ == "__main__":
    main()
