"""Penalties that say where the model can be trusted, their calibration, and the instrument that measures them."""
