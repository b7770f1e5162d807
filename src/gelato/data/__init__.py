"""Logged transitions: the pytree, where it is read from, the named datasets and how they are made."""
