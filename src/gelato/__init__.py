"""GELATO: offline reinforcement learning that measures, along the data manifold, where its model can be trusted."""

from gelato.envs import register

register()
