"""A reference names data, the same on the command line and in Python: `load("hopper-medium")`.

| reference | data |
|---|---|
| `hopper-medium` | a named dataset, made on first use |
| `hopper-medium,transitions=50000,seed=1` | the same recipe, another size or seed |
| `intersection,episodes=20` | driving is counted in episodes |
| `minari:ID` | a Minari dataset, local or remote |
| `d4rl:PATH` | a D4RL HDF5 file |
| `file:PATH` | a plain `.npz`, `.hdf5` or `.h5` file |
| `file:PATH,observations=x,low=-2,high=2` | the same, with other field names and the action range given |
| `file:PATH,environment=Pendulum-v1` | the same, with the environment that policies can be run in |
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

import numpy as np

from gelato.data import store
from gelato.data.files import FIELD_NAMES, load_d4rl, load_file
from gelato.data.generate import Episode, amount, generate
from gelato.data.recipes import Recipe, recipe_named
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Dataset
from gelato.envs.scores import task_of
from gelato.errors import InputError
from gelato.progress import note, progress

_OPTIONS = {
    "named": ("transitions", "episodes", "seed"),
    "minari": (),
    "d4rl": (),
    "file": (*FIELD_NAMES, "low", "high", "discrete", "environment"),
}


@dataclass(frozen=True)
class Reference:
    """A parsed reference: the kind of source, the name or path in it, and its options."""

    scheme: str
    target: str
    options: dict[str, str]


@dataclass(frozen=True)
class Named:
    """A named dataset of a certain size, in its recipe's unit, and seed."""

    recipe: Recipe
    size: int
    seed: int = 0

    @property
    def reference(self) -> str:
        """The shortest reference that means just this dataset."""
        if (self.size, self.seed) == (self.recipe.size, 0):
            return self.recipe.name
        return f"{self.recipe.name},{self.recipe.unit}={self.size},seed={self.seed}"

    @property
    def dataset_id(self) -> str:
        """Its id in Minari's store."""
        size = "" if self.reference == self.recipe.name else f"-{self.size}-seed{self.seed}"
        return f"gelato/{self.recipe.name}{size}-v0"


def parse(reference: str) -> Reference:
    """Take a reference apart; options are the `,key=value` at its end."""
    prefix, colon, rest = reference.partition(":")
    scheme, target = (prefix, rest) if colon and prefix in _OPTIONS else ("named", reference)
    options: dict[str, str] = {}
    # From the end, and known keys only: a path may hold commas of its own.
    while match := re.fullmatch(rf"(.*),({'|'.join(_OPTIONS[scheme]) or '(?!)'})=([^,]*)", target):
        if match[2] in options:
            raise InputError(f"{reference}: says {match[2]}= twice")
        target, options[match[2]] = match[1], match[3]
    option = re.fullmatch(r"(.*?),(\w+=.*)", target)
    if option and not (scheme in ("file", "d4rl") and Path(target).expanduser().exists()):
        _refuse(reference, scheme, *option.groups())
    if not target:
        raise InputError(f"{reference!r} names no data; write a dataset's name, minari:ID, d4rl:PATH or file:PATH")
    return Reference(scheme, target, options)


def _refuse(reference: str, scheme: str, target: str, option: str) -> NoReturn:
    """Say that an option is unknown, and which one may have been meant."""
    if scheme == "named" and Path(target).suffix:
        raise InputError(f"{reference}: no dataset has such a name; a file is file:PATH or d4rl:PATH")
    near = get_close_matches(option.partition("=")[0], _OPTIONS[scheme], n=1, cutoff=0.8)
    none = "takes none" + (
        "; file:PATH reads the same files and takes low=, high= and more" if scheme == "d4rl" else ""
    )
    known = f"takes: {', '.join(_OPTIONS[scheme])}" if _OPTIONS[scheme] else none
    hint = f"did you mean {near[0]}?" if near else f"{'a name' if scheme == 'named' else f'{scheme}:'} {known}"
    raise InputError(f"{reference}: unknown option {option!r}; {hint}")


