"""CSV and Parquet tables, and LeRobot folders, give what was written into them."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import gelato
from gelato.data.tables import list_files
from gelato.errors import InputError

ROWS = 12
NAMES = "observations=x*,actions=torque,rewards=gain"


def make_columns() -> dict[str, np.ndarray]:
    rows = np.arange(ROWS)
    return {
        "x1": rows * 0.1,
        "x2": -rows.astype(np.float32),
        "torque": np.sin(rows),
        "gain": rows * 1.0,
        "run": np.array([f"run-{row // 4}" for row in rows]),
        "clock": rows * 0.5,
    }


def write_csv(path: Path, columns: dict[str, np.ndarray], separator: str = ",") -> Path:
    csv.write_csv(pa.table(columns), path, csv.WriteOptions(delimiter=separator))
    return path


def load_rows(reference: str) -> gelato.Transitions:
    return gelato.load(reference).transitions


def test_a_csv_file_and_a_parquet_file_give_the_same_transitions(tmp_path):
    columns = make_columns()
    write_csv(tmp_path / "log.csv", columns)
    write_csv(tmp_path / "semicolon.csv", columns, ";")
    pq.write_table(pa.table(columns), tmp_path / "log.parquet", row_group_size=5)
    options = f"{NAMES},episode=run,time=clock"
    first = gelato.load(f"csv:{tmp_path / 'log.csv'},{options}")
    for other in (f"csv:{tmp_path / 'semicolon.csv'}", f"parquet:{tmp_path / 'log.parquet'}"):
        again = load_rows(f"{other},{options}")
        assert again.fingerprint() == first.transitions.fingerprint()
    assert first.state_names == ("x1", "x2") and first.action_names == ("torque",)
    assert [rows.stop for rows in first.transitions.episode_slices] == [4, 8, 12]
    np.testing.assert_allclose(first.transitions.states[:, 0], columns["x1"], rtol=1e-6)


def test_a_folder_and_a_pattern_are_read_in_natural_order(tmp_path):
    columns = make_columns()
    pq.write_table(pa.table(columns), tmp_path / "whole.parquet")
    whole = load_rows(f"parquet:{tmp_path / 'whole.parquet'},{NAMES},episode=run")
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, start in (("2", 0), ("10", 4), ("11", 8)):
        rows = {name: column[start : start + 4] for name, column in columns.items()}
        pq.write_table(pa.table(rows), folder / f"part-{part}.parquet")
    (folder / "_SUCCESS").touch()
    for target in (folder, folder / "part-*.parquet"):
        data = load_rows(f"parquet:{target},{NAMES},episode=run")
        assert data.fingerprint() == whole.fingerprint()
    with pytest.raises(InputError, match="no file matches"):
        list_files(str(folder / "x*"), (".parquet",))
    with pytest.raises(InputError, match="has no file that ends with"):
        list_files(str(folder), (".csv",))
    pq.write_table(pa.table({"x1": ["a"]}), folder / "part-12.parquet")
    with pytest.raises(InputError, match="x1 holds string, but double in the first file"):
        load_rows(f"parquet:{folder},{NAMES}")


def test_vectors_of_every_arrow_type_are_read(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(8, 3)
    flat = pa.array(values.ravel())
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    ray = pa.field("obs", pa.list_(pa.float32())).with_metadata(
        {"ARROW:extension:name": "ray.data.arrow_tensor", "ARROW:extension:metadata": "[3]"}
    )
    struct = pa.StructArray.from_arrays(
        [
            pa.array(values[:, 0]),
            pa.FixedSizeListArray.from_arrays(pa.array(values[:, 1:].ravel()), 2),
        ],
        ["speed", "joints"],
    )
    kinds = {
        "list": (pa.field("obs", pa.list_(pa.float32())), pa.array(list(values))),
        "fixed": (
            pa.field("obs", pa.list_(pa.float32(), 3)),
            pa.FixedSizeListArray.from_arrays(flat, 3),
        ),
        "tensor": (pa.field("obs", tensor.type), tensor),
        "ray": (ray, pa.array(list(values))),
        "struct": (pa.field("obs", struct.type), struct),
    }
    ends = pa.array([False, False, False, True] * 2)
    rest = {"action": pa.array([0, 2, 1, 1] * 2), "reward": pa.array(np.ones(8)), "truncated": ends}
    for name, (field, column) in kinds.items():
        fields = [field, *(pa.field(key, each.type) for key, each in rest.items())]
        table = pa.Table.from_arrays([column, *rest.values()], schema=pa.schema(fields))
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=3)
        dataset = gelato.load(f"parquet:{tmp_path / name}.parquet")
        np.testing.assert_array_equal(dataset.transitions.states, values)
        assert dataset.transitions.action_space == gelato.data.Discrete(3)
    assert dataset.state_names == ("obs.speed", "obs.joints[0]", "obs.joints[1]")


def test_times_may_be_dates(tmp_path):
    columns = make_columns()
    columns["clock"] = np.datetime64("2026-01-01T00:00:00") + np.arange(ROWS).astype(
        "timedelta64[s]"
    )
    columns["clock"][8:] += np.timedelta64(1, "h")
    write_csv(tmp_path / "log.csv", columns)
    data = load_rows(f"csv:{tmp_path / 'log.csv'},{NAMES},time=clock,gap=60")
    assert [rows.stop for rows in data.episode_slices] == [8, 12]


def test_integers_of_a_csv_file_are_discrete_actions_unless_a_later_row_has_a_fraction(tmp_path):
    columns = make_columns()
    columns["torque"] = np.arange(ROWS) % 3
    write_csv(tmp_path / "log.csv", columns)
    options = f"{NAMES},episode=run"
    space = load_rows(f"csv:{tmp_path / 'log.csv'},{options}").action_space
    assert space == gelato.data.Discrete(3)
    text = (tmp_path / "log.csv").read_text() + '1,1,0.5,1,"run-3",7\n'
    (tmp_path / "log.csv").write_text(text)
    space = load_rows(f"csv:{tmp_path / 'log.csv'},{options}").action_space
    assert isinstance(space, gelato.data.Continuous)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.1,-1,", "abc,-1,", r"x1 holds text, 'abc' in row 1 \(line 3\)"),
        ("0.1,-1,", ",-1,", "x1 has no value in row 1"),
        ("0.1,-1,", "0.1,-1,7,", "not a readable CSV file .*Expected 6 columns, got 7"),
        ('"x1"', '"x2"', "two columns are called x2"),
        ('"x1","x2","torque","gain","run","clock"\n', "", "first line"),
    ],
)
def test_a_damaged_csv_file_is_one_line(tmp_path, old, new, message):
    path = write_csv(tmp_path / "log.csv", make_columns())
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        load_rows(f"csv:{path},{NAMES}")


def test_spaces_after_separators_decimal_commas_and_marks_of_editors_are_no_problem(tmp_path):
    path = tmp_path / "log.csv"
    rest = "act;  rew\n1,5; 0,25; 3\n2,5; 0,5; 4\n"
    path.write_bytes(b"\xef\xbb\xbfobs_0; " + rest.replace("\n", "\r\n").encode())
    data = load_rows(f"csv:{path},decimal=comma")
    np.testing.assert_array_equal(data.states[:, 0], [1.5, 2.5])
    np.testing.assert_array_equal(data.actions[:, 0], [0.25, 0.5])
    with pytest.raises(InputError, match=r"'1,5' in row 0 .line 2.*Add ,decimal=comma"):
        load_rows(f"csv:{path}")
    with pytest.raises(InputError, match="decimal=dot must be point or comma"):
        load_rows(f"csv:{path},decimal=dot")


def test_a_damaged_parquet_file_is_one_line(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(make_columns()), path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:200], whole[:-40] + bytes(40)):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a readable Parquet file"):
            load_rows(f"parquet:{path},{NAMES}")
    path.write_bytes(whole)
    with pytest.raises(InputError, match="holds text, 'run-0' in row 0"):
        load_rows(f"parquet:{path},{NAMES.replace('x*', 'x1|run')}")


def test_rows_of_different_lengths_and_images_are_refused(tmp_path):
    rest = {"action": np.zeros(4), "reward": np.zeros(4)}
    pq.write_table(
        pa.table({"obs": [[1.0, 2], [3, 4], [5], [6, 7]], **rest}), tmp_path / "a.parquet"
    )
    with pytest.raises(InputError, match="obs has 1 values in row 2, but 2 in row 0"):
        load_rows(f"parquet:{tmp_path / 'a.parquet'}")
    images = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((4, 32, 32, 3), np.uint8))
    pq.write_table(pa.table({"obs": images, **rest}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"obs holds images \(32×32×3\)"):
        load_rows(f"parquet:{tmp_path / 'b.parquet'}")
    pq.write_table(pa.table({"obs": [b"png"] * 4, **rest}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="obs holds binary, perhaps encoded images"):
        load_rows(f"parquet:{tmp_path / 'c.parquet'}")


def test_a_small_parquet_file_that_claims_many_rows_costs_nothing(tmp_path):
    zeros = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000_000, np.int8)), pa.array([0.0]))
    table = pa.table({"obs": zeros, "action": zeros, "reward": zeros})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=len(zeros))
    assert (tmp_path / "log.parquet").stat().st_size < 300_000
    with pytest.raises(InputError, match="claims"):
        load_rows(f"parquet:{tmp_path / 'log.parquet'}")


def test_ray_files_are_read_as_they_are(realdata):
    folder = realdata("rllib/1_000000_000000.parquet").parent
    data = load_rows(f"parquet:{folder},low=-2,high=2,scale=2,terminals=none,timeouts=dones")
    assert len(data) == 820 and len(data.episode_slices) == 5 and data.has_successor.all()
    assert not data.terminated.any()
    # Pendulum: the reward says which torque acted.
    angle = np.arctan2(data.states[:, 1], data.states[:, 0])
    cost = angle**2 + 0.1 * data.states[:, 2] ** 2 + 0.001 * data.actions[:, 0] ** 2
    np.testing.assert_allclose(data.rewards, -cost, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "d4rl/hopper_medium-v2.hdf5",
        "d4rl/halfcheetah_medium-v2.hdf5",
        "d4rl/hopper_medium.hdf5",
        "pendulum/pendulum_v1.1.0.h5",
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_real_files_converted_to_tables_have_equal_fingerprints(realdata, tmp_path, name, kind):
    path = realdata(name)
    options = ",low=-2,high=2" if "pendulum" in name else ",low=-1,high=1"
    with h5py.File(path) as file:
        wanted = [each for each in file if each in gelato_fields() and file[each].ndim]
        arrays = {each: file[each][()] for each in wanted}
    columns = {}
    for field, array in arrays.items():
        flat = array.reshape(len(array), -1)
        if kind == "parquet" and flat.shape[1] > 1:
            columns[field] = pa.array(list(flat))
        elif flat.shape[1] == 1:
            columns[field] = flat[:, 0]
        else:
            columns |= {f"{field}_{i}": column for i, column in enumerate(flat.T)}
    target = tmp_path / f"log.{kind}"
    if kind == "csv":
        write_csv(target, columns)
    else:
        pq.write_table(pa.table(columns), target)
    expected = load_rows(f"file:{path}{options}").fingerprint()
    assert load_rows(f"{kind}:{target}{options}").fingerprint() == expected


def gelato_fields() -> tuple[str, ...]:
    flags = ("terminals", "timeouts", "episode_terminals")
    return ("observations", "actions", "rewards", "next_observations", *flags)


@pytest.fixture
def write_lerobot(tmp_path: Path) -> Callable[..., Path]:
    """Write a LeRobot folder as its documentation describes it."""

    def write(version: str = "v3.0", **changes: object) -> Path:
        root = tmp_path / f"lerobot-{version}"
        lengths = [3, 4]
        episodes = []
        for number, length in enumerate(lengths):
            steps = np.arange(length)
            states = np.stack([steps + 10 * number, -steps], axis=1).astype(np.float32)
            table = pa.table(
                {
                    "observation.state": pa.FixedSizeListArray.from_arrays(
                        pa.array(states.ravel()), 2
                    ),
                    "action": pa.array(list(np.sin(states[:, :1]))),
                    "next.reward": pa.array(steps.astype(np.float32)),
                    "next.done": pa.array(steps == length - 1),
                    "timestamp": pa.array((steps * 0.1).astype(np.float32)),
                    "episode_index": pa.array(np.full(length, number)),
                }
            )
            episodes.append(table)
        folder = root / "data" / "chunk-000"
        folder.mkdir(parents=True)
        if version == "v3.0":
            pq.write_table(pa.concat_tables(episodes), folder / "file-000.parquet")
        else:
            for number, table in enumerate(episodes):
                pq.write_table(table, folder / f"episode_{number:06d}.parquet")
        features = {
            "observation.state": {"dtype": "float32", "shape": [2], "names": ["arm", "hand"]},
            "observation.images.top": {"dtype": "video", "shape": [3, 96, 96], "names": None},
            "action": {"dtype": "float32", "shape": [1], "names": {"motors": ["motor"]}},
            "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        }
        info = {"codebase_version": version, "total_frames": 7, "total_episodes": 2}
        (root / "meta").mkdir()
        (root / "meta" / "info.json").write_text(
            json.dumps({**info, "features": features, **changes})
        )
        return root

    return write


def test_lerobot_folders_of_both_versions_give_the_same_transitions(write_lerobot, capsys):
    datasets = [gelato.load(f"lerobot:{write_lerobot(version)}") for version in ("v2.1", "v3.0")]
    assert "observation.images.top cannot be read yet" in " ".join(capsys.readouterr().err.split())
    first, second = datasets
    assert first.transitions.fingerprint() == second.transitions.fingerprint()
    assert first.state_names == ("state.arm", "state.hand")
    assert first.action_names == ("action.motor",)
    data = first.transitions
    assert [rows.stop for rows in data.episode_slices] == [3, 7] and not data.terminated.any()
    np.testing.assert_array_equal(data.states[:, 0], [0, 1, 2, 10, 11, 12, 13])
    flagged = load_rows(f"{second.reference},terminals=next.done")
    assert flagged.terminated.sum() == 2


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"codebase_version": "v1.6"}, "", "version v1.6 of LeRobot's format is not supported"),
        ({"total_frames": 9}, "", "total_frames = 9, but the files hold 7"),
        ({"features": [1]}, "", "has no features; it is damaged"),
        ({"features": {"action": {}}}, "", "no observations other than pictures"),
        ({}, ",observations=observation.*", "top holds pictures, which cannot be read yet"),
    ],
)
def test_a_wrong_lerobot_folder_is_one_line(write_lerobot, changes, options, message):
    with pytest.raises(InputError, match=message):
        gelato.load(f"lerobot:{write_lerobot(**changes)}{options}")


def test_a_folder_without_a_description_is_no_lerobot_folder(tmp_path):
    with pytest.raises(InputError, match=r"it has no meta/info\.json"):
        gelato.load(f"lerobot:{tmp_path}")


@pytest.mark.integration
def test_a_folder_that_lerobot_itself_wrote_is_read(tmp_path):
    dataset = pytest.importorskip("lerobot.datasets.lerobot_dataset")
    features = {
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["arm", "hand"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    }
    root = tmp_path / "small"
    recorded = dataset.LeRobotDataset.create(
        repo_id="me/small", fps=10, root=root, features=features, use_videos=False
    )
    for episode in range(3):
        for step in range(4):
            state = np.array([episode, step], np.float32)
            frame = {"observation.state": state, "action": np.sin(state), "task": "push"}
            recorded.add_frame({**frame, "next.reward": np.array([step], np.float32)})
        recorded.save_episode()
    recorded.finalize()
    data = load_rows(f"lerobot:{root}")
    assert [rows.stop for rows in data.episode_slices] == [4, 8, 12]
    np.testing.assert_array_equal(data.states[:, 0], np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(data.rewards, np.tile(np.arange(4), 3))
