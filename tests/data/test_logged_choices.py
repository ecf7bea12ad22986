"""Choices among logged actions: which columns are choices, their names, masks, and every way to store them."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest

from aspc import data, envs
from aspc.action_space import ActionSpace, Factor
from aspc.data import Dataset, packing
from aspc.data.diagnostics import summarize
from aspc.data.streaming import StreamingDataset
from aspc.data.writers import dataset_arrays, dataset_metadata, write_hdf5, write_npz
from aspc.envs.choices import with_choice_columns
from aspc.errors import AspcError

ROWS = 60
VALVE = np.array(["shut", "open", "half"])


def table(**changes: object) -> dict[str, object]:
    """Return a log with a choice, a number and masks: `open` is forbidden in rows that are multiples of 6."""
    rng, codes = np.random.default_rng(0), np.arange(ROWS) % 3
    return {
        "obs_x": rng.normal(size=ROWS),
        "obs_y": rng.normal(size=ROWS),
        "action_valve": VALVE[codes],
        "action_dose": rng.normal(size=ROWS),
        "reward": rng.normal(size=ROWS),
        "episode": np.arange(ROWS) // 10,
        "mask_open": (np.arange(ROWS) % 6 != 0).astype(int),
        **changes,
    }


def write_csv(path: Path, columns: dict[str, object]) -> Path:
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def check_valve(dataset: Dataset) -> None:
    space = dataset.action_space
    assert space is not None
    assert space.factors == (Factor("action_valve", ("half", "open", "shut")), Factor("action_dose"))
    assert space.masked == (1,)
    assert dataset.observation_names == ("obs_x", "obs_y", "mask_open")
    assert dataset.action_names[:3] == ("action_valve=half", "action_valve=open", "action_valve=shut")
    np.testing.assert_array_equal(dataset.actions[:3, :3], [[0, 0, 1], [0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(dataset.observations[:7, 2], [0, 1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(dataset.action_low[:3], [0, 0, 0])
    np.testing.assert_array_equal(dataset.action_high[:3], [1, 1, 1])


def test_text_is_a_choice_with_masks_in_every_table(tmp_path: Path) -> None:
    columns = table()
    check_valve(data.load(write_csv(tmp_path / "log.csv", columns)))
    check_valve(data.load(pd.DataFrame(columns)))
    pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
    pd.DataFrame(columns).to_parquet(tmp_path / "log.parquet")
    check_valve(data.load(tmp_path / "log.parquet"))


def test_files_of_a_folder_share_their_options(tmp_path: Path) -> None:
    frame = pd.DataFrame(table()).drop(columns=["episode"])
    for i, rows in enumerate(([1, 4, 2], [0, 3, 6], [5, 7, 8])):  # the second file never opens the valve first
        frame.iloc[rows].to_csv(tmp_path / f"{i}.csv", index=False)
    dataset = data.load(tmp_path)
    assert dataset.action_space is not None
    expected = VALVE[np.array([1, 4, 2, 0, 3, 6, 5, 7, 8]) % 3]
    named = dataset.action_space.name_choices(dataset.actions)
    assert [row["action_valve"] for row in named] == list(expected)


def test_rule_for_whole_numbers(tmp_path: Path) -> None:
    """A table's column is a choice if it has at most 16 whole numbers, each in 10 rows on average."""

    def choices(values: np.ndarray, **options: object) -> tuple[str, ...]:
        columns = {**table(), "action_valve": values}
        del columns["mask_open"]
        columns = {name: np.resize(np.asarray(column), len(values)) for name, column in columns.items()}
        columns["episode"] = np.arange(len(values)) // 10
        found = data.load(write_csv(tmp_path / "log.csv", columns), **options)
        return () if found.action_space is None else found.action_space.factors[0].choices

    assert choices(np.arange(60) % 6) == ("0", "1", "2", "3", "4", "5")
    assert choices(10.0 * (np.arange(60) % 2)) == ("0", "10")
    assert choices(np.arange(60) % 7) == ()  # too few rows for each
    assert choices(np.arange(400) % 17) == ()
    assert choices(np.arange(60) % 2 + 0.5) == ()
    assert choices(np.zeros(60)) == ()
    assert choices(np.arange(400) % 17, categorical="action_valve")[-2:] == ("15", "16")
    assert choices(np.arange(60) % 6, continuous="*") == ()
    with pytest.raises(AspcError, match="listed in --categorical, but holds numbers other than integers"):
        choices(np.arange(60) / 7, categorical="action_valve")
    with pytest.raises(AspcError, match="there is no action 'pump'"):
        choices(np.arange(60) % 2, categorical="pump")


