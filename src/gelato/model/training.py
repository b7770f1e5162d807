"""Fit a latent model in a run folder, resume the fit bit for bit, and read the result."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gelato.arrays import take
from gelato.data.reference import load, load_stored
from gelato.data.transitions import Dataset, Standardiser, Transitions
from gelato.devices import BY_SEED, join_devices, make_mesh, place
from gelato.errors import InputError
from gelato.model.config import ModelConfig, Preset, preset
from gelato.model.data_checks import check_data, warn_about_data
from gelato.model.fit import (
    MEANS,
    PHASES,
    VARIANCES,
    FitData,
    FitState,
    begin_phase,
    list_term_names,
    make_models,
    place_data,
    run_block,
    run_parts,
)
from gelato.model.latent import LatentModel, Scaling, set_support
from gelato.model.pools import Pools, prepare_rows
from gelato.model.split import Split, split_dataset
from gelato.runs.description import list_recorded
from gelato.runs.files import report_damage, restore_tuples
from gelato.runs.folder import Run, list_seeds, open_run
from gelato.runs.loop import Metrics, finish, last_checkpoint, run_blocks
from gelato.runs.signals import delay_signals

_SUPPORT_ROWS = 100_000
_CHUNK = 8192
# The same for images: values of all inputs, and inputs that are encoded together.
_SUPPORT_VALUES, _IMAGE_CHUNK = 2**27, 1024


@dataclass(frozen=True)
class FittedModel:
    """The fitted models of all seeds, and the split of the data they were fitted to.

    Arrays of `models` have the seed as their first axis.
    """

    run: Run
    split: Split
    config: ModelConfig
    seeds: tuple[int, ...]
    models: LatentModel

    @property
    def dataset(self) -> Dataset:
        """The data of the fit."""
        return self.split.dataset

    @property
    def scaling(self) -> Scaling:
        """The conversion between the data's units and the model's."""
        return self.split.scaling

    @property
    def parts(self) -> tuple[Transitions, Transitions]:
        """The training and held-out transitions of the fit."""
        return self.split.parts

    def seed(self, index: int) -> LatentModel:
        """Return the model of one seed."""
        return take(self.models, index)

    def of_seeds(self, seeds: tuple[int, ...]) -> "FittedModel":
        """Keep the models of these seeds only."""
        missing = [seed for seed in seeds if seed not in self.seeds]
        if missing:
            known = ", ".join(map(str, self.seeds))
            raise InputError(
                f"{self.run.folder}: has no model for seed {missing[0]}; its seeds are {known}"
            )
        rows = np.array([self.seeds.index(seed) for seed in seeds])
        return replace(self, seeds=seeds, models=take(self.models, rows))


def fit_model(
    dataset: Dataset | str,
    run: Path | str,
    *,
    config: ModelConfig | None = None,
    preset_name: Preset = "default",
    seeds: int = 1,
    first_seed: int = 0,
) -> FittedModel:
    """Fit the latent model to a dataset in a run folder, or continue the fit started there."""
    dataset = load(dataset) if isinstance(dataset, str) else dataset
    config = config or preset(preset_name, dataset)
    numbers = list_seeds(seeds, first_seed)
    return fit_latent_model(split_dataset(dataset, config.held_out_fraction), run, config, numbers)


def fit_latent_model(
    split: Split, folder: Path | str, config: ModelConfig, seeds: tuple[int, ...]
) -> FittedModel:
    """Fit models of several seeds in a run folder, or read the ones fitted there.

    Rewards are scaled as `config` says; the scaling of the split may differ.
    """
    check_data(split, config)
    split = split.scale_rewards(to_unit_range=config.rewards_to_unit_range)
    warn_about_data(split, config)
    dataset = split.dataset
    settings = {
        "data": {"reference": dataset.reference, "environment": dataset.environment},
        "fingerprint": split.fingerprint,
        "shape": _describe_shape(dataset.transitions),
        "config": list_recorded(config),
        "seeds": list(seeds),
    }
    with open_run(folder, "model", **settings) as run:
        if run.has("model"):
            run.remove_checkpoints()
            return _read_models(run, split, config, seeds)
        data = prepare_rows(split.train, split.held_out, split.scaling, config, seeds)
        with data if isinstance(data, Pools) else nullcontext():
            models = _run_phases(run, dataset, config, seeds, data)
        result = eqx.filter((models, split.scaling), eqx.is_array)
        finish(run, lambda: run.save("model", result))
    return FittedModel(run, split, config, seeds, models)


def load_model(path: Path | str, dataset: Dataset | None = None) -> FittedModel:
    """Read a fitted model and its data.

    `path` is the folder of `gelato model fit`, or of a `gelato train` run that fitted or used a
    latent model. `dataset` replaces the recorded reference, for data that moved.
    """
    run = find_model(path)
    description = run.description
    dataset = dataset or _load_data(run, description["data"]["reference"])
    try:
        config = _read_config(description["config"])
    except InputError as error:
        raise InputError(f"{run.folder / 'run.json'}: {error}") from error
    split = split_dataset(
        dataset, config.held_out_fraction, rewards_to_unit_range=config.rewards_to_unit_range
    )
    if split.fingerprint != description["fingerprint"]:
        raise InputError(
            f"{run.folder}: was fitted to other data than {dataset.reference} (fingerprints "
            "differ). Restore that data, or fit again into a new folder"
        )
    return _read_models(run, split, config, tuple(description["seeds"]))


class NoModelError(InputError):
    """A run holds no latent model."""


def find_model(path: Path | str) -> Run:
    """Find the run of the latent model in the folder of a model or of a training."""
    run = Run(Path(path))
    description = run.description
    if description["kind"] == "model":
        return run
    inside = Run(Path(description.get("model") or run.folder / "model"))
    if description["kind"] == "policies" and (inside.folder / "run.json").exists():
        return inside
    raise NoModelError(
        f"{path}: has no fitted latent model (a run of kind {description['kind']}). Use the folder "
        "of `gelato model fit`, or of `gelato train` with a method that learns in the latent model"
    )


def _read_models(
    run: Run, split: Split, config: ModelConfig, seeds: tuple[int, ...]
) -> FittedModel:
    transitions = split.dataset.transitions
    # The settings of someone else's run may make no model.
    with report_damage(run.folder / "run.json"):
        models_like = eqx.filter_eval_shape(_new_models, config, transitions, seeds)
    like = (models_like, _make_empty_scaling(transitions))
    arrays, static = eqx.partition(like, lambda leaf: hasattr(leaf, "shape"))
    models, scaling = eqx.combine(run.load("model", arrays), static)
    # `jnp.asarray` would compile a program for every shape.
    models = jax.tree.map(lambda leaf: jax.device_put(leaf) if eqx.is_array(leaf) else leaf, models)
    return FittedModel(run, replace(split, scaling=scaling), config, seeds, models)


def _read_config(fields: Mapping[str, Any]) -> ModelConfig:
    """Read the settings of a run."""
    try:
        return ModelConfig(**restore_tuples(fields))
    except TypeError as error:
        raise InputError(
            f"the settings of the model are not those of this version of gelato ({error})"
        ) from error


def _load_data(run: Run, reference: str) -> Dataset:
    try:
        return load_stored(reference)
    except InputError as error:
        raise InputError(
            f"{run.folder}: cannot read {reference}, the data that the model was fitted to "
            f"({error}). If the data moved, give its new location by --fitted-to, or in Python as "
            "the second argument of `load_model`"
        ) from error


def _describe_shape(transitions: Transitions) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "observation": list(transitions.observation_shape),
        "action": repr(transitions.action_space),
    }
    if transitions.images:
        shape["images"] = [list(image) for image in transitions.images]
    history = transitions.layout.history
    return shape if history == 1 else {**shape, "history": history}


def _new_models(
    config: ModelConfig, transitions: Transitions, seeds: tuple[int, ...]
) -> LatentModel:
    state_size = transitions.states.shape[1]
    history, images = transitions.layout.history, transitions.images
    numbers = jnp.array(seeds)
    return make_models(config, state_size, transitions.action_space, numbers, history, images)


def _make_empty_scaling(transitions: Transitions) -> Scaling:
    def blank(size: int) -> Standardiser:
        return Standardiser(np.zeros(size, np.float32), np.ones(size, np.float32))

    states, history = blank(transitions.states.shape[1]), transitions.layout.history
    return Scaling(states, blank(1), transitions.action_space, history)


def _run_phases(
    folder: Run,
    dataset: Dataset,
    config: ModelConfig,
    seeds: tuple[int, ...],
    data: FitData | Pools,
) -> LatentModel:
    """Run both phases and return the best models of the second.

    The second phase starts from the best models of the first. They are kept as the checkpoint of
    the first phase's last step.
    """
    models = _new_models(config, dataset.transitions, seeds)
    found = last_checkpoint(folder, begin_phase(config, VARIANCES, models), config.updates)
    if found is not None:
        step, state = found
        folder.forget_metrics_after(step)
    else:
        state = begin_phase(config, MEANS, models)
        means = _run_phase(folder, dataset, config, MEANS, seeds, data, state)
        with delay_signals():
            # Convolutions over windows need more memory than networks of states.
            windows = isinstance(data, FitData) and data.ages is not None
            chunk_size, rows = _CHUNK if windows else None, _SUPPORT_ROWS
            if isinstance(data, FitData) and data.frames is not None:
                chunk_size, rows = _IMAGE_CHUNK, max(1, _SUPPORT_VALUES // data.layout.size)
            models = set_support(means, data.choose_inputs(rows), chunk_size)
            step, state = config.updates, begin_phase(config, VARIANCES, models)
            folder.save_checkpoint(step, eqx.filter(state, eqx.is_array))
    return _run_phase(folder, dataset, config, VARIANCES, seeds, data, state, step)


def _run_phase(
    folder: Run,
    dataset: Dataset,
    config: ModelConfig,
    phase: int,
    seeds: tuple[int, ...],
    data: FitData | Pools,
    state: FitState,
    start: int | None = None,
) -> LatentModel:
    mesh = make_mesh(len(seeds))
    names = list_term_names(config, phase)
    phase_updates = config.updates if phase == MEANS else config.variance_updates
    length = min(max(phase_updates // 40, 100), 1_000)

    pool = placed = None

    def block(state: FitState, updates: int) -> tuple[FitState, Metrics]:
        nonlocal pool, placed
        chosen = data.choose_pool(phase, int(state.step[0]), length, phase_updates)
        if chosen is not pool:
            pool, placed = chosen, chosen if mesh is None else place_data(chosen, mesh)
        constants = (placed, jnp.array(seeds))
        run = run_block if mesh is None else partial(run_parts, mesh=mesh)
        state = place(state, mesh, BY_SEED)
        state, *measured = run(constants, state, config=config, phase=phase, updates=updates)
        terms, held_out = map(np.asarray, measured)
        _stop_at_nan(folder, config, terms, phase, int(state.step[0]) - updates, seeds)
        if not np.isfinite(held_out).all():
            raise InputError(
                f"{dataset.reference}: the loss is finite on training episodes but not on held-out "
                "ones. An observation or reward there is far too large; see `gelato data info "
                f"{dataset.reference}`"
            )
        metrics = {name: terms[..., i].mean(axis=1) for i, name in enumerate(names)}
        return state, metrics | {"held_out": held_out}

    # The first rows set the columns of metrics.csv, so phase 1 writes blanks for those of phase 2.
    blank = {}
    if phase == MEANS:
        first = 0
        for name in list_term_names(config, VARIANCES):
            blank[name] = np.full(len(seeds), np.nan)
    else:
        first = config.updates
    state = run_blocks(
        folder,
        state,
        block,
        labels=[{"phase": PHASES[phase], "seed": seed} for seed in seeds],
        first=first,
        start=start,
        total=first + phase_updates,
        length=length,
        title=f"fitting the model, {PHASES[phase]}",
        after=lambda state, step: blank,  # noqa: ARG005
        shown=names,
    )
    return join_devices(state.best_model, mesh)


def _stop_at_nan(
    folder: Run,
    config: ModelConfig,
    terms: np.ndarray,
    phase: int,
    first_step: int,
    seeds: tuple[int, ...],
) -> None:
    """Raise an error if a term is not finite; name the term, the update and the seed."""
    bad = ~np.isfinite(terms)
    if not bad.any():
        return
    step = int(np.argmax(bad.any(axis=(0, 2))))
    seed, term = map(int, np.argwhere(bad[:, step])[0])
    raise InputError(
        f"{folder.folder}: the {list_term_names(config, phase)[term]} term became "
        f"{terms[seed, step, term]} at update {first_step + step} of the {PHASES[phase]} "
        f"(seed {seeds[seed]}). The last checkpoint, if any, is kept. Try a smaller learning rate "
        "or a larger minimum variance"
    )
