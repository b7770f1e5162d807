"""Fit Four Rooms with several seeds, and record how well each distance reflects the walls.

python experiments/benchmarks/four_rooms.py --seeds 5
"""

import argparse
from pathlib import Path

from experiments.rooms import measure_cells, score_distances
from gelato.model.training import fit_model
from gelato.runs.records import merge_records

RESULTS = Path(__file__).parents[2] / "results"


def main() -> None:
    """Fit the models, score the distances and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--run", type=Path, default=Path("runs/four-rooms-seeds"))
    parser.add_argument("--results", type=Path, default=RESULTS / "four_rooms.json")
    arguments = parser.parse_args()
    fitted = fit_model("four-rooms", arguments.run, seeds=arguments.seeds)
    records = []
    for index, seed in enumerate(fitted.seeds):
        for name, distances in measure_cells(fitted, fitted.seed(index)).items():
            measured = {key: round(value, 4) for key, value in score_distances(distances).items()}
            records.append({"seed": seed, "distance": name} | measured)
            print(records[-1], flush=True)
    merge_records(arguments.results, records, keys=("seed", "distance"))


if __name__ == "__main__":
    main()
