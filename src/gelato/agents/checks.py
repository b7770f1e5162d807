"""Checks of hyperparameters."""

from gelato.errors import InputError


def require_positive(settings: object, *names: str) -> None:
    """Raise an InputError if a count is below 1."""
    for name in names:
        value = getattr(settings, name)
        if value < 1:
            raise InputError(f"{name}={value}: must be at least 1")
