"""Example of a data source: logged data in a CSV file, read as `own-csv:PATH`.

With `GELATO_PLUGINS=examples/own_log.py` the source also works on the command line:
`gelato data info own-csv:log.csv`.
"""

import tempfile
from pathlib import Path

import numpy as np

import gelato
from gelato.data import Dataset, Reference


def load_csv(reference: Reference) -> Dataset:
    """Read the columns s0, s1, …, a0, a1, …, reward and last. Rows must be in order of time."""
    separator = reference.options.get("separator", ",")
    try:
        table = np.genfromtxt(reference.target, delimiter=separator, names=True)
    except OSError as error:
        raise gelato.InputError(f"{reference.target}: cannot be read ({error})") from error
    table, names = np.atleast_1d(table), table.dtype.names or ()
    for name in ("reward", "last"):
        if name not in names:
            raise gelato.InputError(f"{reference.target}: no column is called {name}")

    def stack(letter: str) -> np.ndarray:
        chosen = [name for name in names if name[0] == letter and name[1:].isdecimal()]
        if not chosen:
            raise gelato.InputError(f"{reference.target}: no column is called {letter}0")
        return np.stack([table[name] for name in chosen], axis=1)

    return gelato.make_dataset(
        stack("s"),
        stack("a"),
        table["reward"],
        timeouts=table["last"],
        environment=reference.options.get("environment"),
        reference=str(reference),
    )


gelato.register_source(
    "own-csv",
    load_csv,
    options=("separator", "environment"),
    is_path=True,
    help="a CSV file with the columns s0, …, a0, …, reward, last",
)


def write_log(path: Path, episodes: int = 20, steps: int = 50) -> None:
    """Write logged data of a thermostat: the state is the temperature, the action the heating."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(episodes):
        temperature = rng.uniform(10, 25)
        for step in range(steps):
            heating = np.clip((20 - temperature) / 5 + rng.normal(0, 0.3), -1, 1)
            reward = -abs(temperature - 20)
            rows.append((temperature, heating, reward, step == steps - 1))
            temperature += heating + rng.normal(0, 0.1)
    np.savetxt(path, rows, delimiter=",", header="s0,a0,reward,last", comments="")


def main() -> None:
    """Summarise the data and clone the behaviour policy."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        write_log(log)
        dataset = gelato.load(f"own-csv:{log}")
        summary = gelato.summarise(dataset)
        print(summary["transitions"], "transitions in", summary["episodes"], "episodes")
        gelato.train(dataset, Path(folder) / "run", "bc", preset="small")
        policy = gelato.trained_policies(Path(folder) / "run")[0].policy
        for temperature in (15.0, 20.0, 25.0):
            print(f"{temperature} degrees: heating {policy(np.array([temperature]))[0]:.2f}")


if __name__ == "__main__":
    main()
