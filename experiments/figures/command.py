"""The command line of a figure script: `--run RUN --out FILE` and other inputs of the figure."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gelato.cli.output import check_picture
from gelato.errors import InputError
from gelato.progress import note, say
from gelato.report.figures import Draw, FigureRequest


def run_figure(draw: Draw, description: str | None, arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and draw; bad input ends with one line and exit code 2."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--out", type=Path, required=True, help="file: .png, .pdf or .svg")
    parser.add_argument("--points", type=int, help="data points to draw (embedding)")
    parser.add_argument("--data", help="new location of the training data, if it moved")
    request = FigureRequest(**vars(parser.parse_args(arguments)))
    try:
        check_picture(request.out)
        draw(request)
    except InputError as error:
        say(f"{Path(sys.argv[0]).name}: {error}")
        sys.exit(2)
    note(f"{request.out} written")
