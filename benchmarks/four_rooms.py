"""Fit Four Rooms for some seeds at once and record how well each distance knows the walls, and what the fit took.

python benchmarks/four_rooms.py --seeds 5
"""

import argparse
from pathlib import Path

from gelato.model.training import fit_model
from gelato.report.rooms import all_distances, scores
from gelato.results import merge_records

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Fit, measure, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--run", type=Path, default=Path("runs/four-rooms-seeds"))
    parser.add_argument("--results", type=Path, default=RESULTS / "four_rooms.json")
    arguments = parser.parse_args()
    fitted = fit_model("four-rooms", arguments.run, seeds=arguments.seeds)
    records = []
    for index, seed in enumerate(fitted.seeds):
        for name, distances in all_distances(fitted, fitted.seed(index)).items():
            measured = {key: round(value, 4) for key, value in scores(distances).items()}
            records.append({"seed": seed, "distance": name} | measured)
            print(records[-1], flush=True)
    merge_records(arguments.results, records, keys=("seed", "distance"))


if __name__ == "__main__":
    main()
