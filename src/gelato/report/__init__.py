"""Figures and tables. They read the results of other stages and never train."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gelato.report.figures import (
    FigureRequest,
    RegisteredFigure,
    draw_figure,
    list_figures,
    register_figure,
)

if TYPE_CHECKING:
    from gelato.report.curve_figure import draw_curve
    from gelato.report.data_figure import draw_dataset
    from gelato.report.embedding_figure import draw_embedding
    from gelato.report.model_figure import draw_rollouts
    from gelato.report.policy_table import aggregate, as_text, gather, summarise_policies
    from gelato.report.uncertainty_figure import draw_uncertainty

__all__ = [
    "FigureRequest",
    "RegisteredFigure",
    "aggregate",
    "as_text",
    "draw_curve",
    "draw_dataset",
    "draw_embedding",
    "draw_figure",
    "draw_rollouts",
    "draw_uncertainty",
    "gather",
    "list_figures",
    "register_figure",
    "summarise_policies",
]
# Imported on use: these modules need matplotlib, JAX or SciPy.
_LAZY = {
    "curve_figure": ("draw_curve",),
    "data_figure": ("draw_dataset",),
    "embedding_figure": ("draw_embedding",),
    "model_figure": ("draw_rollouts",),
    "policy_table": ("aggregate", "as_text", "gather", "summarise_policies"),
    "uncertainty_figure": ("draw_uncertainty",),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"gelato.report.{module}"), name)
    raise AttributeError(f"module 'gelato.report' has no attribute {name!r}")
