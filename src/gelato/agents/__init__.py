"""Agents: the interface, SAC, PPO, behaviour cloning, their networks and replay buffer."""

from gelato.agents.agent import AbstractAgent, Metrics, View
from gelato.agents.cloning import Cloning
from gelato.agents.networks import Actor, Critic
from gelato.agents.ppo import PPO
from gelato.agents.replay import Experience, ReplayBuffer, pack, unpack
from gelato.agents.sac import SAC

__all__ = [
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
    "pack",
    "unpack",
]
