# %% [markdown]
# # Geodesics of any JAX function
#
# `gelato.geometry` needs no reinforcement learning, no data and no trained network. Give it any
# differentiable JAX function. It tells you how far two inputs are apart *as the function sees
# them*, and which path between them is shortest.
#
# **You will learn** to make a metric from a function, to compute distances and shortest paths, and
# to keep a path close to your data. **Time:** under a minute.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from gelato.geometry import (
    Converged,
    GaussianPullback,
    Pullback,
    Straight,
    connecting_geodesic,
    distance,
    gaussian,
    nearest_under_metric,
)

# %% [markdown]
# ## A function defines a distance
#
# A function maps a point `z` to an output. A small step in `z` changes the output by some amount.
# The *pullback metric* says: this amount is the length of the step.
#
# We start where the answer is known. `globe` maps latitude and longitude to a point on a sphere.
# Shortest paths on a sphere are great circles.


# %%
def globe(z):
    latitude, longitude = z
    east, north = jnp.cos(latitude) * jnp.array([jnp.cos(longitude), jnp.sin(longitude)])
    return jnp.array([east, north, jnp.sin(latitude)])


sphere = Pullback(globe)
paris, tokyo = jnp.radians(jnp.array([[48.9, 2.4], [35.7, 139.7]]))
found = distance(sphere, paris, tokyo, Converged())
exact = jnp.arccos(globe(paris) @ globe(tokyo))
print(f"Paris to Tokyo: {6371 * found:,.0f} km, exact: {6371 * exact:,.0f} km")

# %% [markdown]
# A shortest path is a function of a time between 0 and 1. On a map with straight axes it is curved,
# as planes fly.

# %% alt="A map with longitude and latitude. The straight line from Paris to Tokyo stays below 50 degrees north. The geodesic is an arc that reaches almost 70 degrees north."
flight = connecting_geodesic(sphere, paris, tokyo)
path = jnp.degrees(jax.vmap(flight.curve)(jnp.linspace(0, 1, 100)))
ends = jnp.degrees(jnp.stack([paris, tokyo]))

figure, axes = plt.subplots(figsize=(6, 2.6))
axes.plot(ends[:, 1], ends[:, 0], "o--", color="0.5", label="straight line")
axes.plot(path[:, 1], path[:, 0], color="tab:blue", label="geodesic")
axes.set(xlabel="longitude (degrees)", ylabel="latitude (degrees)")
axes.legend()
plt.show()

# %% [markdown]
# ## A path around a hill
#
# Any output works. Here a point in the plane gets a height. A step uphill changes the height, so
# it is long, and the shortest path goes around the hill.


# %%
def hill(z):
    return jnp.append(z, 2 * jnp.exp(-4 * z @ z))


landscape = Pullback(hill)
start, end = jnp.array([-1.0, 0.1]), jnp.array([1.0, 0.1])
over = Straight(nodes=64)(landscape, start, end)
around = connecting_geodesic(landscape, start, end)
print(f"over the hill {over.length:.2f}, around it {around.length:.2f}")
print("converged:", around.converged)

# %% [markdown]
# Always look at `converged`. If it is false, the path is only an upper bound of the distance. Use
# more modes or iterations: `Converged(modes=16, iterations=300)`.
#
# ## Stay close to the data
#
# This is the idea behind GELATO. A learned decoder has a mean and a scale σ. It is certain where it
# saw data, and uncertain elsewhere. If the metric includes how fast σ changes, then leaving the
# data is long.
#
# The data below lie on an arc. The mean is the point itself. σ is small on the data and grows with
# the distance to it.

# %%
rng = np.random.default_rng(0)
angles = rng.uniform(0, np.pi, 300)
data = np.stack([np.cos(angles), np.sin(angles)], axis=1)
data = (data + rng.normal(0, 0.05, data.shape)).astype(np.float32)


def mean(z):
    return z


def scale(z):
    closeness = jnp.sum(jnp.exp(-30 * jnp.sum((data - z) ** 2, axis=1))) / 10
    return 12 * jnp.exp(-closeness)[None]


decoder = GaussianPullback(gaussian(mean, scale))
left, right = jnp.asarray(data[angles.argmax()]), jnp.asarray(data[angles.argmin()])
solver = Converged(modes=12, nodes=64, iterations=300)
arc = connecting_geodesic(decoder, left, right, solver)
line = Straight(nodes=64)(decoder, left, right)
print(f"straight through the gap {line.length:.2f}, along the data {arc.length:.2f}")

# %% alt="Data points on a half circle. The background shows a large sigma away from the data. The straight line crosses the empty middle. The geodesic follows the half circle through the data."
grid = jnp.stack(jnp.meshgrid(jnp.linspace(-1.4, 1.4, 80), jnp.linspace(-0.5, 1.4, 60)), axis=-1)
sigma = jax.vmap(jax.vmap(scale))(grid)[..., 0]
path = jax.vmap(arc.curve)(jnp.linspace(0, 1, 100))

figure, axes = plt.subplots(figsize=(6, 3.9))
image = axes.pcolormesh(*np.moveaxis(np.asarray(grid), -1, 0), sigma, cmap="Greys", alpha=0.6)
axes.plot(*data.T, ".", color="tab:orange", markersize=4, label="data")
axes.plot(*np.stack([left, right]).T, "--", color="black", label="straight line")
axes.plot(*path.T, color="tab:blue", linewidth=2.5, label="geodesic")
axes.set(aspect="equal", xlabel="$z_1$", ylabel="$z_2$")
axes.legend(loc="lower center", ncols=3)
figure.colorbar(image, label="uncertainty σ")
plt.show()

# %% [markdown]
# The geodesic follows the data, although the straight line is half as long in the plane.
#
# ## Neighbours by geodesic distance
#
# The nearest point in the plane may be on the other side of a gap. `nearest_under_metric` takes a
# shortlist of Euclidean neighbours and sorts it by geodesic distance.

# %%
query = np.array([[-0.75, 0.55]], np.float32)
neighbours = nearest_under_metric(decoder, data, query, k=3, shortlist=20)
print("rows:", neighbours.indices[0], "distances:", neighbours.distances[0].round(3))

# %% [markdown]
# ## What can go wrong
#
# - **Several shortest paths.** There are two ways around a hill. The solver returns the one that it
#   reaches from a straight start. `Graph` finds the shorter one if the path must be global.
# - **A constant σ** adds nothing: only *changes* of σ count. Check `scale` between your points.
# - **Speed.** `Near()` is the solver for many near pairs, `Converged()` for few far ones. The
#   [guide](../guide/geometry.md) compares all solvers.
