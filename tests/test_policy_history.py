"""Policies with a history act alike in every format, over sequences of steps, and as on logged rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aspc.assessment.device_policy import act_after_rows, act_on_rows, logged_memory, longest_history
from aspc.data import Dataset
from aspc.data.history import FrameStacker, push_frame, stack_dataset
from aspc.errors import AspcError
from aspc.export import metadata, render_files
from aspc.history import NEWEST_ONLY, History
from aspc.policy import HEADER, WEIGHTS, Policy, load_policy
from aspc.policy_guards import Guards, OODScore
from aspc.policy_kinds import compute_actions, sample_noise
from aspc.policy_memory import memory_parts, split_memory, stack_observations, update_memory
from policies import policy_named
from test_policy_memory import actors, observations
from tiny import make_dataset

KINDS = ("td3_bc", "fql", "diffusion_ql")
HISTORIES = (History(2), History(2, actions=True), History(4, actions=True))


def with_history(name: str, history: History, obs: int = 5, act: int = 3) -> Policy:
    """Return a policy whose network takes stacked observations."""
    policy = policy_named(name, obs=history.size(obs, act), act=act)
    mean, std = policy.observation_mean[:obs], policy.observation_std[:obs]
    return replace(policy, observation_mean=mean, observation_std=std, history=history)


def network_input(policy: Policy, seen: list[np.ndarray], executed: list[np.ndarray]) -> np.ndarray:
    """Return the network's normalized input for the last of some observations, built step by step."""
    low, high = policy.action_low, policy.action_high
    frames, actions = [], []
    for k in range(policy.history.observations):
        row = seen[-1 - k] if k < len(seen) else seen[0]
        frames.append((row - policy.observation_mean) / policy.observation_std)
    for k in range(1, policy.history.observations):
        is_known = k <= len(executed)
        actions.append(2 * (executed[-k] - low) / (high - low) - 1 if is_known else np.zeros_like(low))
    return np.concatenate([*frames, *(actions if policy.history.actions else [])])