def test_arrays_of_integers_truth_values_and_text_are_choices() -> None:
    rng = np.random.default_rng(0)
    logged = {"observations": rng.normal(size=(ROWS, 2)), "rewards": rng.normal(size=ROWS)}
    ends = {"terminals": np.zeros(ROWS, bool)}
    for actions, names in (
        (np.arange(ROWS) % 3, ("0", "1", "2")),
        (np.arange(ROWS)[:, None] % 3 * 5, ("0", "5", "10")),
        (np.arange(ROWS) % 2 == 0, ("false", "true")),
        (VALVE[np.arange(ROWS) % 3], ("half", "open", "shut")),
    ):
        dataset = Dataset.from_arrays(**logged, actions=actions, **ends)
        assert dataset.action_space == ActionSpace((Factor("action", names),))
        assert dataset.action_space is not None
        text = np.ravel(actions).astype(str)
        assert dataset.action_space.name_choices(dataset.actions) == [value.lower() for value in text]
    both = Dataset.from_arrays(**logged, actions=np.stack([np.arange(ROWS) % 3, np.arange(ROWS) % 2], 1), **ends)
    assert both.action_space is not None
    assert both.action_space.sizes == (3, 2)
    floats = Dataset.from_arrays(**logged, actions=(np.arange(ROWS)[:, None] % 3).astype(np.float32), **ends)
    assert floats.action_space is None  # as D4RL's files


def test_an_environment_names_the_options() -> None:
    rng = np.random.default_rng(0)
    logged = {"observations": rng.normal(size=(ROWS, 6)), "rewards": -np.ones(ROWS), "terminals": np.zeros(ROWS, bool)}
    dataset = Dataset.from_arrays(**logged, actions=np.arange(ROWS) % 2, env="Acrobot-v1")
    assert dataset.action_space is not None
    assert dataset.action_space.sizes == (3,)
    assert any(
        "action action: no row of the log has the option 2" in warning for warning in summarize(dataset).warnings
    )
    with pytest.raises(AspcError, match="holds options from 0 to 3, but the environment only has options 0 to 2"):
        Dataset.from_arrays(**logged, actions=np.arange(ROWS) % 4, env="Acrobot-v1")


def test_summary_shows_frequencies_and_rare_options(tmp_path: Path) -> None:
    valve = np.where(np.arange(ROWS) < 3, "leak", VALVE[np.arange(ROWS) % 3])
    summary = summarize(data.load(write_csv(tmp_path / "log.csv", table(action_valve=valve))))
    assert dict(summary.facts)["options of action_valve"] == "half 31.7 %, open 31.7 %, shut 31.7 %, leak 5 %"
    (rare,) = [warning for warning in summary.warnings if "too few to estimate" in warning]
    assert rare.startswith(
        "action action_valve: fewer than 20 rows of the log have the option half (19), leak (3), open (19), shut (19)"
    )
    assert not any("at a bound" in warning or "never change" in warning for warning in summary.warnings)


def test_masks_add_options_and_forbid_no_logged_choice(tmp_path: Path) -> None:
    with_new = data.load(write_csv(tmp_path / "new.csv", table(mask_valve_drain=np.arange(ROWS) % 2)))
    assert with_new.action_space is not None
    assert with_new.action_space.factors[0].choices == ("half", "open", "shut", "drain")
    assert with_new.action_space.masked == (1, 3)
    with pytest.raises(AspcError, match="row 2 chooses 'action_valve=open', which its mask forbids"):
        data.load(write_csv(tmp_path / "bad.csv", table(mask_open=np.zeros(ROWS, int))))
    second = table(action_pump=np.arange(ROWS) % 2, mask_leak=np.ones(ROWS, int))
    with pytest.raises(AspcError, match="the mask 'mask_leak' matches no option"):
        data.load(write_csv(tmp_path / "two.csv", second))
    numbers = table(action_valve=np.arange(ROWS) / 7)
    assert data.load(write_csv(tmp_path / "numbers.csv", numbers)).observation_size == 2


def test_stored_and_packed_datasets_keep_their_choices(tmp_path: Path) -> None:
    dataset = data.load(write_csv(tmp_path / "log.csv", table()))
    for name, write in (("log.hdf5", write_hdf5), ("log.npz", write_npz)):
        write(tmp_path / name, dataset_arrays(dataset), dataset_metadata(dataset))
        again = data.load(tmp_path / name)
        assert again.action_space == dataset.action_space
        np.testing.assert_array_equal(again.actions, dataset.actions)
        np.testing.assert_array_equal(again.observations, dataset.observations)
        np.testing.assert_array_equal(again.action_low, dataset.action_low)
    packing.pack(dataset, tmp_path / "packed")
    assert StreamingDataset.open(tmp_path / "packed").action_space == dataset.action_space
    broken = {**dataset_arrays(dataset), "actions": dataset.actions * 0.5}
    write_npz(tmp_path / "broken.npz", broken, dataset_metadata(dataset))
    with pytest.raises(AspcError, match="exactly one option of the action 'action_valve' must be 1"):
        data.load(tmp_path / "broken.npz")


