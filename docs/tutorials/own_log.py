# %% [markdown]
# # From your log to a guarded policy
#
# You have a file of logged steps and no simulator. At the end of this page you have one file with a
# policy, and a guard that says at every step whether the policy knows what it does.
#
# **You will learn** the five steps: data, training, selection, trust and export. **Time:** two
# minutes, with settings that are far too small for real use.

# %%
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import matplotlib.pyplot as plt
import numpy as np

import gelato
from gelato.selection import SelectSettings, TemporalConfig

warnings.filterwarnings("ignore")

# %% [markdown]
# ## 1. The log
#
# A careless operator holds a pendulum upright. Large random errors disturb every push. The log
# holds observations, actions, rewards and the ends of episodes, one row per step. Your own log looks
# the same, whatever recorded it.

# %%
STEPS = 50


def operate(observation, rng):
    angle, speed = np.arctan2(observation[1], observation[0]), observation[2]
    return np.array([-6 * angle - speed + rng.normal(0, 1.5)])


def run_episode(control, rng):
    """Return the rows of one episode: observations, actions, rewards, ends."""
    environment = gymnasium.make("Pendulum-v1")
    environment.reset()
    environment.unwrapped.state = rng.uniform(-0.4, 0.4, 2)
    observation, rows = environment.unwrapped._get_obs(), []
    for step in range(STEPS):
        action = np.clip(control(observation), -2, 2).astype(np.float32)
        following, reward, *_ = environment.step(action)
        rows.append((observation, action, reward, step == STEPS - 1))
        observation = following
    return rows


rng, rows = np.random.default_rng(0), []
for _ in range(120):
    rows += run_episode(partial(operate, rng=rng), rng)
observations, actions, rewards, ends = map(np.array, zip(*rows, strict=True))
np.savez("log.npz", observations=observations, actions=actions, rewards=rewards, timeouts=ends)

log = gelato.load("file:log.npz,low=-2,high=2")
summary = gelato.summarise(log)
print(summary["transitions"], "steps,", summary["episodes"], "episodes")

# %% [markdown]
# Look at your log before you train on it. `gelato data info` prints ranges, ends and suspicious
# columns. One wrong unit costs more than any choice of algorithm.

# %% alt="A histogram of the returns of 120 logged episodes. Most are a little below zero, and some are much lower."
from gelato.data import episode_returns

returns = episode_returns(log.transitions)
figure, axes = plt.subplots(figsize=(6, 2.4))
axes.hist(returns, bins=20, color="tab:orange")
axes.axvline(returns.mean(), color="black", linestyle="--", label=f"mean {returns.mean():.0f}")
axes.set(xlabel="return of a logged episode", ylabel="episodes")
axes.legend()
plt.show()

# %% [markdown]
# ## 2. Train
#
# On the command line this is `gelato train file:log.npz,low=-2,high=2 --run run`. Here we shrink
# every size, so that the page builds quickly. λ is the price of leaving the data. Nobody knows the
# right λ in advance, so we train three.

# %%
parts = gelato.choose_parts(log, "small")
model = replace(
    parts.latent.model,
    latent_size=6,
    hidden=(64, 64),
    forward_hidden=(64, 64),
    updates=2_500,
    variance_updates=300,
)
sac = replace(parts.sac, hidden=(64, 64), updates=4_000, epoch=500, branches=200, discount=0.97)
settings = gelato.TrainSettings(evaluations=0, points=2_000, neighbours=10)
parts = replace(parts, latent=replace(parts.latent, model=model), sac=sac)
method = gelato.make_method("gelato", parts)
grid = gelato.vary_method(method, penalty_weights=(0.3, 3.0, 30.0))
records = gelato.train(log, "run", grid, settings=settings)
for record_ in records:
    print(f"{record_['method']:14} mean U of its imagined steps {record_['mean_penalty']:.3f}")

# %% [markdown]
# Look at the mean U of the imagined steps. If it grows during a real training, the policy leaves the
# data, and a larger λ holds it back.
#
# ## 3. Select
#
# No simulator tells you which policy is best. `select` estimates all returns from the log: with
# models of other episodes, and with critics.

