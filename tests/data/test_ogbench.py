"""OGBench's files: trajectories, rewards and masks equal to its own loader's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aspc import data, envs
from aspc.data.sources import ogbench
from aspc.errors import AspcError

pytest.importorskip("ogbench")
NAME = "antmaze-large-navigate-singletask-task1-v0"


def write_trajectories(path: Path, goal: np.ndarray, episodes: int = 3, steps: int = 21) -> Path:
    """Ants that jump about; every fifth row is at the goal."""
    rng = np.random.default_rng(0)
    rows = episodes * steps
    qpos = rng.normal(size=(rows, 15)).astype(np.float32)
    qpos[::5, :2] = goal + 0.1
    observations = np.concatenate([qpos, rng.normal(size=(rows, 14))], axis=1).astype(np.float32)
    np.savez(
        path,
        observations=observations,
        actions=rng.uniform(-1, 1, (rows, 8)).astype(np.float32),
        terminals=(np.arange(rows) % steps == steps - 1).astype(np.float32),
        qpos=qpos,
        qvel=rng.normal(size=(rows, 14)).astype(np.float32),
    )
    return path


@pytest.fixture(autouse=True)
def _folder() -> None:
    ogbench.file_path(NAME).parent.mkdir(parents=True)


def goal_of(name: str) -> np.ndarray:
    env = envs.make_env(name)
    env.reset(seed=0)
    goal = np.array(env.unwrapped.cur_goal_xy)
    env.close()
    return goal


def test_rewards_masks_and_next_observations_equal_ogbenchs_own_loader() -> None:
    from ogbench.utils import make_env_and_datasets

    train = write_trajectories(ogbench.file_path(NAME), goal_of(NAME))
    write_trajectories(ogbench.file_path(NAME, "val"), goal_of(NAME), episodes=2)
    _, theirs, their_val = make_env_and_datasets(NAME, dataset_path=str(train))
    for split, expected in (("train", theirs), ("val", their_val)):
        dataset = data.load(NAME, split=split)
        got = dataset.transitions()
        np.testing.assert_array_equal(got.observations, expected["observations"])
        np.testing.assert_array_equal(got.next_observations, expected["next_observations"])
        np.testing.assert_array_equal(got.rewards, expected["rewards"])
        np.testing.assert_array_equal(1 - got.terminals, expected["masks"])
        np.testing.assert_array_equal(
            dataset.terminals | dataset.timeouts, (expected["terminals"] > 0) | (expected["masks"] == 0)
        )
        assert set(expected["rewards"]) == {0.0, -1.0}
        assert dataset.env == NAME


def test_tasks_share_a_file_and_differ_in_reward() -> None:
    write_trajectories(ogbench.file_path(NAME), goal_of(NAME))
    other = data.load(NAME.replace("task1", "task2"))
    assert not np.array_equal(other.rewards, data.load(NAME).rewards)


def test_a_file_of_another_layout_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", observations=np.zeros((3, 29)))
    with pytest.raises(AspcError, match="'actions' not found among"):
        data.load(NAME, path=tmp_path / "x.npz")
    with pytest.raises(AspcError, match="splits are train and val"):
        data.load(NAME, split="test")