def test_logged_next_observations_get_the_masks_of_the_next_row(tmp_path: Path) -> None:
    columns = table(next_obs_x=np.zeros(ROWS), next_obs_y=np.zeros(ROWS))
    dataset = data.load(write_csv(tmp_path / "log.csv", columns))
    assert dataset.next_observations is not None
    masks = dataset.observations[:, 2]
    expected = np.append(masks[1:], 1)
    expected[9::10] = 1  # after the last row of an episode
    np.testing.assert_array_equal(dataset.next_observations[:, 2], expected)


class Mixed(gym.Env):
    """An environment that returns its action in `info`."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, action_space: gym.Space) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: object) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(1, np.float32), 0.0, False, False, {"action": action}


def test_every_action_space_is_seen_as_columns() -> None:
    spaces = gym.spaces
    box = spaces.Box(-2, 3, (2,), np.float32)
    columns = {
        "discrete": (spaces.Discrete(3, start=5), [0, 1, 0], 6),
        "multi": (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 0, 1], [0, 2]),
        "binary": (spaces.MultiBinary(2), [0, 1, 1, 0], [1, 0]),
        "mixed": (spaces.Tuple((spaces.Discrete(2), box)), [0, 1, 0.5, -1], (1, [0.5, -1])),
        "named": (spaces.Dict({"dose": box, "valve": spaces.Discrete(2)}), [0.5, -1, 1, 0], None),
    }
    for space, action, expected in columns.values():
        env = with_choice_columns(Mixed(space), "Mixed")
        taken = env.step(np.array(action, np.float32))[4]["action"]
        assert space.contains(taken)
        if expected is None:
            assert taken["valve"] == 0
            np.testing.assert_array_equal(taken["dose"], [0.5, -1])
        elif isinstance(expected, tuple):
            assert taken[0] == expected[0]
            np.testing.assert_array_equal(taken[1], expected[1])
        else:
            np.testing.assert_array_equal(taken, expected)
    with pytest.raises(AspcError, match="actions of type Text; only Box, Discrete"):
        with_choice_columns(Mixed(spaces.Text(3)), "Mixed")
    with pytest.raises(AspcError, match="No option was chosen"):
        with_choice_columns(Mixed(spaces.Discrete(2)), "Mixed").step(np.zeros(2))
    assert envs.choices("CartPole-v1") == ActionSpace((Factor("action", ("0", "1")),))
    assert envs.choices("Pendulum-v1") is None


def test_random_options_respect_masks() -> None:
    space = ActionSpace((Factor("a", ("x", "y", "z")), Factor("n")), (0, 2))
    masks = np.random.default_rng(0).integers(0, 2, (1_000, 2))
    drawn = space.sample(np.concatenate([np.ones((1_000, 3)), masks], 1), np.random.default_rng(1))
    assert (drawn[:, :3].sum(1) == 1).all()
    assert not (drawn[:, [0, 2]] * (1 - masks)).any()
    pair = ActionSpace((Factor("a", ("x", "y")),), (0, 1))
    nothing = pair.sample(np.zeros((5, 3)), np.random.default_rng(1))
    np.testing.assert_array_equal(nothing, 0)  # all options are forbidden, and none is chosen
    free = drawn[(masks == 1).all(1)]
    assert (free[:, :3].mean(0) > 0.2).all()


@pytest.mark.parametrize("cell", ["{:.1f}%", "{:.1f} rpm", "1,{:05.1f}"])
def test_numbers_with_units_are_not_options(tmp_path: Path, cell: str) -> None:
    values = [cell.format(i * 1.5) for i in range(40)]
    frame = pd.DataFrame({"obs": np.arange(40.0), "action_valve": values, "reward": np.ones(40), "episode": 0})
    frame.to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(AspcError, match="'action_valve' are text that looks like numbers"):
        data.load(tmp_path / "x.csv")
    assert data.load(tmp_path / "x.csv", categorical="action_valve").action_size == 40
    few = frame.assign(action_valve=[cell.format(i % 4) for i in range(40)])
    assert data.load(few).action_size == 4  # levels of a valve are options
