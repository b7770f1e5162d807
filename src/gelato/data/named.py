"""Named datasets such as `hopper-medium,seed=1`: made on first use, then read from the store."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gelato.data import store
from gelato.data.files import FILE_TYPES
from gelato.data.generate import Episode, count_units, generate
from gelato.data.recipes import Recipe, find_recipe
from gelato.data.sources import Reference, describe_sources
from gelato.errors import InputError
from gelato.progress import note, progress

_MOST_DIGITS = 18


@dataclass(frozen=True)
class Named:
    """A named dataset with its size, in the recipe's unit, and its seed."""

    recipe: Recipe
    size: int
    seed: int = 0

    @property
    def reference(self) -> str:
        """The shortest reference to this dataset."""
        if (self.size, self.seed) == (self.recipe.size, 0):
            return self.recipe.name
        return f"{self.recipe.name},{self.recipe.unit}={self.size},seed={self.seed}"

    @property
    def dataset_id(self) -> str:
        """The id in Minari's store."""
        size = "" if self.reference == self.recipe.name else f"-{self.size}-seed{self.seed}"
        return f"gelato/{self.recipe.name}{size}-v0"


def resolve_named(parsed: Reference) -> Named:
    """Return the dataset with the size and seed of a reference.

    Without options this is the default dataset. If it does not exist yet but other sizes do, it is
    the largest of these.
    """
    name = parsed.target
    if Path(name).expanduser().is_file():
        if Path(name).suffix.lower() not in FILE_TYPES:
            raise InputError(f"{name} is a file; use {', '.join(FILE_TYPES)} or register a source")
        raise InputError(f"{name} is a file; write file:{name}")
    if ":" in name:
        prefix = name.partition(":")[0]
        raise InputError(
            f"unknown data source {prefix!r}. Write {describe_sources()}. If a plugin registers "
            "this source, list the plugin in GELATO_PLUGINS"
        )
    recipe = find_recipe(name)
    default = Named(recipe, recipe.size)
    if parsed.options:
        wrong = {"transitions", "episodes"} - {recipe.unit}
        if wrong & parsed.options.keys():
            raise InputError(
                f"{recipe.name} has its size in {recipe.unit}. Write {recipe.name},{recipe.unit}=N"
            )
        size = _read_whole_number(parsed, recipe.unit, recipe.size, least=1)
        return Named(recipe, size, _read_whole_number(parsed, "seed", 0, least=0))
    if not store.exists(default.dataset_id):
        made = list_made(recipe)
        if made:
            note(
                f"{recipe.name}: using {made[0].reference}, which was made before; for another "
                f"size add ,{recipe.unit}=N"
            )
            return made[0]
    return default


def list_made(recipe: Recipe) -> list[Named]:
    """Return the sizes and seeds of a recipe that are in the store, largest first."""
    found = []
    for folder in (store.store_root() / "gelato").glob(f"{recipe.name}-*-seed*-v0"):
        size, _, seed = (
            folder.name.removeprefix(f"{recipe.name}-").removesuffix("-v0").partition("-seed")
        )
        if size.isdecimal() and seed.isdecimal() and store.exists(f"gelato/{folder.name}"):
            found.append(Named(recipe, int(size), int(seed)))
    return sorted(found, key=lambda named: (-named.size, named.seed))


def make_named(named: Named, *, workers: int | None = None) -> bool:
    """Generate a named dataset into Minari's store; return False if it exists already."""
    store.remove_stale()
    if store.exists(named.dataset_id):
        return False
    recipe = named.recipe
    with progress(f"making {named.recipe.name}", named.size) as advance:

        def count() -> Iterator[Episode]:
            for episode in generate(recipe, named.size, seed=named.seed, workers=workers):
                advance(count_units(recipe, episode))
                yield episode

        episodes, steps = count(), named.size
        if recipe.unit == "episodes":
            # The store needs the number of steps in advance, and a few episodes fit into memory.
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
            requirements=["gelato-rl"]
            if recipe.environment.startswith("gelato/")
            else ["gymnasium[mujoco]"],
        )
    return True


def _read_whole_number(parsed: Reference, option: str, default: int, *, least: int) -> int:
    text = parsed.options.get(option, str(default)).replace("_", "")
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < least:
        raise InputError(
            f"{parsed.target}: {option}={text[:40]} must be a whole number of at least {least}, "
            f"with at most {_MOST_DIGITS} digits"
        )
    return int(text)
