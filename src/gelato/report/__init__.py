"""Figures, tables and the report page. They read the results of other stages and never train."""

from typing import TYPE_CHECKING

from gelato.lazy import import_on_use
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
    from gelato.report.page.write import write_report
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
    "write_report",
]
# Imported on use: these modules need matplotlib, JAX or SciPy.
_HOMES = {
    "aggregate": "gelato.report.policy_table",
    "as_text": "gelato.report.policy_table",
    "draw_curve": "gelato.report.curve_figure",
    "draw_dataset": "gelato.report.data_figure",
    "draw_embedding": "gelato.report.embedding_figure",
    "draw_rollouts": "gelato.report.model_figure",
    "draw_uncertainty": "gelato.report.uncertainty_figure",
    "gather": "gelato.report.policy_table",
    "summarise_policies": "gelato.report.policy_table",
    "write_report": "gelato.report.page.write",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
