"""Agents: soft actor–critic on data and imagined steps, and behaviour cloning; each a compiled program over seeds."""
