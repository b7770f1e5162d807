"""Check intervals of estimators on systems with known answers, over simulated logs.

python experiments/benchmarks/known_answers.py --logs 200

For every estimator: how often its 95% interval covers the true value, for all policies and for the
worst one, and its mean width relative to the spread of the policies' true values. Writes
results/known_answers.json.
"""

import argparse
from pathlib import Path

from experiments.known_answers import SYSTEMS, answer, score_answers
from experiments.tables import known_answers_table
from gelato.runs.records import merge_records, read_records

RESULTS = Path(__file__).parents[2] / "results" / "known_answers.json"


def main() -> None:
    """Simulate logs, estimate, compare with the truth."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=100, help="in every log")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for make in SYSTEMS:
        system = make()
        answers = answer(system, arguments.logs, arguments.episodes)
        rows = [{**row, "episodes": arguments.episodes} for row in score_answers(system, answers)]
        merge_records(arguments.results, rows, keys=("system", "estimator"))
    print(known_answers_table(read_records(arguments.results)))


if __name__ == "__main__":
    main()
