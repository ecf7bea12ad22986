"""Minari datasets: read from Minari's collector, written, and read back."""

from __future__ import annotations

import gc
import json
import warnings
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from aspc import data, envs
from aspc.action_space import ActionSpace, Factor
from aspc.data.collect import collect as roll
from aspc.data.dataset import Dataset
from aspc.data.readers.limited_reader import LimitedReader
from aspc.data.sources import minari as ours
from aspc.envs.choices import choices_of, with_choice_columns
from aspc.errors import AspcError
from fuzz_child import damage

minari = pytest.importorskip("minari")


class GoalEnv(gym.Env):
    """Two numbers to reach two others; a dict observation, as goal-conditioned environments have."""

    def __init__(self) -> None:
        box = gym.spaces.Box(-10.0, 10.0, (2,), np.float64)
        self.observation_space = gym.spaces.Dict({"observation": box, "desired_goal": box, "achieved_goal": box})
        self.action_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def _observe(self) -> dict[str, np.ndarray]:
        return {"observation": self.x.copy(), "desired_goal": self.goal.copy(), "achieved_goal": self.x + 0.5}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.goal = self.np_random.normal(size=2), np.ones(2)
        return self._observe(), {}

    def step(self, action):
        self.x = self.x + 0.1 * action
        return self._observe(), float(-np.abs(self.x - self.goal).sum()), bool(self.x[0] > 1.5), False, {}


gym.register("AspcTestGoal-v0", entry_point="test_minari:GoalEnv", max_episode_steps=20)


def collect(env_id: str, dataset_id: str, episodes: int = 4) -> None:
    env = minari.DataCollector(gym.make(env_id))
    env.action_space.seed(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="minari.*")  # no author, no license, ...
        warnings.filterwarnings("ignore", "Implicitly cleaning up", ResourceWarning)  # the collector's own folders
        env.create_dataset(dataset_id)
        env.close()
        del env
        gc.collect()


def test_dataset_of_the_minari_collector_loads() -> None:
    collect("Pendulum-v1", "mine/pendulum-v0", episodes=2)
    dataset = data.load("mine/pendulum-v0")
    assert (len(dataset), dataset.observation_size, dataset.env) == (400, 3, "minari:mine/pendulum-v0")
    np.testing.assert_array_equal(dataset.action_high, [2.0])
    assert dataset.timeouts.sum() == 2
    transitions = dataset.transitions()
    assert len(transitions.rewards) == 400  # Minari has the real next observations
    np.testing.assert_array_equal(transitions.next_observations[:199], dataset.observations[1:200])
    assert envs.make_env(dataset.env).spec.id == "Pendulum-v1"
    assert envs.horizon(dataset.env) == 200
    same = data.load("minari:mine/pendulum-v0")
    np.testing.assert_array_equal(same.observations, dataset.observations)


def test_dict_observations_are_flattened_like_the_environment() -> None:
    collect("AspcTestGoal-v0", "goal-v0")
    dataset = data.load("minari:goal-v0")
    assert dataset.observation_size == 6
    (note,) = [note for note in dataset.notes if "flattened" in note]
    order = [part.split()[0] for part in note.split(": ")[1].split(", ")]
    start = 2 * order.index("desired_goal")
    np.testing.assert_array_equal(dataset.observations[:, start : start + 2], 1.0)
    assert dataset.env is None  # its package is not a known one, so it has to be named
    (note,) = [note for note in dataset.notes if "the environment of goal-v0" in note]
    assert "'test_minari:GoalEnv' is not an environment of aspc, gymnasium" in note
    env = envs.make_env("test_minari:AspcTestGoal-v0")
    observation, _ = env.reset(seed=0)
    np.testing.assert_allclose(observation, dataset.observations[0], rtol=1e-6)


@pytest.mark.parametrize("with_next", [False, True])
def test_converted_datasets_load_in_minari_and_here(log: dict[str, np.ndarray], with_next: bool) -> None:
    following = np.roll(log["observations"], -1, axis=0)
    following[9::10] += 100.0  # after the end of an episode comes something else
    more = {"next_observations": following} if with_next else {}
    dataset = Dataset.from_arrays(**log, **more, action_low=-1, action_high=1, name="mine", ref_min=0.0, ref_max=5.0)
    ours.write(dataset, "mine/converted-v0")
    theirs = minari.load_dataset("mine/converted-v0")
    assert theirs.total_episodes == 6
    assert theirs.total_steps == (60 if with_next else 57)
    back = data.load("mine/converted-v0")
    assert (back.ref_min, back.ref_max, back.env) == (0.0, 5.0, None)
    np.testing.assert_array_equal(back.action_low, dataset.action_low)
    before, after = dataset.transitions(), back.transitions()
    for key in ("observations", "actions", "rewards", "terminals"):
        np.testing.assert_array_equal(getattr(before, key), getattr(after, key))
    alive = before.terminals == 0
    np.testing.assert_array_equal(before.next_observations[alive], after.next_observations[alive])
    with pytest.raises(AspcError, match="dataset mine/converted-v0 already exists"):
        ours.write(dataset, "mine/converted-v0")


