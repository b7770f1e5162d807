"""Agents: the interface, SAC, PPO, behaviour cloning, and the pieces that a new agent needs."""

from gelato.agents.agent import AbstractAgent, Metrics, View
from gelato.agents.cloning import Cloning
from gelato.agents.networks import Actor, Critic
from gelato.agents.ppo import PPO
from gelato.agents.replay import Experience, ReplayBuffer, pack, unpack
from gelato.agents.sac import SAC
from gelato.model.networks import MLP, apply_members
from gelato.random_streams import IMAGINE, INIT, LEARN, derive_key

__all__ = [
    "IMAGINE",
    "INIT",
    "LEARN",
    "MLP",
    "PPO",
    "SAC",
    "AbstractAgent",
    "Actor",
    "Cloning",
    "Critic",
    "Experience",
    "Metrics",
    "ReplayBuffer",
    "View",
    "apply_members",
    "derive_key",
    "pack",
    "unpack",
]
