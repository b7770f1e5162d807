"""Collect the records of a report: one module for each section, and `run.py` for all of them."""