def test_discontinuous_rows_are_rejected(log: dict[str, np.ndarray]) -> None:
    shuffled = Dataset.from_arrays(**log, next_observations=log["observations"] + 1, name="mine")
    with pytest.raises(AspcError, match="the next observation of row 1 is not"):
        ours.write(shuffled, "mine/shuffled-v0")
    assert "mine/shuffled-v0" not in minari.list_local_datasets()


def test_environments_are_stored_or_a_note_is_returned(log: dict[str, np.ndarray]) -> None:
    values = {**log, "observations": log["observations"], "actions": log["actions"][:, :1]}
    dataset = Dataset.from_arrays(**values, env="Pendulum-v1", name="p", action_names=["torque"])
    assert ours.write(dataset, "p-v0") == [
        "Minari cannot store column names.",
        "3 of 60 rows are not written: if an episode ends by timeout, Minari keeps only the observation of its last "
        "row.",
    ]
    following = replace(dataset, next_observations=np.roll(dataset.observations, -1, axis=0))
    assert ours.write(following, "all-v0") == ["Minari cannot store column names."]
    note, lost = ours.write(data.load("maze2d-umaze?steps=100"), "maze-v0")  # Gymnasium has no id for it
    assert "of 100 rows are not written" in lost
    assert note.startswith("Minari cannot store the environment maze2d-umaze; pass it with --env")
    assert envs.make_env("minari:p-v0").spec.id == "Pendulum-v1"


def test_discrete_actions_are_choices_that_can_be_learned(tmp_path) -> None:
    import aspc

    collect("CartPole-v1", "cart-v0", episodes=20)
    dataset = data.load("minari:cart-v0")
    assert dataset.action_space == ActionSpace((Factor("action", ("0", "1")),))
    stored = np.concatenate([episode.actions for episode in minari.load_dataset("cart-v0")])
    assert dataset.action_space.name_choices(dataset.actions) == [str(action) for action in stored]
    assert (dataset.env, dataset.observation_size) == ("minari:cart-v0", 4)
    settings = {"batch_size": 16, "hidden_dim": 16, "quiet": True, "tensorboard": False}
    run = aspc.train("minari:cart-v0", "discrete_cql", steps=40, eval_episodes=2, out=tmp_path / "run", **settings)
    assert run.policy.choose(np.zeros(4, np.float32)) in ("0", "1")
    assert run.result["last_return"] >= 2  # episodes in the dataset's own environment


