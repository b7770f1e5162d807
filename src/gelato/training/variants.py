"""Methods and their variants from names and values, as options of a command give them."""

from collections.abc import Callable, Sequence

from gelato.agents.agent import AbstractAgent
from gelato.dynamics.ensemble import EnsembleFit
from gelato.dynamics.latent import LatentFit
from gelato.errors import InputError
from gelato.training.method import Method
from gelato.training.presets import Parts, change_method, make_method, vary_method


def choose_methods(
    names: tuple[str, ...],
    parts: Parts,
    penalty: str | None,
    weights: tuple[float, ...] | None,
    fractions: tuple[float, ...],
) -> list[Method]:
    """Make the methods and their variants. An option must apply to at least one method.

    Without `weights`, the grid of the parts is trained.
    """
    chosen = [make_method(name, parts) for name in dict.fromkeys(names)]
    if penalty is not None:
        chosen = _change_all(chosen, lambda method: [change_method(method, penalty)])
    grid = parts.penalty_weights if weights is None else weights
    chosen = _change_all(chosen, lambda method: vary_method(method, grid), optional=weights is None)
    shares = fractions
    if weights is None and not fractions:
        shares = parts.real_fractions
    if shares:
        chosen = _change_all(
            chosen,
            lambda method: vary_method(method, (), tuple(dict.fromkeys(shares))),
            optional=not fractions,
        )
    return chosen


def refuse_unused_settings(
    options: tuple[str, ...], parts: Parts, methods: Sequence[Method]
) -> None:
    """Raise an error if `--set` changes an agent or a fit that none of the methods has."""
    used = {type(part) for method in methods for part in (method.agent, method.fit)}
    for option in options:
        name = option.partition("=")[0].partition(".")[0]
        part = getattr(parts, name)
        if isinstance(part, AbstractAgent | LatentFit | EnsembleFit) and type(part) not in used:
            raise InputError(
                f"--set {option}: has no effect on {', '.join(method.name for method in methods)}, "
                f"which {'do' if len(methods) > 1 else 'does'} not use {name}"
            )


def _change_all(
    methods: list[Method], change: Callable[[Method], list[Method]], optional: bool = False
) -> list[Method]:
    """Change every method that accepts the change; unless it is optional, one must accept it."""
    found, refusals = [], []
    for method in methods:
        try:
            found += change(method)
        except InputError as error:
            refusals.append(error)
            found.append(method)
    if len(refusals) == len(methods) and not optional:
        raise refusals[0]
    return found
