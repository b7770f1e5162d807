"""A fit as a run: blocks of updates with progress, checkpoints that resume bit for bit, and the result on disk."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gelato.blocks import Metrics, finish, last_checkpoint, run_blocks
from gelato.data.reference import load
from gelato.data.transitions import Dataset, Standardiser, Transitions, evenly, split
from gelato.errors import InputError
from gelato.interrupts import unhurried
from gelato.model.config import ModelConfig, Preset, preset
from gelato.model.fit import (
    MEANS,
    PHASES,
    VARIANCES,
    FitData,
    FitState,
    begin,
    new_models,
    prepare,
    run_block,
    term_names,
)
from gelato.model.latent import LatentModel, Scaling, with_support
from gelato.progress import note
from gelato.runs import Run, seed_numbers
from gelato.trees import taken

_SUPPORT_ROWS = 100_000
# How many times the range of nearly all values is no longer a tail but a mistake; rows enough to know that range.
_OUTLIER, _OUTLIER_ROWS = 1e3, 10_000


@dataclass(frozen=True)
class FittedModel:
    """A fitted model of every seed, and what it was fitted to. Arrays of `models` have the seed as their first axis."""

    run: Run
    dataset: Dataset
    config: ModelConfig
    seeds: tuple[int, ...]
    models: LatentModel
    scaling: Scaling

    def seed(self, index: int) -> LatentModel:
        """The model of one seed."""
        return taken(self.models, index)

    def of_seeds(self, seeds: tuple[int, ...]) -> "FittedModel":
        """The same with some of the seeds only."""
        missing = [seed for seed in seeds if seed not in self.seeds]
        if missing:
            raise InputError(f"{self.run.folder}: holds no seed {missing[0]}, only {', '.join(map(str, self.seeds))}")
        rows = np.array([self.seeds.index(seed) for seed in seeds])
        return replace(self, seeds=seeds, models=taken(self.models, rows))

    @cached_property
    def parts(self) -> tuple[Transitions, Transitions]:
        """The training and held-out transitions of the fit."""
        return split_for(self.dataset, self.config)


def fit_model(
    dataset: Dataset | str,
    run: Path | str,
    *,
    config: ModelConfig | None = None,
    preset_name: Preset = "default",
    seeds: int = 1,
    first_seed: int = 0,
) -> FittedModel:
    """Fit the latent model of a dataset into a run's folder, or go on with the fit that was begun there."""
    dataset = load(dataset) if isinstance(dataset, str) else dataset
    config = config or preset(preset_name, dataset)
    numbers = seed_numbers(seeds, first_seed)
    train, held_out = split_to_fit(dataset, config)
    _say_oddities(dataset, config)
    folder = Run(Path(run))
    with folder.locked():
        folder.begin(
            "model",
            data={"reference": dataset.reference, "environment": dataset.environment},
            fingerprint=dataset.transitions.fingerprint(),
            shape=_shape(dataset.transitions),
            config=asdict(config),
            seeds=list(numbers),
        )
        if not folder.has("model"):
            scaling = Scaling.fit(train, rewards_to_unit_range=config.rewards_to_unit_range)
            data = prepare(train, held_out, scaling, config, numbers)
            models = _run_phases(folder, dataset, config, numbers, data)
            finish(folder, lambda: folder.save("model", eqx.filter((models, scaling), eqx.is_array)))
    return load_model(folder.folder, dataset)


