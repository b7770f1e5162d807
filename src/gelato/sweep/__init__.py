"""Sweeps: many trainings in one folder, on one machine or on a Ray cluster."""

from gelato.sweep.groups import SweepGroup
from gelato.sweep.run import run_sweep
from gelato.sweep.spec import Sweep, read_sweep

__all__ = ["Sweep", "SweepGroup", "read_sweep", "run_sweep"]
