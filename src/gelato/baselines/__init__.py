"""Dynamics and penalties that are not GELATO's, on the same seams."""