def load_model(run: Path | str, dataset: Dataset | None = None) -> FittedModel:
    """Read a fitted model from its run's folder, with the data it was fitted to."""
    folder = Run(Path(run))
    description = folder.description
    if description["kind"] != "model":
        hint = "; its model is in the folder `model` there" if (Path(run) / "model").is_dir() else ""
        raise InputError(f"{run}: holds a run of kind {description['kind']}, not a model{hint}")
    dataset = dataset or _data_of(folder, description["data"]["reference"])
    if dataset.transitions.fingerprint() != description["fingerprint"]:
        raise InputError(f"{run}: was fitted to other data than {dataset.reference} now holds (fingerprints differ)")
    lists_as_tuples: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in description["config"].items()
    }
    config, seeds = ModelConfig(**lists_as_tuples), tuple(description["seeds"])
    transitions = dataset.transitions
    like = (eqx.filter_eval_shape(_untrained, config, transitions, seeds), _blank_scaling(transitions))
    arrays, static = eqx.partition(like, lambda leaf: hasattr(leaf, "shape"))
    models, scaling = eqx.combine(folder.load("model", arrays), static)
    models = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, models)
    return FittedModel(folder, dataset, config, seeds, models, scaling)


def _data_of(folder: Run, reference: str) -> Dataset:
    try:
        return load(reference)
    except InputError as error:
        raise InputError(
            f"{folder.folder}: was fitted to {reference}, which cannot be read here ({error}); say where that data is "
            "now by --fitted-to, in Python as the second argument of `load_model`"
        ) from error


def split_for(dataset: Dataset, config: ModelConfig) -> tuple[Transitions, Transitions]:
    """The fit's own split; only transitions whose successor is known teach the dynamics."""
    data = dataset.transitions.with_successors()
    if len(data) == 0:
        raise InputError(f"{dataset.reference}: no step has a successor; give episodes of one step next_observations")
    try:
        return split(data, config.held_out_fraction, seed=0)
    except InputError as error:
        raise InputError(f"{dataset.reference}: {error}") from error


def split_to_fit(dataset: Dataset, config: ModelConfig) -> tuple[Transitions, Transitions]:
    """The split of a dataset that can be fitted; one that cannot is refused."""
    data = dataset.transitions.with_successors()
    state_size = data.states.shape[1]
    largest = max(64, 8 * state_size)
    if config.latent_size > largest:
        raise InputError(
            f"latent size {config.latent_size} is out of proportion to {state_size} state dimensions; "
            f"use at most {largest}"
        )
    if len(data) < config.batch_size:
        raise InputError(
            f"{dataset.reference}: {len(data)} transitions with a successor are too few for batches of "
            f"{config.batch_size}; record more, or fit with a smaller one (`gelato model fit --batch-size`)"
        )
    if np.ptp(data.states, axis=0).max() == 0:
        raise InputError(f"{dataset.reference}: observations never change; there is no dynamics to learn")
    return split_for(dataset, config)


def _say_oddities(dataset: Dataset, config: ModelConfig) -> None:
    """What can be fitted but should not surprise."""
    data = dataset.transitions.with_successors()
    state_size, embedding_size = data.states.shape[1], config.latent_size + data.action_space.size
    if dataset.transitions.terminated.any() and not data.terminated.any():
        note(
            f"{dataset.reference}: holds no successor of an episode's end; the model will not learn where episodes end"
        )
    low, high = np.quantile(data.states[evenly(data, _OUTLIER_ROWS)], (0.01, 0.99), axis=0)
    beyond = np.abs(data.states - (low + high) / 2).max(axis=0)
    for column in np.flatnonzero((high > low) & (beyond > _OUTLIER * (high - low))):
        note(
            f"{dataset.reference}: number {column} of the observations goes to {beyond[column]:.2g}, where nearly all "
            f"lie within {high[column] - low[column]:.2g}; everything else of it will look constant to the model"
        )
    if np.ptp(data.actions, axis=0).max() == 0:
        note(f"{dataset.reference}: the action never changes; what another one would do cannot be learned")
    if np.ptp(data.rewards) == 0:
        note(
            f"{dataset.reference}: the reward is always {data.rewards[0]:g}; the reward model will learn that constant"
        )
    if 2 * config.decoders * state_size < embedding_size:
        note(rank_warning(config.decoders, state_size, embedding_size))


def rank_warning(decoders: int, state_size: int, embedding_size: int) -> str:
    """Why `2·M·d_S < d_E` matters."""
    return (
        f"2·M·d_S = {2 * decoders * state_size} is less than d_E = {embedding_size}: the metric is singular and whole "
        "directions have zero length; use more decoders or a smaller latent size"
    )


