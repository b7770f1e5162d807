"""The pessimistic MDP: steps of a learned model, penalised where the model is uncertain."""

from gelato.mdp.env import PessimisticEnv
from gelato.mdp.pessimistic import ImaginedMDP, PessimisticMDP, State, Step, rollout, start_episodes
from gelato.mdp.vector_env import PessimisticVectorEnv

__all__ = [
    "ImaginedMDP",
    "PessimisticEnv",
    "PessimisticMDP",
    "PessimisticVectorEnv",
    "State",
    "Step",
    "rollout",
    "start_episodes",
]
