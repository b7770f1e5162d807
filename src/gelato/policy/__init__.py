"""Policies in the real environment."""
