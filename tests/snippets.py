"""Run the commands and the Python of a page, in its order and with tiny settings.

- Fences of `bash` and `python` run. Other languages are for text.
- `<!-- not run: REASON -->` on the line before a fence says why it cannot run here.
- `<!-- before:` … `-->` holds Python that runs but that readers do not see: it makes what the page
  takes for granted, such as a log of the reader.
- Python of one page shares its names, as in a notebook.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gelato.cli import main
from gelato.data import recipes
from gelato.dynamics import latent
from gelato.dynamics.ensemble import EnsembleConfig, EnsembleFit
from gelato.model import training
from gelato.model.config import ModelConfig
from gelato.training import plan
from gelato.training.method import Method
from gelato.training.presets import TrainSettings

ROOT = Path(__file__).parents[1]
LANGUAGES = ("bash", "python", "text", "{.python .example}")
_PATTERN = re.compile(
    r"<!-- before:\n(?P<before>.*?)-->"
    r"|(?:<!-- not run: (?P<reason>[^\n]*?) -->\n)?"
    r"^ *```(?P<language>[^\n]*)\n(?P<code>.*?)^ *```$",
    flags=re.DOTALL | re.MULTILINE,
)
_TINY_AGENT = {"hidden": (8,), "batch_size": 8, "updates": 6, "epoch": 2, "branches": 4}
_TINY_MODEL = {"decoders": 2, "hidden": (8,), "forward_hidden": (8,), "updates": 60}
_REGISTRIES = (
    ("gelato.uncertainty.registry", "_PENALTIES"),
    ("gelato.training.presets", "_METHODS"),
    ("gelato.report.figures", "_FIGURES"),
)


@dataclass(frozen=True)
class Snippet:
    """A fence of a page, or Python that readers do not see."""

    language: str
    code: str
    reason: str | None = None
    """Why it does not run, or None."""


def find_snippets(text: str) -> list[Snippet]:
    """List the fences of a page and its hidden Python, in order."""
    found = []
    for match in _PATTERN.finditer(text):
        if match["before"] is not None:
            found.append(Snippet("python", match["before"]))
        else:
            found.append(Snippet(match["language"], match["code"], match["reason"]))
    return found


def list_commands(snippets: Sequence[Snippet]) -> list[list[str]]:
    """List the words of every command that runs."""
    commands = []
    for snippet in snippets:
        if snippet.language == "bash" and snippet.reason is None:
            lines = snippet.code.replace("\\\n", " ").splitlines()
            commands += [words for line in lines if (words := shlex.split(line, comments=True))]
    return commands


def run_command(words: Sequence[str]) -> None:
    """Run one command in this process, because a new one would compile everything again."""
    program, *arguments = words
    if program == "make":
        command = ["make", "--dry-run", *arguments]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    elif program == "python":
        script, *arguments = arguments
        import_module(script.removesuffix(".py").replace("/", ".")).main(arguments)
    elif program == "gelato":
        main(arguments)
    else:
        raise AssertionError(f"{program}: say why it does not run: <!-- not run: REASON -->")


def run_page(text: str) -> None:
    """Run everything on a page that can run."""
    names: dict[str, Any] = {"__name__": "page"}
    for snippet in find_snippets(text):
        if snippet.reason is not None:
            continue
        if snippet.language == "bash":
            for words in list_commands([snippet]):
                run_command(words)
        elif snippet.language == "python":
            exec(compile(snippet.code, "<page>", "exec"), names)


def use_tiny_settings(patch: pytest.MonkeyPatch) -> None:
    """Make every fit, training and named dataset tiny, whatever a page asks for."""
    choose, make_plan, fit = plan._choose_methods, plan.make_plan, training.fit_latent_model
    tiny = TrainSettings(neighbours=3, points=500, evaluations=1, episodes=2)

    def plan_tiny(data: Any, methods: Any, **given: Any) -> plan.Plan:
        return make_plan(data, methods, **given | {"settings": tiny})

    patch.setattr(plan, "_choose_methods", lambda *given: tuple(map(_shrink, choose(*given))))
    patch.setattr("gelato.training.train.make_plan", plan_tiny)
    for module in (training, latent):
        patch.setattr(
            module,
            "fit_latent_model",
            lambda split, folder, config, seeds: fit(split, folder, _shrink_model(config), seeds),
        )
    for name, recipe in recipes.RECIPES.items():
        size = min(recipe.size, 2_000)
        patch.setitem(recipes.RECIPES, name, replace(recipe, size=size))
    # What a page registers must not be left for other tests.
    for module, name in _REGISTRIES:
        patch.setattr(f"{module}.{name}", dict(getattr(import_module(module), name)))


def write_log(path: Path, episodes: int = 24, steps: int = 40, seed: int = 0) -> None:
    """Write the log that the pages take for granted: three sensors and one action in [−2, 2]."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(episodes):
        state = rng.normal(size=3)
        for step in range(steps):
            action = np.clip(-state[:1] + 0.5 * rng.normal(size=1), -2, 2)
            rows.append((state, action, -float(state @ state), step == steps - 1))
            state = 0.9 * state + 0.1 * action + 0.05 * rng.normal(size=3)
    observations, actions, rewards, timeouts = zip(*rows, strict=True)
    np.savez(path, observations=observations, actions=actions, rewards=rewards, timeouts=timeouts)


def _shrink(method: Method) -> Method:
    known = {field.name for field in fields(method.agent)}
    tiny = {name: value for name, value in _TINY_AGENT.items() if name in known}
    if "minibatches" in known:  # PPO counts imagined steps
        tiny = {"hidden": (8,), "episodes": 4, "steps": 8, "minibatches": 2, "updates": 64}
    fit = method.fit
    if isinstance(fit, EnsembleFit):
        tiny_ensemble = EnsembleConfig(members=3, elites=2, hidden=(8,), batch_size=8, updates=4)
        fit = replace(fit, ensemble=tiny_ensemble)
    return replace(method, agent=replace(method.agent, **tiny), fit=fit)


def _shrink_model(config: ModelConfig) -> ModelConfig:
    batch = min(config.batch_size, 32)
    return replace(config, **_TINY_MODEL, batch_size=batch, variance_updates=20)