def load(reference: str | Path) -> Dataset:
    """Load the data a reference names, making a named dataset on first use; a path is that of a plain file."""
    reference = f"file:{reference}" if isinstance(reference, Path) else reference
    parsed = parse(reference)
    if parsed.scheme == "named":
        named = resolve(parsed)
        make(named)
        dataset = store.read(named.dataset_id, download=False)
        return Dataset(named.reference, dataset.environment, dataset.transitions)
    if parsed.scheme == "minari":
        return store.read(parsed.target)
    # With the whole path, so that a run finds its data from wherever it is asked about.
    path = Path(parsed.target).expanduser().absolute()
    reference = f"{parsed.scheme}:{path}{reference.removeprefix(f'{parsed.scheme}:{parsed.target}')}"
    if parsed.scheme == "d4rl":
        return Dataset(reference, path.stem if task_of(path.stem) else None, load_d4rl(path))
    names = {field: parsed.options[field] for field in FIELD_NAMES if field in parsed.options}
    environment = parsed.options.get("environment")
    return Dataset(reference, environment, load_file(path, names, _action_space(parsed.options)))


def resolve(parsed: Reference) -> Named:
    """Which size and seed a name means: as given, else the default's, else the largest of that name made before."""
    recipe = recipe_named(parsed.target)
    default = Named(recipe, recipe.size)
    if parsed.options:
        wrong = {"transitions", "episodes"} - {recipe.unit}
        if wrong & parsed.options.keys():
            raise InputError(f"{recipe.name} is counted in {recipe.unit}; write {recipe.name},{recipe.unit}=N")
        size = _whole(parsed, recipe.unit, recipe.size, least=1)
        return Named(recipe, size, _whole(parsed, "seed", 0, least=0))
    if not store.exists(default.dataset_id):
        made = made_before(recipe)
        if made:
            note(f"{recipe.name} means {made[0].reference}, made here before; ask for another with ,{recipe.unit}=N")
            return made[0]
    return default


def made_before(recipe: Recipe) -> list[Named]:
    """The sizes and seeds of a recipe that the store holds, largest first."""
    found = []
    for folder in (store.store_root() / "gelato").glob(f"{recipe.name}-*-seed*-v0"):
        size, _, seed = folder.name.removeprefix(f"{recipe.name}-").removesuffix("-v0").partition("-seed")
        if size.isdecimal() and seed.isdecimal() and store.exists(f"gelato/{folder.name}"):
            found.append(Named(recipe, int(size), int(seed)))
    return sorted(found, key=lambda named: (-named.size, named.seed))


def make(named: Named, *, workers: int | None = None) -> bool:
    """Generate a named dataset into Minari's store; False if it was there already."""
    if store.exists(named.dataset_id):
        return False
    recipe = named.recipe
    with progress(f"making {named.recipe.name}", named.size) as advance:

        def counted() -> Iterator[Episode]:
            for episode in generate(recipe, named.size, seed=named.seed, workers=workers):
                advance(amount(recipe, episode))
                yield episode

        episodes, steps = counted(), named.size
        if recipe.unit == "episodes":
            # Few enough to be held, since nobody knows before how many steps they take.
            whole = list(episodes)
            episodes, steps = iter(whole), sum(map(len, whole))
        store.write(
            named.dataset_id,
            episodes,
            steps,
            env=recipe.environment,
            algorithm_name=" + ".join(recipe.policies),
            author="The GELATO developers",
            description=f"{recipe.environment}, {recipe.description}; seed {named.seed}.",
            requirements=["gelato-rl"] if recipe.environment.startswith("gelato/") else ["gymnasium[mujoco]"],
        )
    return True


def _whole(parsed: Reference, option: str, default: int, *, least: int) -> int:
    text = parsed.options.get(option, str(default)).replace("_", "")
    if not text.isdecimal() or int(text) < least:
        raise InputError(f"{parsed.target}: {option}={text} must be a whole number of at least {least}")
    return int(text)


def _action_space(options: dict[str, str]) -> ActionSpace | None:
    if "discrete" in options:
        if not options["discrete"].isdecimal() or int(options["discrete"]) < 2:
            raise InputError(f"discrete={options['discrete']} must be the number of actions, at least 2")
        return Discrete(int(options["discrete"]))
    if ("low" in options) != ("high" in options):
        raise InputError("the action range needs both low= and high=")
    if "low" not in options:
        return None
    try:
        # In single precision, as the data's actions and Gymnasium's spaces are: 0.4 is to equal 0.4.
        low, high = (tuple(float(np.float32(part)) for part in options[key].split("/")) for key in ("low", "high"))
    except ValueError as error:
        raise InputError("low= and high= take numbers, one for each action dimension, separated by /") from error
    if len(low) != len(high) or not all(a < b for a, b in zip(low, high)):
        raise InputError(f"low={options['low']} must lie below high={options['high']} in every dimension")
    return Continuous(low, high)
