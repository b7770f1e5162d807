"""Figures and tables: reads what other stages made, never trains."""