def _shape(transitions: Transitions) -> dict[str, Any]:
    return {"observation": list(transitions.observation_shape), "action": repr(transitions.action_space)}


def _untrained(config: ModelConfig, transitions: Transitions, seeds: tuple[int, ...]) -> LatentModel:
    return new_models(config, transitions.states.shape[1], transitions.action_space, jnp.array(seeds))


def _blank_scaling(transitions: Transitions) -> Scaling:
    def blank(size: int) -> Standardiser:
        return Standardiser(np.zeros(size, np.float32), np.ones(size, np.float32))

    return Scaling(blank(transitions.states.shape[1]), blank(1), transitions.action_space)


def _run_phases(
    folder: Run, dataset: Dataset, config: ModelConfig, seeds: tuple[int, ...], data: FitData
) -> LatentModel:
    """The best models of the second phase; the last checkpoint of the first is what the second begins with."""
    models = _untrained(config, dataset.transitions, seeds)
    if last_checkpoint(folder, begin(config, VARIANCES, models), config.updates) is None:
        means = _run_phase(folder, dataset, config, MEANS, seeds, data, models)
        with unhurried():
            models = with_support(means, data.reached(_SUPPORT_ROWS))
            folder.save_checkpoint(config.updates, eqx.filter(begin(config, VARIANCES, models), eqx.is_array))
    return _run_phase(folder, dataset, config, VARIANCES, seeds, data, models)


def _run_phase(
    folder: Run,
    dataset: Dataset,
    config: ModelConfig,
    phase: int,
    seeds: tuple[int, ...],
    data: FitData,
    models: LatentModel,
) -> LatentModel:
    constants, names = (data, jnp.array(seeds)), term_names(config, phase)

    def block(state: FitState, updates: int) -> tuple[FitState, Metrics]:
        state, *measured = run_block(constants, state, config=config, phase=phase, updates=updates)
        terms, held_out = map(np.asarray, measured)
        _stop_at_nan(folder, config, terms, phase, int(state.step[0]) - updates, seeds)
        if not np.isfinite(held_out).all():
            raise InputError(
                f"{dataset.reference}: the loss on held-out episodes is not finite, though on the others it is; an "
                f"observation or a reward there is out of all proportion (gelato data info {dataset.reference})"
            )
        return state, {name: terms[..., i].mean(axis=1) for i, name in enumerate(names)} | {"held_out": held_out}

    first, updates = (0, config.updates) if phase == MEANS else (config.updates, config.variance_updates)
    blank = {name: np.full(len(seeds), np.nan) for name in term_names(config, VARIANCES) if phase == MEANS}
    return run_blocks(
        folder,
        begin(config, phase, models),
        block,
        labels=[{"phase": PHASES[phase], "seed": seed} for seed in seeds],
        first=first,
        total=first + updates,
        length=min(max(updates // 40, 100), 1_000),
        title=f"fitting {dataset.reference}, {PHASES[phase]}",
        after=lambda state, step: blank,  # noqa: ARG005
        status=lambda metrics: " ".join(f"{name} {metrics[name].mean():.3g}" for name in names),
    ).best_model


def _stop_at_nan(
    folder: Run, config: ModelConfig, terms: np.ndarray, phase: int, first_step: int, seeds: tuple[int, ...]
) -> None:
    bad = ~np.isfinite(terms)
    if bad.any():
        step = int(np.argmax(bad.any(axis=(0, 2))))
        seed, term = map(int, np.argwhere(bad[:, step])[0])
        raise InputError(
            f"{folder.folder}: the {term_names(config, phase)[term]} term became {terms[seed, step, term]} at update "
            f"{first_step + step} of the {PHASES[phase]} (seed {seeds[seed]}); the last checkpoint is kept, if "
            "there was one. Try a smaller learning rate or a larger minimum variance"
        )
