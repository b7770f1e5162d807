"""Checks of hyperparameters."""

from gelato.errors import InputError


def require_positive(settings: object, *names: str) -> None:
    """Refuse counts below 1."""
    for name in names:
        value = getattr(settings, name)
        if value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")
