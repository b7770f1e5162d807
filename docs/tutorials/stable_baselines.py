# %% [markdown]
# # Our pessimistic MDP with Stable-Baselines3
#
# You know Stable-Baselines3 and want to keep using it. GELATO turns your log into a Gymnasium
# environment. Any algorithm of Stable-Baselines3 can learn in it.
#
# **You will learn** to make the environment, to train PPO in it, and to run the result in the real
# environment. **Time:** two minutes. It needs `pip install 'gelato-rl[sb3]'`.

# %%
from dataclasses import replace

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import stable_baselines3
import torch

import gelato
from gelato.mdp.stable_baselines import StableBaselinesEnv

# %% [markdown]
# ## From a log to an environment
#
# The log holds walks in four rooms. Nobody entered one region of the upper left room. Behind it is
# the goal.

# %%
log = gelato.load("four-rooms-hole")
config = replace(
    gelato.choose_parts(log, "small").latent.model, updates=8_000, variance_updates=200
)
fitted = gelato.fit_model(log, "rooms-model", config=config)


def make_environment(penalty_weight):
    return gelato.pessimistic_env(
        fitted,
        penalty="euclidean",
        penalty_weight=penalty_weight,
        horizon=10,
        num_envs=128,
    )


environment = make_environment(4.0)
observation, _ = environment.reset(seed=0)
_, reward, _, _, info = environment.step(np.zeros(128, int))
print("observations:", observation.shape, "actions:", environment.single_action_space)
print("penalties of the first steps:", info["penalty"][:5].round(2))

# %% [markdown]
# - The observations are *latent states* of the model, not those of the log.
# - The reward is `r − λU`. A step of clearly out-of-distribution pairs costs λ.
# - Episodes start at logged states and last 10 steps. Long episodes would collect the model's
#   errors.
#
# ## Train PPO
#
# `StableBaselinesEnv` wraps the 128 parallel episodes. One compiled call steps all of them. The
# networks are so small that several threads only wait for each other.


# %%
torch.set_num_threads(1)


def train(penalty_weight):
    env = StableBaselinesEnv(make_environment(penalty_weight))
    ppo = stable_baselines3.PPO(
        "MlpPolicy",
        env,
        n_steps=32,
        batch_size=1024,
        n_epochs=5,
        learning_rate=1e-3,
        gamma=0.97,
        ent_coef=0.01,
        seed=0,
        device="cpu",
    )
    return ppo.learn(320_000)


careful, naive = train(4.0), train(0.0)

# %% [markdown]
# ## Run it in the real environment
#
# The policies expect latent states. `EncodedEnv` encodes the real observations with the same model.


# %%
def walk(ppo, seed):
    real = gelato.EncodedEnv(gymnasium.make("gelato/FourRoomsGoal-v0"), fitted)
    observation, info = real.reset(seed=seed)
    cells, total, over = [info["cell"]], 0.0, False
    while not over:
        action, _ = ppo.predict(observation, deterministic=True)
        observation, reward, end, late, info = real.step(action)
        cells.append(info["cell"])
        total, over = total + reward, end or late
    return np.array(cells), total


walks = {
    name: [walk(ppo, seed) for seed in range(8)]
    for name, ppo in (("λ = 4", careful), ("λ = 0", naive))
}
for name, found in walks.items():
    print(name, "at the goal for", np.mean([total for _, total in found]), "of 60 steps")

# %% alt="Two plans of the four rooms with walks. With lambda 4 the walks go around the red region to the goal. With lambda 0 they walk into the red region and stop at the wall."
from gelato.tasks.four_rooms import FREE, GOAL

figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.8))
for axis, (name, found) in zip(axes, walks.items(), strict=True):
    axis.imshow(np.where(FREE, np.nan, 1.0), cmap="gray", vmin=0, vmax=2)
    for (top, left, bottom, right), colour in (((4, 4, 6, 6), "tab:red"), (GOAL, "tab:blue")):
        corner, size = (left - 0.5, top - 0.5), (right - left + 1, bottom - top + 1)
        axis.add_patch(plt.Rectangle(corner, *size, fill=False, edgecolor=colour, linewidth=2))
    for number, (cells, _) in enumerate(found):
        shown = cells + 0.07 * (number - 4)
        axis.plot(shown[:, 1], shown[:, 0], color="black", linewidth=1)
        axis.plot(*shown[-1, ::-1], "X", color="tab:green", markersize=7)
    axis.set(title=f"PPO with {name}", xticks=[], yticks=[])
plt.show()

# %% [markdown]
# Without the penalty PPO finds the shortcut that only the model believes in. With it, PPO walks
# around the unknown region (red) to the goal (blue).
#
# ## What can go wrong
#
# - **The algorithm exploits the model.** If the return in the environment rises and `penalty` in
#   `info` rises too, λ is too small.
# - **Long episodes.** Errors add up. Keep `horizon` at 5 to 20.
# - **No selection.** `gelato select` judges policies that `gelato train` made. It does not know
#   policies of other libraries. Judge their actions with `gelato.Trust`.
#
# Next: [policies](../guide/policies.md), [the pessimistic MDP](../api/mdp.md).
