# %% [markdown]
# # Your own penalty and agent
#
# Two parts of GELATO decide what a policy may do in imagination: the *penalty* says how far a step
# is from the data, and the *agent* learns from penalised steps. You can replace both.
#
# **You will learn** to write a penalty in ten lines and an agent in forty, and to train them like
# the built-in ones. **Time:** two minutes.

# %%
from dataclasses import dataclass, replace

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import gelato
from gelato import agents
from gelato.mdp import rollout, start_episodes
from gelato.tasks.four_rooms import FREE, GOAL, encode_position
from gelato.uncertainty import AbstractPenalty

# %% [markdown]
# ## The trap
#
# An agent walks in four rooms, one cell per step. The goal is to the right, behind a wall. In the
# log nobody ever entered a region beside the wall (red). A model fills this hole with a guess: it
# imagines a shortcut through the wall.

# %% alt="The plan of four rooms. Grey cells are walls. Blue cells were visited in the log. A red square in the left upper room was never visited. The goal is to the right of the wall, next to the red square."
log = gelato.load("four-rooms-hole,transitions=6000")
HOLE = (4, 4, 6, 6)


def draw_plan(axes, title):
    axes.imshow(np.where(FREE, np.nan, 1.0), cmap="gray", vmin=0, vmax=2)
    for (top, left, bottom, right), colour in ((HOLE, "tab:red"), (GOAL, "tab:blue")):
        corner, size = (left - 0.5, top - 0.5), (right - left + 1, bottom - top + 1)
        axes.add_patch(plt.Rectangle(corner, *size, fill=False, edgecolor=colour, linewidth=2))
    axes.set(title=title, xticks=[], yticks=[])


cells = np.argwhere(FREE)
positions = encode_position(cells)
visits = np.full(FREE.shape, np.nan)
for cell, position in zip(cells, positions, strict=True):
    visits[tuple(cell)] = np.sum(np.all(np.isclose(log.transitions.states, position), axis=1))
figure, axes = plt.subplots(figsize=(3.6, 3.8))
draw_plan(axes, "visits in the log (red: none, blue: goal)")
axes.imshow(np.where(visits > 0, visits, np.nan), cmap="Blues", vmin=0)
plt.show()

# %% [markdown]
# ## A penalty
#
# A penalty maps the embedding `e` of a state-action to a number that is 0 or larger. Ours is the
# distance to the nearest logged embeddings.
#
# `exclude` is the row number of `e` if it is itself part of the data. Then it is not its own
# neighbour.


# %%
class Nearest(AbstractPenalty):
    """The distance to the nearest logged embedding."""

    logged: jax.Array
    rows: jax.Array

    def __call__(self, e, exclude=-1):
        squared = jnp.sum((self.logged - e) ** 2, axis=1)
        return jnp.sqrt(jnp.min(jnp.where(self.rows == exclude, jnp.inf, squared)))


def build_nearest(inputs):
    return Nearest(inputs.data.embeddings, jnp.arange(len(inputs.data)))


gelato.register_penalty("nearest", build_nearest, ("latent",), "distance to the nearest point")

# %% [markdown]
# The raw distance has no meaning by itself. GELATO calibrates it: 0 on typical data, about 1 on
# clearly out-of-distribution pairs. One λ therefore suits every penalty.
#
# Fit a model once, and draw the calibrated penalty for every cell.

# %% alt="The calibrated penalty of a step to the right from each cell. It is near zero in visited cells and high inside the red square."
parts = gelato.choose_parts(log, "small")
config = replace(parts.latent.model, updates=4_000, variance_updates=200)
fitted = gelato.fit_model(log, "rooms-model", config=config)
trust = gelato.Trust(fitted, penalty="nearest")
U = np.full(FREE.shape, np.nan)
U[tuple(cells.T)] = trust(positions, np.full(len(cells), 3)).penalty

figure, axes = plt.subplots(figsize=(4.2, 3.8))
draw_plan(axes, "my penalty of a step to the right")
figure.colorbar(axes.imshow(U, cmap="cividis", vmin=0), label="U")
plt.show()

# %% [markdown]
# ## An agent
#
# An agent says how to start, imagine, learn and act. This one is deep Q-learning in imagination.
# It uses the network of an `Actor` as Q-values, one for each action. The best action is then the
# actor's mode.
#
# `imagine` runs short episodes in the model. GELATO subtracts `λU` from their rewards *before*
# `learn` sees them. So an agent needs no code for pessimism.


# %%
class QState(eqx.Module):
    network: agents.Actor
    target: agents.Actor
    optimiser: optax.OptState
    step: jax.Array


