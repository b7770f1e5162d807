"""Agents: the interface, the agents of the library, and the pieces that a new agent needs."""

from gelato.agents.agent import AbstractAgent, Metrics, View
from gelato.agents.cloning import Cloning
from gelato.agents.iql import IQL
from gelato.agents.logged import AbstractLoggedAgent, make_critics
from gelato.agents.mobile import MOBILE
from gelato.agents.networks import Actor, Critic
from gelato.agents.ppo import PPO
from gelato.agents.rebrac import ReBRAC
from gelato.agents.replay import Experience, ReplayBuffer, pack, unpack
from gelato.agents.sac import SAC
from gelato.model.networks import MLP, apply_members, descend
from gelato.random_streams import IMAGINE, INIT, LEARN, derive_key

__all__ = [
    "IMAGINE",
    "INIT",
    "IQL",
    "LEARN",
    "MLP",
    "MOBILE",
    "PPO",
    "SAC",
    "AbstractAgent",
    "AbstractLoggedAgent",
    "Actor",
    "Cloning",
    "Critic",
    "Experience",
    "Metrics",
    "ReBRAC",
    "ReplayBuffer",
    "View",
    "apply_members",
    "derive_key",
    "descend",
    "make_critics",
    "pack",
    "unpack",
]