class ManyActions(gym.Env):
    """Actions of every kind, which decide nothing."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Dict({
        "both": gym.spaces.Tuple((gym.spaces.Discrete(3, start=5), gym.spaces.Box(-2, 3, (2,), np.float32))),
        "flags": gym.spaces.MultiBinary(2),
        "multi": gym.spaces.MultiDiscrete([2, 3]),
    })  # fmt: skip

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, False, False, {}


gym.register("AspcTestManyActions-v0", entry_point="test_minari:ManyActions", max_episode_steps=10)


def test_every_action_space_is_read_as_the_environment_shows_it() -> None:
    collect("AspcTestManyActions-v0", "many-v0", episodes=3)
    dataset = data.load("minari:many-v0")
    env = with_choice_columns(gym.make("AspcTestManyActions-v0"), "many")
    assert dataset.action_space == choices_of(env)
    np.testing.assert_array_equal(dataset.action_low, env.action_space.low)
    np.testing.assert_array_equal(dataset.action_high, env.action_space.high)
    taken: list[dict] = []
    inner = env.unwrapped
    inner.step = lambda action: taken.append(action) or ManyActions.step(inner, action)
    env.reset(seed=0)
    for row in dataset.actions[:10]:  # the wrapper turns the columns into the actions that were collected
        env.step(row)
    stored = minari.load_dataset("many-v0")[0].actions
    for i, action in enumerate(taken):
        assert action["both"][0] == stored["both"][0][i]
        np.testing.assert_allclose(action["both"][1], stored["both"][1][i], rtol=1e-6)
        np.testing.assert_array_equal(action["flags"], stored["flags"][i])
        np.testing.assert_array_equal(action["multi"], stored["multi"][i])


@pytest.mark.parametrize("is_mixed", [False, True])
def test_choices_keep_their_names_and_masks_in_minari(log: dict[str, np.ndarray], is_mixed: bool) -> None:
    valve = np.array(["shut", "open", "half"])[np.arange(60) % 3]
    mixed = np.stack([valve, log["actions"][:, 0]], axis=1).astype(object)
    mixed[:, 1] = log["actions"][:, 0]
    table = {**log, "actions": mixed if is_mixed else valve}
    if is_mixed:
        import pandas as pd

        table["actions"] = pd.DataFrame({"valve": valve, "dose": log["actions"][:, 0]})
    masks = np.maximum(np.arange(60)[:, None] % 2, valve[:, None] == "open")
    dataset = Dataset.from_arrays(**table, masks=masks, mask_names=["mask_open"], name="mine")
    assert ours.write(dataset, "choices-v0")[-1].startswith("3 of 60 rows are not written")
    stored = minari.load_dataset("choices-v0").action_space
    assert isinstance(stored, gym.spaces.Tuple if is_mixed else gym.spaces.Discrete)
    back = data.load("minari:choices-v0")
    assert back.action_space == dataset.action_space
    assert back.action_space.masked == (1,)
    before, after = dataset.transitions(), back.transitions()
    np.testing.assert_array_equal(before.actions, after.actions)
    np.testing.assert_array_equal(before.observations, after.observations)


def test_damaged_names_of_choices_are_an_error(tmp_path) -> None:
    collect("CartPole-v1", "cart-v0", episodes=1)
    path = tmp_path / "minari" / "cart-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    for text in ("junk", ActionSpace((Factor("a", ("x", "y", "z")),)).to_text()):
        path.write_text(json.dumps({**metadata, "aspc_action_space": text}))
        with pytest.raises(AspcError, match="cart-v0 cannot be read"):
            data.load("minari:cart-v0")


def test_a_damaged_dataset_is_an_error(tmp_path) -> None:
    collect("Pendulum-v1", "broken-v0", episodes=1)
    (file,) = (tmp_path / "minari" / "broken-v0").rglob("main_data.hdf5")
    file.write_bytes(b"junk")
    with pytest.raises(AspcError, match="cannot be read"):
        data.load("minari:broken-v0")


def test_metadata_without_spaces_does_not_make_an_environment(tmp_path) -> None:
    """Minari would make the one that the metadata names, whatever code that is."""
    collect("Pendulum-v1", "evil-v0", episodes=1)
    path = tmp_path / "minari" / "evil-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    mark = tmp_path / "mark"
    spec = {**json.loads(metadata["env_spec"]), "entry_point": "os:system", "kwargs": {"command": f"touch {mark}"}}
    del metadata["observation_space"]
    path.write_text(json.dumps({**metadata, "env_spec": json.dumps(spec)}))
    with pytest.raises(AspcError, match="cannot be read: its metadata has no observation_space"):
        data.load("minari:evil-v0")
    assert not mark.exists()


@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
def test_damaged_minari_files_are_read_or_rejected(tmp_path, monkeypatch, name: str) -> None:
    collect("Pendulum-v1", "broken-v0", episodes=1)
    monkeypatch.setenv("ASPC_READ_MEMORY", "500MB")
    folder = tmp_path / "minari" / "broken-v0" / "data"
    whole = (folder / name).read_bytes()
    refused = list[str]()
    with LimitedReader() as reader:
        for case in range(100):
            (folder / name).unlink()
            (folder / name).write_bytes(damage(whole, case))
            try:
                reader.call("read_minari", folder, name="broken-v0")
            except AspcError as error:
                refused.append(str(error))
    assert len(refused) > 10
    assert not any("\n" in sentence for sentence in refused)


def test_collected_and_converted_datasets_both_train(tmp_path) -> None:
    """Minari's own dataset, and what `convert` makes of ours, go straight into training."""
    import aspc

    collect("Pendulum-v1", "mine/pendulum-v0", episodes=2)
    ours.write(data.load("mine/pendulum-v0"), "mine/again-v0")
    for i, name in enumerate(("mine/pendulum-v0", "mine/again-v0")):
        run = aspc.train(name, algo="bc", steps=40, out=tmp_path / f"run{i}", env=None, quiet=True)
        action = run.policy.act(np.zeros(3, np.float32))
        assert action.shape == (1,)
        assert abs(action[0]) <= 2.0
    rolled = roll("Pendulum-v1", str(tmp_path / "run0"), 250)  # and a trained policy makes the next dataset
    np.testing.assert_allclose(
        rolled.actions, aspc.load_policy(tmp_path / "run0").act(rolled.observations), rtol=1e-4, atol=1e-5
    )
