"""Policies with memory act alike in every format, over sequences of steps, and start every episode anew."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from aspc.assessment.assess import assess
from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.device_policy import act_after_rows, act_on_rows, logged_memory, step_on_device
from aspc.assessment.evidence import Evidence
from aspc.assessment.importance import BehaviorDensity
from aspc.assessment.model_estimator import ModelEstimator
from aspc.data import collect
from aspc.errors import AspcError
from aspc.export import export, load_stablehlo, metadata, render_files
from aspc.policy import Policy, load_policy
from aspc.policy_guards import Guards
from aspc.policy_kinds import sample_noise
from aspc.training.online import Collector
from aspc.training.rollout_worker import rollouts
from policies import policy_named
from tiny import Counting, make_dataset

KINDS = ("td3_bc", "fql", "diffusion_ql")
STEPS = 12


def with_memory(name: str, **sizes: Any) -> Policy:
    """Return a policy whose actions can change by a twentieth of their range per step."""
    policy = policy_named(name, **sizes)
    return policy.with_guards(Guards(max_change=(policy.action_high - policy.action_low) / 20))


def observations(rows: int, size: int = 5) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 2, (STEPS, rows, size)).astype(np.float32)


def onnx_actor(policy: Policy) -> tuple[Callable[..., np.ndarray], Callable[[], None]]:
    """Return an actor and its reset, written as the documentation tells users of ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    session = runtime.InferenceSession(render_files(policy, "onnx")[""])
    start = np.array(json.loads(session.get_modelmeta().custom_metadata_map["initial_memory"]), np.float32)
    memory: list[np.ndarray] = []

    def act(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        before = memory.pop() if memory else np.tile(start, (len(rows), 1))
        noise = dict(zip(policy.noise(), sample_noise(policy.noise(), len(rows), rng), strict=True))
        actions, following = session.run(None, {"observations": rows, "memory": before, **noise})
        memory.append(following)
        return actions

    return act, memory.clear


def exported_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "policy", raising=False)
    module = importlib.import_module("policy")
    monkeypatch.delitem(sys.modules, "policy")
    return module


