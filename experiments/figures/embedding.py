"""The paper's t-SNE figure of driving data: numbered states of one episode, and their pictures.

python experiments/figures/embedding.py --run RUN --out FILE.png
"""

from collections.abc import Sequence

from experiments.figures.command import run_figure
from experiments.replay import replay_episode
from gelato.report.embedding_figure import draw_embedding
from gelato.report.figures import FigureRequest


def draw_driving_embedding(request: FigureRequest) -> None:
    """Draw the embedding; other data than driving has no pictures."""
    fitted = request.load_model()
    pictures = replay_episode(fitted.dataset)
    draw_embedding(fitted, request.out, request.points, pictures)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure from the command line."""
    run_figure(draw_driving_embedding, __doc__, arguments)


if __name__ == "__main__":
    main()