# %%
selection = gelato.select(
    "run",
    settings=SelectSettings(
        episodes=8,
        model_updates=1_000,
        half_seeds=1,
        points=2_000,
        critics=TemporalConfig(hidden=(64, 64), updates=500),
    ),
)
print("chosen:", selection.chosen.method)
print("verdict:", selection.verdict)
print("because", selection.reasons[0])

# %% [markdown]
# Read the verdict with care. "Not shown to be better" is the usual answer for a small log: the
# intervals overlap. "Better than the data" is a reason to test the policy, not a proof.
#
# In this tutorial we may cheat and run every policy on the real pendulum. You cannot do this with
# your machine. That is why `select` exists.

# %% alt="For each lambda a dot with an interval shows the return estimated from the log, and a cross shows the true return. A grey band is the logged return."
true = {}
for trained in gelato.trained_policies("run"):
    rng = np.random.default_rng(1)
    episodes = [run_episode(trained.policy, rng) for _ in range(20)]
    true[trained.method] = sum(row[2] for rows in episodes for row in rows) / len(episodes)

figure, axes = plt.subplots(figsize=(6, 3))
behaviour = selection.behaviour
axes.axhspan(behaviour.low, behaviour.high, color="0.85", label="logged return (95%)")
for place, (candidate, _) in enumerate(selection.ranking):
    estimate = candidate.find("cross-model")
    error = [[estimate.estimate - estimate.low], [estimate.high - estimate.estimate]]
    axes.errorbar(place, estimate.estimate, error, fmt="o", color="tab:blue", capsize=4)
    axes.plot(place, true[candidate.method], "x", color="tab:red", markersize=9)
axes.plot([], [], "o", color="tab:blue", label="estimated from the log (95%)")
axes.plot([], [], "x", color="tab:red", label="true return")
names = [candidate.method for candidate, _ in selection.ranking]
axes.set_xticks(range(len(names)), names)
axes.set(ylabel="return")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## 4. Does the policy leave the data?
#
# A good estimate is worth little if the policy goes where nobody has been. This is
# `gelato trust run --policy`.

# %%
from gelato.training import judge_policies

judged = judge_policies("run", method=selection.chosen.method, rollouts=50, horizon=50)[0]
for name, value in judged.items():
    if isinstance(value, float):
        print(f"{name:28} {value:.2f}")

# %% [markdown]
# ## 5. Export
#
# One ONNX file holds the policy, the guard and the bound of the model's error. It needs no Python.

# %%
import onnxruntime

from gelato.policy import export_guarded

policy = gelato.trained_policies("run", method=selection.chosen.method)[0].policy
export_guarded(policy, gelato.Trust("run", points=1_000), Path("policy.onnx"))
session = onnxruntime.InferenceSession("policy.onnx")


def ask(observation):
    row = np.asarray(observation, np.float32)[None]
    action, trusted, penalty = session.run(["action", "trusted", "penalty"], {"observation": row})
    return action[0], bool(trusted[0]), float(penalty[0])


examples = {"logged state": log.transitions.states[10], "broken sensor": [5, 5, 90]}
for name, observation in examples.items():
    action, trusted, penalty = ask(observation)
    print(f"{name:14} U {penalty:6.2f}  trusted: {trusted}")

# %% [markdown]
# Your control loop asks at every step, and uses a safe controller where the answer is not trusted.
# [Deploying](../guide/deploying.md) has this loop.
#
# ## What can go wrong
#
# - **The log is too good.** If every episode looks the same, there is nothing to learn from, and
#   every other action is out of distribution.
# - **The log is too small.** Expect "not shown to be better". More episodes help most.
# - **Wrong ends.** If episodes are not marked, the model learns jumps between them. Read the notes
#   that `gelato data info` prints.
#
# Next: [your own log](../guide/own_log.md), [choosing a policy](../guide/selection.md),
# [deploying](../guide/deploying.md).
