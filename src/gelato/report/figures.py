"""The registry of figures: what `gelato figure NAME` can draw.

Add your own before you call `gelato.cli.main`:

    from gelato.report import FigureRequest, register_figure

    def draw_mine(request: FigureRequest) -> None:
        fitted = request.load_model()
        ...  # write a picture to request.out

    register_figure("mine", draw_mine, "What the picture shows.")
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gelato.errors import InputError

if TYPE_CHECKING:
    import gelato.model.training


@dataclass(frozen=True)
class FigureRequest:
    """The input of a figure and the file to write."""

    run: Path
    """Folder of a run, or the first of several."""
    out: Path
    """File to write: .png, .pdf or .svg."""
    points: int | None = None
    """Number of data points to draw, for figures that have this option."""
    data: str | None = None
    """Reference of the training data, if it moved since the run."""
    others: tuple[Path, ...] = ()
    """Folders of more runs, for figures that compare runs."""

    def load_model(self) -> "gelato.model.training.FittedModel":
        """Load the fitted model of the run with its data."""
        from gelato.data.reference import load
        from gelato.model.training import load_model

        return load_model(self.run, None if self.data is None else load(self.data))


Draw = Callable[[FigureRequest], None]


@dataclass(frozen=True)
class RegisteredFigure:
    """A figure's name, the function that draws it, and one sentence of help."""

    name: str
    draw: Draw
    help: str
    compares: bool = False
    """Whether it draws several runs."""


_FIGURES: dict[str, RegisteredFigure] = {}


def register_figure(name: str, draw: Draw, help: str, *, compares: bool = False) -> None:
    """Add a figure to `gelato figure`. `compares`: it accepts several runs."""
    if not name or not help or not callable(draw):
        raise InputError(f"figure {name!r}: needs a name, a function that draws it, and help")
    if name in _FIGURES:
        raise InputError(f"figure {name!r} is already registered; choose another name")
    _FIGURES[name] = RegisteredFigure(name, draw, help, compares)


def list_figures() -> tuple[RegisteredFigure, ...]:
    """List the figures in the order of their registration."""
    return tuple(_FIGURES.values())


def draw_figure(name: str, request: FigureRequest) -> None:
    """Draw a registered figure into a file."""
    if name not in _FIGURES:
        raise InputError(f"no figure is called {name!r}; choose from {', '.join(_FIGURES)}")
    figure = _FIGURES[name]
    if request.others and not figure.compares:
        raise InputError(f"the figure {name} draws one run; give one folder")
    figure.draw(request)


# The built-in figures import matplotlib and JAX on use, so that `gelato figure --help` is fast.


def _draw_data(request: FigureRequest) -> None:
    from gelato.report.data_figure import draw_dataset

    draw_dataset(request.load_model().dataset, request.out)


def _draw_curves(request: FigureRequest) -> None:
    from gelato.report.learning_figure import draw_learning_curves

    draw_learning_curves([request.run, *request.others], request.out)


def _draw_rollouts(request: FigureRequest) -> None:
    from gelato.report.model_figure import draw_rollouts

    draw_rollouts(request.load_model(), request.out)


def _draw_curve(request: FigureRequest) -> None:
    from gelato.report.curve_figure import draw_curve

    draw_curve(request.load_model(), request.out)


def _draw_embedding(request: FigureRequest) -> None:
    from gelato.report.embedding_figure import draw_embedding

    draw_embedding(request.load_model(), request.out, request.points)


register_figure(
    "curves", _draw_curves, "Learning curves with 95% intervals of one or more runs.", compares=True
)
register_figure("data", _draw_data, "Returns, lengths, rewards and states of the training data.")
register_figure("rollouts", _draw_rollouts, "The model's rollouts against held-out episodes.")
register_figure("curve", _draw_curve, "How each solver converges to a geodesic.")
register_figure(
    "embedding",
    _draw_embedding,
    "t-SNE of trajectories by Euclidean and by geodesic distance (needs the extra `figures`).",
)