def as_stateless(policy: Policy) -> Policy:
    """Return the policy's network as a policy that takes normalized stacks."""
    size = policy.input_size
    return replace(
        policy,
        observation_mean=np.zeros(size, np.float32),
        observation_std=np.ones(size, np.float32),
        history=NEWEST_ONLY,
        guards=None,
    )


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("history", HISTORIES, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_every_format_keeps_the_history(
    name: str, history: History, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = with_history(name, history)
    steps, network, rng, expected = observations(rows), as_stateless(policy), np.random.default_rng(7), []
    seen: list[list[np.ndarray]] = []
    executed: list[list[np.ndarray]] = []
    for t, batch in enumerate(steps):
        if t in (0, 7):  # a new episode
            seen, executed = [[] for _ in range(rows)], [[] for _ in range(rows)]
        for i in range(rows):
            seen[i].append(batch[i])
        inputs = np.stack([network_input(policy, *pair) for pair in zip(seen, executed, strict=True)])
        noise = sample_noise(policy.noise(), rows, rng)
        actions = np.asarray(compute_actions(network, inputs.astype(np.float32), noise))
        for i in range(rows):
            executed[i].append(actions[i])
        expected.append(actions)
    for act, reset, _ in actors(policy, tmp_path / "policy", monkeypatch):
        rng = np.random.default_rng(7)
        for t, batch in enumerate(steps):
            if t == 7:
                reset()
            np.testing.assert_allclose(act(batch, rng), expected[t], atol=1e-5, rtol=0)


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_guards_and_history_share_the_memory(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = with_history("td3_bc", history)
    limit = (policy.action_high - policy.action_low) / 20
    policy = policy.with_guards(Guards(max_change=limit))
    steps, memory, expected = observations(2), policy.initial_memory(2), []
    for batch in steps:
        parts = split_memory(memory_parts(policy), memory)
        actions, memory = policy.step(batch, memory)
        expected.append(actions)
        free = compute_actions(policy, stack_observations(policy, batch, parts), [])
        previous = parts["previous_action"]
        if len(expected) > 1:
            np.testing.assert_allclose(actions, np.clip(free, previous - limit, previous + limit), atol=1e-6)
        if history.actions:  # the guarded action is remembered
            np.testing.assert_array_equal(split_memory(memory_parts(policy), memory)["earlier_actions"][:, :3], actions)
    for act, reset, _ in actors(policy, tmp_path / "policy", monkeypatch):
        reset()
        for batch, wanted in zip(steps, expected, strict=True):
            np.testing.assert_allclose(act(batch, np.random.default_rng(0)), wanted, atol=1e-5, rtol=0)


def test_metadata_and_header_record_the_history(tmp_path: Path) -> None:
    policy = with_history("td3_bc", History(3, actions=True))
    found = metadata(policy)
    assert found["history"] == {"observations": 3, "actions": True}
    assert found["observation_size"] == 5
    sizes = {part["name"]: part["size"] for part in found["memory"]}
    assert sizes == {"has_observation": 1, "earlier_observations": 10, "earlier_actions": 6}
    center = (policy.action_low + policy.action_high) / 2
    np.testing.assert_allclose(found["initial_memory"], [0] * 11 + [*center, *center], rtol=1e-6)
    folder = policy.save(tmp_path / "p")
    header = json.loads((folder / HEADER).read_text())
    assert (header["format"], header["history"]) == (2, {"observations": 3, "actions": True})
    assert load_policy(folder).history == policy.history
    assert "a history of 3 observations and the actions between them" in repr(policy)
    plain = json.loads((policy_named("td3_bc").save(tmp_path / "q") / HEADER).read_text())
    assert plain["format"] == 1  # as before
    assert "history" not in plain
    assert "history" not in metadata(policy_named("td3_bc"))


@pytest.mark.parametrize(
    "history",
    [
        {"observations": 0},
        {"observations": 4, "actions": False},  # another input size
        {"observations": 10**15},
        {"observations": True},
        {"observations": 3.0},
        {"observations": 3, "actions": 1},
        {"observations": 1, "actions": True},
        {"frames": 3},
        [3, False],
        "3",
        None,
    ],
    ids=str,
)
@pytest.mark.parametrize("name", KINDS)
def test_invalid_histories_in_files_are_refused(name: str, history: Any, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save

    policy = with_history(name, History(3))
    folder = policy.save(tmp_path / "p")
    header = {**policy.header(), "history": history}
    (folder / WEIGHTS).write_bytes(save(load_file(folder / WEIGHTS), metadata={"aspc": json.dumps(header)}))
    with pytest.raises(AspcError, match="is damaged"):
        load_policy(folder)


@pytest.mark.parametrize("mode", ["nan", "hold"])
def test_invalid_observations_leave_the_history_unchanged(mode: str) -> None:
    steps = observations(2)
    policy, clean = (with_history("td3_bc", History(3, actions=True)).with_on_invalid(mode) for _ in range(2))
    broken = steps[2].copy()
    broken[0] = np.nan
    for batch in (steps[0], steps[1], broken):
        policy.act(batch)
    for batch in (steps[0], steps[1]):
        clean.act(batch)
    np.testing.assert_allclose(policy.act(steps[3])[0], clean.act(steps[3])[0], atol=1e-6)


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_observations_out_of_distribution_leave_the_history_unchanged(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = with_history("td3_bc", history)
    ood = OODScore(np.zeros(5, np.float32), np.full(5, 2, np.float32), np.eye(5, dtype=np.float32), np.float32(5))
    policy = free.with_guards(Guards(ood=ood, on_ood="hold"))
    steps = observations(2)
    for act, reset, tolerance in actors(policy, tmp_path / "policy", monkeypatch):
        found = {}
        for spike in (False, True):
            reset()
            last = None
            for batch in (*steps[:3], *([steps[3] + np.float32([[1e4], [0]])] if spike else []), steps[4]):
                previous, last = last, act(batch, np.random.default_rng(0))
                if batch.max() > 1e3:
                    np.testing.assert_allclose(last[0], previous[0], atol=tolerance, rtol=0)  # held
            found[spike] = last
        np.testing.assert_allclose(found[True][0], found[False][0], atol=1e-5, rtol=0)
        assert np.abs(found[True][1] - found[False][1]).max() > 1e-3  # the other row has one more step
    memory = split_memory(memory_parts(policy), logged_memory(policy, log(5, 3), np.arange(120)))
    plain = split_memory(memory_parts(free), logged_memory(free, log(5, 3), np.arange(120)))
    np.testing.assert_array_equal(memory["earlier_observations"], plain["earlier_observations"])


def test_onnx_with_one_lag_has_no_empty_slices() -> None:
    onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    model = onnx.load_from_string(render_files(with_history("td3_bc", History(2)), "onnx")[""])
    assert [i.name for i in model.graph.input] == ["observations", "memory"]


# -- logged rows -----------------------------------------------------------------------------------------------


def log(obs: int = 4, act: int = 2) -> Dataset:
    data = make_dataset(rows=120, obs=obs, act=act)
    return replace(data, next_observations=data.observations[::-1].copy())


@pytest.mark.parametrize("history", [History(3), History(4, actions=True)], ids=str)
def test_actions_on_logged_rows_are_those_of_acting_row_by_row(history: History) -> None:
    data, policy = log(), with_history("td3_bc", history, obs=4, act=2)
    rows, rng, parts = np.arange(len(data)), np.random.default_rng(0), memory_parts(policy)
    found = act_on_rows(policy, data, rows, rng)
    after = act_after_rows(policy, data, rows, data.next_observations, rng)
    starts = set(data.episode_bounds[0].tolist())
    memory = policy.initial_memory(1)
    for row in rows:
        if row in starts:
            policy.reset()
            memory = policy.initial_memory(1)
        observation = data.observations[row : row + 1]
        np.testing.assert_allclose(found[row], policy.step(observation, memory)[0][0], atol=2e-5)
        if not history.actions:  # the policy's own actions do not matter
            np.testing.assert_allclose(found[row], policy.act(observation[0]), atol=2e-5)
        memory = update_memory(parts, memory, observation, data.actions[row : row + 1])
        following = data.next_observations[row : row + 1]
        np.testing.assert_allclose(after[row], policy.step(following, memory)[0][0], atol=2e-5)


@pytest.mark.parametrize("history", [History(3), History(4, actions=True)], ids=str)
def test_memory_of_logged_rows_holds_the_stacked_rows(history: History) -> None:
    """What a policy sees on logged rows equals what it was trained on, also with other bounds than the dataset's."""
    data, policy = log(), with_history("td3_bc", history, obs=4, act=2)
    rows = np.arange(len(data))
    memory = split_memory(memory_parts(policy), logged_memory(policy, data, rows))
    own_bounds = replace(data, action_low=policy.action_low, action_high=policy.action_high)
    expected = FrameStacker.of(own_bounds, history).at(rows)
    np.testing.assert_allclose(stack_observations(policy, data.observations, memory), expected, atol=1e-5)


def test_pushing_a_frame_continues_a_stack() -> None:
    data, history = make_dataset(rows=120, terminals=np.zeros(120)), History(3, actions=True)
    stacked, actions = stack_dataset(data, history).observations, data.scale_actions(data.actions)
    inside = np.flatnonzero(~data.timeouts[:-1])
    pushed = push_frame(stacked[inside], history, data.observations[inside + 1], actions[inside])
    np.testing.assert_array_equal(pushed, stacked[inside + 1])
    single = push_frame(data.observations, NEWEST_ONLY, data.observations + 1, actions)
    np.testing.assert_array_equal(single, data.observations + 1)


def test_longest_history_contains_all() -> None:
    policies = [with_history("td3_bc", history) for history in (History(2, actions=True), History(4))]
    assert longest_history(policies) == History(4, actions=True)
    assert longest_history([]) == longest_history([policy_named("td3_bc")]) == NEWEST_ONLY
