"""Embeddings and neighbours of rows on the disk equal those of the same rows in memory."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gelato.arrays import take
from gelato.data import import_columns
from gelato.data.transitions import Dataset
from gelato.geometry import nearest_approximate
from gelato.model.fit import make_models
from gelato.model.latent import LatentModel
from gelato.model.split import Split, split_dataset
from gelato.uncertainty import embed, embed_all, embedded
from tests.model.test_fit import TINY, linear_gaussian


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("columns")
    data = linear_gaussian(2_000).transitions
    np.savez(
        folder / "log.npz",
        observations=data.states,
        actions=data.actions,
        rewards=data.rewards,
        next_observations=data.next_states,
        terminals=data.terminated,
        timeouts=data.truncated,
    )
    return import_columns(f"file:{folder / 'log.npz'},low=-1,high=1", folder / "store")


@pytest.fixture(scope="module")
def split(stored: Dataset) -> Split:
    return split_dataset(stored)


@pytest.fixture(scope="module")
def model(split: Split) -> LatentModel:
    return take(make_models(TINY, 2, split.train.action_space, jnp.array([0])), 0)


@pytest.mark.parametrize("block", [300, 10_000])
def test_embeddings_in_files_equal_those_in_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split: Split,
    model: LatentModel,
    block: int,
):
    monkeypatch.setattr(embedded, "_BLOCK", block)
    train = split.train
    files = embed_all(model, split.scaling, train, tmp_path)
    memory = embed(model, split.scaling, train.read(0, len(train)))
    np.testing.assert_allclose(np.asarray(files.embeddings), memory.embeddings, atol=1e-5)
    np.testing.assert_allclose(np.asarray(files.residuals), memory.residuals, atol=1e-5)
    opened = np.load(tmp_path / "embeddings.npy", mmap_mode="r")
    assert opened.shape == (len(train), TINY.latent_size + 1)


def test_points_from_the_disk_are_those_from_memory(
    monkeypatch: pytest.MonkeyPatch, split: Split, model: LatentModel
):
    train = split.train
    whole = embed(model, split.scaling, train)
    memory = embed(model, split.scaling, train.read(0, len(train)))
    np.testing.assert_array_equal(whole.embeddings, memory.embeddings)
    monkeypatch.setattr(embedded, "_MOST_FROM_DISK", 100)
    few = embed(model, split.scaling, train)
    same = embed(model, split.scaling, train.read(0, len(train)), points=100)
    np.testing.assert_array_equal(few.embeddings, same.embeddings)


def test_neighbours_among_a_column_on_the_disk(stored: Dataset):
    pytest.importorskip("faiss")
    column = stored.transitions.states
    array = np.asarray(column)
    disk = nearest_approximate(column, array[:20], 5, code_bytes=2)
    memory = nearest_approximate(array, array[:20], 5, code_bytes=2)
    np.testing.assert_array_equal(disk.indices, memory.indices)
    assert (disk.distances[:, 0] == 0).all()
