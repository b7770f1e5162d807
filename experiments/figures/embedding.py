"""Draw the t-SNE figure of the paper: numbered states of one driving episode, with pictures.

python experiments/figures/embedding.py --run RUN --out FILE.png
"""

from collections.abc import Sequence

from experiments.figures.command import run_figure
from experiments.replay import replay_episode
from gelato.report.embedding_figure import draw_embedding
from gelato.report.figures import FigureRequest


def draw_driving_embedding(request: FigureRequest) -> None:
    """Draw the embedding; only driving data has pictures."""
    fitted = request.load_model()
    pictures = replay_episode(fitted.dataset)
    draw_embedding(fitted, request.out, request.points, pictures)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure from the command line."""
    run_figure(draw_driving_embedding, __doc__, arguments)


if __name__ == "__main__":
    main()
