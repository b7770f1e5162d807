"""The pessimistic MDP: a learned model's steps, less a penalty where the model cannot be trusted."""
