# %% [markdown]
# # Where can I trust my model?
#
# A model learned from a log is good near the log and wrong elsewhere. It does not tell you where
# "elsewhere" begins. `gelato.Trust` does.
#
# **You will learn** to fit a model, to draw where it is trusted, and to check this against the
# truth. **Time:** two minutes.

# %%
from dataclasses import replace

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm, Normalize

import gelato

# %% [markdown]
# ## A log with a gap
#
# The log comes from a pendulum that somebody pushed at random. It always started near the bottom,
# so it never reached the top, and it was never fast.

# %%
PARTS = ("observations", "actions", "rewards", "next_observations", "timeouts")


def record(episodes, seed=0, steps=30):
    environment, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed)
    columns = {name: [] for name in PARTS}
    for episode in range(episodes):
        environment.reset(seed=1000 * seed + episode)
        environment.unwrapped.state = np.array([np.pi, 0.0]) + rng.normal(0, 0.8, 2)
        state = environment.unwrapped._get_obs()
        push = 0.0
        for step in range(steps):
            push = 0.9 * push + rng.normal(0, 0.6)
            action = np.clip([push], -2, 2).astype(np.float32)
            after, reward, *_ = environment.step(action)
            row = (state, action, reward, after, step == steps - 1)
            for name, value in zip(PARTS, row, strict=True):
                columns[name].append(value)
            state = after
    return gelato.make_dataset(
        **columns, action_space=gelato.data.Continuous((-2.0,), (2.0,)), reference="pendulum log"
    )


log = record(episodes=200)
print(gelato.summarise(log)["transitions"], "transitions")

# %% [markdown]
# ## Fit a model
#
# These settings are small, so that this page builds in a moment. For your own log, leave out
# `config`.

# %%
config = replace(
    gelato.choose_parts(log, "small").latent.model,
    hidden=(64, 64),
    forward_hidden=(64, 64),
    latent_size=6,
    updates=3_000,
    variance_updates=500,
)
fitted = gelato.fit_model(log, "trust-model", config=config)
print(f"R² of the state change: {gelato.check_model(fitted)['seeds'][0]['delta_r2']:.3f}")

# %% [markdown]
# An R² near 1 looks like a good model. But it was measured on held-out episodes *of the same log*.
# It says nothing about the top of the swing.
#
# ## Ask before you trust
#
# `Trust` takes states and actions in the units of the data.

# %%
trust = gelato.Trust(fitted)
hanging, upright = [-1.0, 0.0, 0.0], [1.0, 0.0, 6.0]
verdict = trust(np.array([hanging, upright]), np.zeros((2, 1)))
print("U:      ", verdict.penalty.round(2), "limit:", round(trust.limit, 2))
print("trusted:", verdict.trusted)

# %% [markdown]
# `U` is 0 on typical data and about 1 far outside of it. The limit is chosen so that at most 5% of
# the steps of a *new* episode are called "not trusted" by mistake.
#
# ## Compare with the truth
#
# A pendulum has known physics, so here we can compute what the model cannot know: its true error
# everywhere. Each picture shows all angles and speeds, with no push. The error has a logarithmic
# scale.

# %%
angles, speeds = np.meshgrid(np.linspace(-np.pi, np.pi, 45), np.linspace(-8, 8, 45))
# An angle of 0 is hanging down. Pendulum-v1 counts from the top.
states = np.stack([-np.cos(angles), -np.sin(angles), speeds], axis=-1).reshape(-1, 3)
pushes = np.zeros((len(states), 1))


def swing(states, pushes):
    """Return the true next states: the equations of Pendulum-v1."""
    angle = np.arctan2(states[:, 1], states[:, 0])
    speed = states[:, 2] + 0.05 * (15 * np.sin(angle) + 3 * pushes[:, 0])
    speed = np.clip(speed, -8, 8)
    angle = angle + 0.05 * speed
    return np.stack([np.cos(angle), np.sin(angle), speed], axis=1)


verdict = trust(states, pushes)
spread = np.asarray(log.transitions.states).std(axis=0)
error = np.sqrt((((verdict.next_states - swing(states, pushes)) / spread) ** 2).mean(axis=1))

# %% alt="Three maps over angle and speed of the pendulum. Left: the log covers a region around hanging down. Middle: U is zero there and grows outside. Right: the true error of the model is small inside the same region and large outside."
logged = np.asarray(log.transitions.states)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
logged_angles = np.arctan2(-logged[:, 1], -logged[:, 0])
axes[0].plot(logged_angles, logged[:, 2], ".", markersize=1, color="tab:orange")
axes[0].set(title="where the log is", ylabel="speed", xlim=(-np.pi, np.pi))
for axis, values, title, norm in (
    (axes[1], verdict.penalty, "U: how far from the log", Normalize(0, 2)),
    (axes[2], error, "true error of the model", LogNorm(1e-3, 1e-1)),
):
    image = axis.pcolormesh(angles, speeds, values.reshape(angles.shape), norm=norm, cmap="cividis")
    figure.colorbar(image, ax=axis)
    axis.set_title(title)
limit = verdict.trusted.reshape(angles.shape).astype(float)
for axis in axes:
    axis.contour(angles, speeds, limit, levels=[0.5], colors="black", linewidths=1.2)
    axis.set_xlabel("angle (0 = hanging)")
plt.show()

# %% [markdown]
# The black line is the border of what is trusted. `Trust` drew it from the log alone. It is careful:
# a pendulum is a simple system, so the model stays good for a while outside of the log. `Trust`
# cannot know this.

# %%
inside, outside = error[verdict.trusted], error[~verdict.trusted]
print(
    f"median true error where trusted {np.median(inside):.3f}, elsewhere {np.median(outside):.3f}"
)

# %% [markdown]
# ## How wrong can it be?
#
# `error_bound` is a promise: for new episodes from the same process, the error stays below it in at
# least 90% of the steps. We record new episodes and count.

# %%
new = record(episodes=30, seed=1).transitions
judged = trust(np.asarray(new.states), np.asarray(new.actions))
gap = (judged.next_states - np.asarray(new.next_states)) / np.asarray(fitted.scaling.states.scale)
holds = np.sqrt((gap**2).mean(axis=1)) <= judged.error_bound
print(f"promised {trust.bounds.coverage:.0%}, measured {holds.mean():.1%}")
print(f"promised at most {trust.false_alarm_rate:.0%} false alarms, ", end="")
print(f"measured {1 - judged.trusted.mean():.1%}")

# %% [markdown]
# ## What can go wrong
#
# - **Few episodes promise less.** The promise rests on held-out episodes, and each counts once.
#   A promise of 90% needs 9 of them, and 5% false alarms need 19. With fewer, a weaker number is
#   promised, and printed.
# - **Another process.** After a new motor, a new operator or a worn joint, the promise is void.
#   Judge some new episodes first: `gelato trust RUN file:new.npz`.
# - **Random logs.** If the log contains every action in every state, no action is unusual. `Trust`
#   then only judges states.
#
# Next: [the guide about trust](../guide/trust.md), or [deploy a policy with its guard](own_log.md).