def actors(policy: Policy, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any, float]]:
    """Yield an actor, its reset and the tolerance for every format."""
    saved = policy.save(folder)
    loaded = load_policy(saved)
    yield loaded.act, loaded.reset, 0.0
    module = exported_module(export(saved, "numpy"), monkeypatch)
    yield module.act, module.reset, 0.0
    program = load_stablehlo(export(saved, "stablehlo"))
    yield program, program.reset, 1e-5
    yield *onnx_actor(policy), 1e-5


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_every_format_has_the_same_memory(
    name: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = with_memory(name)
    seen, rng, memory, expected = observations(rows), np.random.default_rng(7), policy.initial_memory(rows), []
    for t, row in enumerate(seen):
        memory = policy.initial_memory(rows) if t == 8 else memory  # a new episode
        actions, memory = policy.step(row, memory, rng)
        expected.append(actions)
    stateless = policy.with_guards(None).act(seen[3], np.random.default_rng(0))
    assert np.abs(expected[3] - stateless).max() > 0.05  # the memory matters
    for act, reset, tolerance in actors(policy, tmp_path / "policy", monkeypatch):
        rng = np.random.default_rng(7)
        for t, row in enumerate(seen):
            if t == 8:
                reset()
            np.testing.assert_allclose(act(row, rng), expected[t], atol=tolerance, rtol=0)


def test_single_observations_have_a_memory_too() -> None:
    policy, batched = with_memory("td3_bc"), with_memory("td3_bc")
    for row in observations(1):
        np.testing.assert_array_equal(policy.act(row[0]), batched.act(row)[0])


def test_metadata_says_how_to_start() -> None:
    policy = with_memory("td3_bc")
    found = metadata(policy)
    assert found["initial_memory"] == [0.0] * policy.memory_size == [0.0] * 4
    assert found["memory"] == [{"name": "has_previous_action", "size": 1}, {"name": "previous_action", "size": 3}]
    plain = metadata(policy.with_guards(None))
    assert not {"initial_memory", "memory", "guards"} & set(plain)


def test_programs_without_memory_have_no_memory_input(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    policy = with_memory("fql")
    for changed, inputs, outputs in (
        (policy, ["observations", "memory", "z"], ["actions", "next_memory"]),
        (policy.with_guards(None), ["observations", "z"], ["actions"]),
    ):
        graph = onnx.load_from_string(render_files(changed, "onnx")[""]).graph
        assert [i.name for i in graph.input] == inputs
        assert [o.name for o in graph.output] == outputs
    assert policy.with_guards(None).initial_memory(3).shape == (3, 0)


def test_size_of_a_batch_cannot_change_within_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = with_memory("td3_bc")
    saved = policy.save(tmp_path / "policy")
    module = exported_module(export(saved, "numpy"), monkeypatch)
    rows = observations(4)[0]
    for act, reset, error in ((policy.act, policy.reset, AspcError), (module.act, module.reset, ValueError)):
        act(rows)
        with pytest.raises(error, match=r"the batch had 4 rows before, now 2\. Call reset\(\) when new episodes start"):
            act(rows[:2])
        reset()
        assert act(rows[:2]).shape == (2, 3)
    free = policy.with_guards(None)
    assert len(free.act(rows)) == 2 * len(free.act(rows[:2]))  # a stateless policy takes any batch


@pytest.mark.parametrize("mode", ["nan", "hold"])
def test_invalid_observations_leave_the_memory_unchanged(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = observations(2)
    broken = seen[1].copy()
    broken[0, 2] = np.inf
    policy = with_memory("td3_bc").with_on_invalid(mode)
    expected = [
        policy.act(seen[0]),
        *(policy.act(row) for row in (np.stack([seen[0][0], broken[1]]), seen[2])),
    ]
    for act, reset, tolerance in actors(policy, tmp_path / "policy", monkeypatch):
        reset()
        first = act(seen[0], np.random.default_rng(0))
        found = act(broken, np.random.default_rng(0))
        if mode == "nan" or (tolerance and act.__qualname__.startswith("onnx")):
            assert np.isnan(found[0]).all()
        else:
            np.testing.assert_array_equal(found[0], first[0])
        np.testing.assert_allclose(found[1], expected[1][1], atol=tolerance, rtol=0)
        following = act(seen[2], np.random.default_rng(0))
        assert np.isfinite(following).all()
        np.testing.assert_allclose(following[1], expected[2][1], atol=tolerance, rtol=0)
        change = np.abs(following[0] - first[0])  # relative to the last valid action
        assert (change <= policy.guards.max_change + 1e-5).all()


def test_copies_have_their_own_memory() -> None:
    policy = with_memory("td3_bc")
    rows = observations(1)
    first = policy.act(rows[0])
    np.testing.assert_array_equal(policy.with_on_invalid("nan").act(rows[0]), first)
    assert not np.array_equal(policy.act(rows[1]), policy.with_on_invalid("nan").act(rows[1]))


# -- episodes --------------------------------------------------------------------------------------------------


class Ragged(Counting):
    """Episodes of different lengths."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action.sum()), terminated, truncated or self.t == 2 + self.length, info

    def reset(self, **options: Any) -> Any:
        result = super().reset(**options)
        self.length = int(self.np_random.integers(8))
        return result


@pytest.mark.parametrize("name", ["td3_bc", "fql"])
def test_rollouts_have_one_memory_per_episode(name: str) -> None:
    policy = with_memory(name, obs=4, act=2)
    together = rollouts("Ragged", policy, [1, 2, 3, 4], {"Ragged": [Ragged() for _ in range(4)]})
    assert len({episode["length"] for episode in together}) > 1
    envs = {"Ragged": [Ragged()]}
    for seed, episode in zip([1, 2, 3, 4], together, strict=True):
        (alone,) = rollouts("Ragged", policy, [seed], envs)
        assert alone["length"] == episode["length"]
        np.testing.assert_allclose(alone["return"], episode["return"], rtol=1e-5)
    free = rollouts("Ragged", policy.with_guards(None), [1], envs)
    assert free[0]["return"] != together[0]["return"]


gym.register("AspcTestRagged-v0", entry_point="test_policy_memory:Ragged")


def largest_changes(actions: np.ndarray, ends: np.ndarray) -> tuple[float, float]:
    """Return the largest change of an action within episodes, and between episodes."""
    changes, between = np.abs(np.diff(actions, axis=0)).max(1), ends[:-1]
    return float(changes[~between].max()), float(changes[between].max())


def test_collected_episodes_start_anew(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    policy = with_memory("td3_bc", obs=4, act=2)
    limit = float(policy.guards.max_change.max()) + 1e-5
    saved = policy.save(tmp_path / "policy")
    collected = collect.collect("test_policy_memory:AspcTestRagged-v0", str(saved), 60)
    exported = export(saved, "onnx")
    in_graph = collect.collect("test_policy_memory:AspcTestRagged-v0", str(exported), 60)
    np.testing.assert_allclose(in_graph.actions, collected.actions, atol=1e-5)
    online = Collector(Ragged, make_dataset(action_low=policy.action_low, action_high=policy.action_high), 0, 0.0)
    parts = []
    for step in range(0, 60, 4):  # an episode continues in the next collection
        part, _ = online.collect(policy, step, 4)
        parts.append((part.actions, np.append(part.timeouts[:-1], online.memory is None)))
    continued = tuple(map(np.concatenate, zip(*parts, strict=True)))
    for actions, ends in ((collected.actions, collected.timeouts), continued):
        within, between = largest_changes(actions, ends)
        assert within <= limit < between


# -- logged rows -----------------------------------------------------------------------------------------------


def test_memory_of_logged_rows_is_that_of_the_logged_steps() -> None:
    dataset = make_dataset(rows=200)
    policy = with_memory("td3_bc", obs=4, act=2)
    rng, found = np.random.default_rng(0), np.arange(len(dataset))
    starts = set(dataset.episode_bounds[0].tolist())
    assert len(starts) > 4
    actions = act_on_rows(policy, dataset, found, rng)
    following = act_after_rows(policy, dataset, found, dataset.observations[::-1], rng)
    for row in found:
        memory = policy.initial_memory(1)
        if row not in starts:
            memory = np.concatenate([np.ones((1, 1), np.float32), dataset.actions[row - 1 : row]], 1)
        np.testing.assert_array_equal(logged_memory(policy, dataset, np.array([row])), memory)
        expected = policy.step(dataset.observations[row : row + 1], memory)[0]
        np.testing.assert_allclose(actions[row], expected[0], atol=2e-5)
        after = np.concatenate([np.ones((1, 1), np.float32), dataset.actions[row : row + 1]], 1)
        expected = policy.step(dataset.observations[::-1][row : row + 1], after)[0]
        np.testing.assert_allclose(following[row], expected[0], atol=2e-5)


def test_steps_on_the_device_match_numpy() -> None:
    policy = with_memory("fql")
    memory, theirs = policy.initial_memory(3), policy.initial_memory(3)
    for t, row in enumerate(observations(3)):
        expected, memory = policy.step(row, memory, t)
        actions, theirs = step_on_device(policy, row, theirs, np.random.default_rng(t))
        np.testing.assert_allclose(actions, expected, atol=2e-5)
        np.testing.assert_allclose(theirs, memory, atol=2e-5)


def test_every_estimator_judges_the_policy_with_its_memory() -> None:
    """A rate limit that never binds changes no estimate, and one that binds changes all of them."""
    policy = with_memory("td3_bc", obs=4, act=2).with_guards(None)
    policy = replace(policy, action_low=-np.ones(2, np.float32), action_high=np.ones(2, np.float32))
    dataset = make_dataset(rows=1000, terminals=np.zeros(1000, bool))
    never, tight = (policy.with_guards(Guards(max_change=[change] * 2)) for change in (2.0, 0.3))
    options = AssessOptions(steps=20, model_steps=20, hidden_dim=8, batch_size=16, rollouts=4, discount=0.3)
    found = assess({"free": policy, "never": never, "tight": tight}, dataset, options=options)
    by_name = {p.name: p for p in found.policies}
    estimates = {name: {e.estimator: e.difference for e in by_name[name].estimates} for name in by_name}
    supports = {name: by_name[name].support.policy.total for name in by_name}
    estimates = {name: {e: d for e, d in found.items() if np.isfinite(d)} for name, found in estimates.items()}
    assert set(estimates["free"]) == {"FQE", "pessimistic FQE", "dynamics models"}  # too few episodes for the others
    for estimator, expected in estimates["free"].items():
        np.testing.assert_allclose(estimates["never"][estimator], expected, rtol=1e-4, err_msg=estimator)
        assert abs(estimates["tight"][estimator] - expected) > 1e-3 * abs(expected), estimator
    np.testing.assert_allclose(supports["never"], supports["free"], rtol=1e-4)
    assert np.abs(supports["tight"] - supports["free"]).max() > 0.1


def test_simulated_rollouts_have_one_memory_per_row() -> None:
    """The memory of a simulated step is that of the simulated step before it."""
    dataset = make_dataset(rows=400)
    policy = with_memory("td3_bc", obs=4, act=2)
    options = AssessOptions(steps=20, model_steps=20, hidden_dim=8, batch_size=16, rollouts=4, discount=0.5)
    evidence = Evidence.of(dataset, {}, options)
    density = BehaviorDensity.fit(evidence, lambda *progress: None)
    seen, memories = observations(3, 4), [policy.initial_memory(3)]
    memory, rng = policy.initial_memory(3), np.random.default_rng(0)
    for rows in seen:
        _, actions = ModelEstimator(density)._act(evidence, {"a": policy}, np.stack([rows, rows]), memories, rng)
        expected, memory = policy.step(rows, memory)
        np.testing.assert_allclose(actions, dataset.scale_actions(expected), atol=2e-5)