@dataclass(frozen=True)
class QLearning(agents.AbstractAgent):
    """Deep Q-learning from imagined steps."""

    updates: int = 12_000
    epoch: int = 50
    branches: int = 300
    horizon: int = 5
    discount: float = 0.98
    imagines = True
    reads_log = False

    @property
    def updates_per_rollout(self):
        return self.epoch

    @property
    def block(self):
        return 20 * self.epoch

    def init(self, view, *, key):
        network = agents.Actor(view.latent_size, view.action_space, (128, 128), key=key)
        optimiser = optax.adam(1e-3).init(eqx.filter(network, eqx.is_array))
        return QState(network, network, optimiser, jnp.zeros((), jnp.int32))

    def imagine(self, view, state, *, key):
        key = agents.derive_key(key, agents.IMAGINE, state.step)
        mdp = view.make_imagined_mdp(self.horizon)
        starts = start_episodes(mdp, self.branches, key=key)

        def explore(z, *, key):
            random, which = jax.random.split(key)
            action = jax.nn.one_hot(jax.random.randint(which, (), 0, 4), 4)
            greedy = state.network.mode(z)
            return jnp.where(jax.random.bernoulli(random, 0.5), action, greedy), None

        return state, rollout(mdp, starts, explore, self.horizon, key=key)[0]

    def learn(self, view, state, steps, updates, *, key):
        steps = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
        trainable, static = eqx.partition(state.network, eqx.is_array)

        def loss(trainable, rows):
            network = eqx.combine(trainable, static)
            batch = jax.tree.map(lambda x: x[rows], steps)
            after = jnp.max(jax.vmap(state.target.network)(batch.next_latent), axis=1)
            target = batch.reward + self.discount * (1 - batch.terminated) * after
            values = jnp.sum(jax.vmap(network.network)(batch.latent) * batch.action, axis=1)
            return jnp.mean((values - target) ** 2)

        def update(carry, step):
            trainable, optimiser = carry
            key_now = agents.derive_key(key, agents.LEARN, step)
            rows = jax.random.randint(key_now, (128,), 0, len(steps.reward))
            error, gradient = jax.value_and_grad(loss)(trainable, rows)
            change, optimiser = optax.adam(1e-3).update(gradient, optimiser)
            return (optax.apply_updates(trainable, change), optimiser), error

        carry, errors = jax.lax.scan(
            update, (trainable, state.optimiser), state.step + jnp.arange(updates)
        )
        slow = optax.incremental_update(carry[0], eqx.filter(state.target, eqx.is_array), 0.3)
        network, target = eqx.combine(carry[0], static), eqx.combine(slow, static)
        state = QState(network, target, carry[1], state.step + updates)
        return state, {"loss": jnp.mean(errors)}

    def actor(self, state):
        return state.network

    def value(self, state, z):
        return jnp.max(state.network.network(z))


# %% [markdown]
# ## Train both
#
# A `Method` joins a fit, a penalty and an agent. Seeds, checkpoints, resume, evaluation and tables
# come for free. We train with our penalty and without one. Both share one compiled program.

# %%
fit = replace(parts.latent, model=config)
pessimistic = gelato.Method("nearest", QLearning(), fit, "nearest", 4.0, 0.0)
naive = gelato.Method("no penalty", QLearning(), fit, "none", 0.0, 0.0)
settings = gelato.TrainSettings(evaluations=1, episodes=20)
records = gelato.train(
    log, "rooms-run", [pessimistic, naive], settings=settings, model="rooms-model"
)
for record in records:
    print(f"{record['method']:10} reaches the goal for {record['return']:.0f} of 60 steps")

# %% alt="Two plans with walks. With the penalty the walks go around the red square and reach the goal. Without it they enter the red square and stop at the wall."
figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.8))
for axis, trained in zip(axes, gelato.trained_policies("rooms-run"), strict=True):
    environment = gymnasium.make("gelato/FourRoomsGoal-v0")
    for seed in range(6):
        observation, info = environment.reset(seed=seed)
        walk, over = [info["cell"]], False
        while not over:
            observation, _, end, late, info = environment.step(trained.policy(observation))
            walk.append(info["cell"])
            over = end or late
        walk = np.array(walk) + 0.07 * (seed - 3)
        axis.plot(walk[:, 1], walk[:, 0], color="black", linewidth=1)
        axis.plot(*walk[-1, ::-1], "X", color="tab:green", markersize=7)
    draw_plan(axis, trained.method)
plt.show()

# %% [markdown]
# ## What can go wrong
#
# - **A penalty that is no larger far away** is refused by `Trust`, with a message. Test yours with
#   `gelato.judge_penalties(fitted, extra={"mine": build_nearest})`, which compares it with the
#   model's true error.
# - **Random numbers.** Derive every key with `derive_key(key, USE, step)`. Then a run that was
#   killed resumes with the same numbers.
# - **Names.** `gelato.register_method` gives a method a name for the command line. Put the code in
#   a file and set `GELATO_PLUGINS=my_file.py`.
#
# Next: [the guide to extensions](../guide/extending.md).
