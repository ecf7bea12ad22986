"""Guarded policies obey their limits in every format, whatever they observe."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aspc.__main__ import main
from aspc.assessment.device_policy import act_on_rows, step_on_device
from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.export import export, load_stablehlo, metadata
from aspc.guards import fit_ood_score
from aspc.policy import Policy, load_policy
from aspc.policy_guards import Guards, describe_guards, ood_scores
from aspc.training.rollout_worker import rollouts
from policies import policy_named
from test_policy_format import change_header
from test_policy_memory import actors, exported_module
from tiny import Counting, make_dataset

KINDS = ("td3_bc", "fql", "diffusion_ql")
LOG = make_dataset(rows=2000, obs=5, act=3)


def guards_of(policy: Policy, on_ood: str | None, rate: float | None = 20, **others: Any) -> Guards:
    """Return tighter bounds, a rate limit and a reaction to observations out of distribution."""
    size = policy.action_high - policy.action_low
    low, high = policy.action_low + 0.1 * size, policy.action_high - 0.2 * size
    return Guards(
        action_low=low,
        action_high=high,
        max_change=None if rate is None else size / rate,
        ood=None if on_ood is None else fit_ood_score(LOG),
        on_ood=on_ood,
        fallback=low + 0.05 * size if on_ood == "fallback" else None,
        **others,
    )


def observations(rows: int, steps: int = 15, seed: int = 0) -> np.ndarray:
    """Return observations, a third of them out of distribution, some absurdly; none is near the threshold."""
    rng = np.random.default_rng(seed)
    found = 0.5 * rng.normal(size=(steps, rows, 5))
    found[rng.random((steps, rows)) < 0.2] *= 100
    found[rng.random((steps, rows)) < 0.1, 2] = 1e6
    found[rng.random((steps, rows)) < 0.1, 0] = -3e38
    found = found.astype(np.float32)
    scores, limit = ood_scores(fit_ood_score(LOG), found.reshape(-1, 5)), fit_ood_score(LOG).threshold
    assert not (np.abs(scores - limit) < 1e-3 * limit).any()
    return found


def is_ood(policy: Policy, rows: np.ndarray) -> np.ndarray:
    return ood_scores(policy.guards.ood, rows)[:, 0] > policy.guards.ood.threshold


# -- properties ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("on_ood", ["hold", "fallback", "nan", None])
@pytest.mark.parametrize("rate", [20, None])
def test_actions_obey_the_guards(on_ood: str | None, rate: float | None, seed: int) -> None:
    policy = policy_named("td3_bc")
    guards = guards_of(policy, on_ood, rate)
    policy = policy.with_guards(guards)
    seen, free = observations(4, 40, seed), policy_named("td3_bc")
    if on_ood is None:
        seen = np.clip(seen, -50, 50)
    previous = np.full((4, 3), np.nan, np.float32)  # the last action of each row that was a number
    counts = {"ood": 0, "limited": 0}
    for rows in seen:
        actions = policy.act(rows)
        is_number = np.isfinite(actions).all(1)
        assert (actions[is_number] >= guards.action_low).all()
        assert (actions[is_number] <= guards.action_high).all()
        known = is_number & np.isfinite(previous).all(1)
        if rate is not None:
            change = np.abs(actions - previous)[known]
            assert (change <= guards.max_change + 1e-6).all()
            counts["limited"] += int((change > 0.999 * guards.max_change).sum())
        outside = is_ood(policy, rows) if on_ood is not None else np.zeros(4, bool)
        counts["ood"] += int(outside.sum())
        if on_ood == "nan":
            np.testing.assert_array_equal(is_number, ~outside)
        elif on_ood == "hold":
            has_previous = np.isfinite(previous).all(1)
            np.testing.assert_array_equal(actions[outside & has_previous], previous[outside & has_previous])
            np.testing.assert_array_equal(is_number, ~outside | has_previous)
        elif on_ood == "fallback" and rate is None:
            np.testing.assert_array_equal(actions[outside], np.tile(guards.fallback, (int(outside.sum()), 1)))
        if rate is None and not outside.all():
            expected = np.clip(free.act(rows[~outside]), guards.action_low, guards.action_high)
            np.testing.assert_allclose(actions[~outside], expected, atol=1e-6)
        previous = np.where(is_number[:, None], actions, previous)
    assert on_ood is None or counts["ood"] > 20
    assert rate is None or counts["limited"] > 20


def test_absurd_observations_never_reach_the_network() -> None:
    """The actions and the memory depend on nothing but the reaction, and NumPy warns of no overflow."""
    policy = policy_named("td3_bc").with_guards(guards_of(policy_named("td3_bc"), "fallback", None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (1e6, -1e20, 3.4e38):
            for row in np.eye(5):
                np.testing.assert_array_equal(policy.act(value * row), policy.guards.fallback)


def test_start_action_is_the_first_previous_action() -> None:
    policy = policy_named("td3_bc")
    start = guards_of(policy, None).action_low.tolist()
    for on_ood in (None, "hold"):
        guarded = policy.with_guards(guards_of(policy, on_ood, start_action=start))
        first = guarded.act(np.zeros(5))
        assert (np.abs(first - start) <= guarded.guards.max_change + 1e-6).all()
        assert metadata(guarded)["initial_memory"] == [1.0, *guarded.guards.start_action.tolist()]
    guarded.reset()
    np.testing.assert_array_equal(guarded.act(np.full(5, 1e6)), guarded.guards.start_action)
    without = policy.with_guards(guards_of(policy, "hold"))
    assert np.isnan(without.act(np.full(5, 1e6))).all()  # nothing to hold
    np.testing.assert_allclose(without.act(np.zeros(5)), np.clip(policy.act(np.zeros(5)), *bounds(without)), atol=1e-6)


def bounds(policy: Policy) -> tuple[Any, Any]:
    return policy.guards.action_low, policy.guards.action_high


# -- formats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_ood", ["hold", "fallback", "nan"])
@pytest.mark.parametrize("name", KINDS)
def test_every_format_has_the_same_guards(
    name: str, on_ood: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_named(name)
    policy = policy.with_guards(guards_of(policy, on_ood))
    seen, rng, memory, expected = observations(3), np.random.default_rng(7), policy.initial_memory(3), []
    for t, rows in enumerate(seen):
        memory = policy.initial_memory(3) if t == 9 else memory  # a new episode
        actions, memory = policy.step(rows, memory, rng)
        expected.append(actions)
    for act, reset, tolerance in actors(policy, tmp_path / "policy", monkeypatch):
        rng = np.random.default_rng(7)
        for t, rows in enumerate(seen):
            if t == 9:
                reset()
            np.testing.assert_allclose(act(rows, rng), expected[t], atol=tolerance, rtol=0)


@pytest.mark.parametrize("on_ood", ["fallback", "nan"])
def test_guards_without_memory_are_stateless_programs(
    on_ood: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    policy = policy_named("td3_bc")
    policy = policy.with_guards(guards_of(policy, on_ood, None))
    assert policy.memory_size == 0
    saved, rows = policy.save(tmp_path / "policy"), observations(200)[0]
    expected = policy.act(rows)
    session = runtime.InferenceSession(str(export(saved, "onnx")))
    (actions,) = session.run(None, {"observations": rows})
    module = exported_module(export(saved, "numpy"), monkeypatch)
    for found in (actions, module.act(rows), load_stablehlo(export(saved, "stablehlo"))(rows)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    is_number = np.isfinite(expected).all(1)
    on_device, _ = step_on_device(policy, rows[is_number], np.zeros((is_number.sum(), 0)), np.random.default_rng(0))
    np.testing.assert_allclose(on_device, expected[is_number], atol=2e-5)
    found = json.loads(session.get_modelmeta().custom_metadata_map["guards"])
    assert found["on_ood"] == on_ood
    assert found["ood"]["info"] == policy.guards.ood.info
    assert found["action_low"] == policy.guards.action_low.tolist()


# -- the score -------------------------------------------------------------------------------------------------


def correlated(rows: int, seed: int = 0) -> Dataset:
    """Return a log whose columns 0 and 1 are almost equal, 2 is constant, 3 repeats 0, and 4 is tiny."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)) * [1, 1, 0, 1, 1e-6] + [0, 0, 101_325, 0, 0]
    x[:, 1] = 100 * (x[:, 0] + 0.1 * rng.normal(size=rows))
    x[:, 3] = x[:, 0]
    return make_dataset(rows=rows, obs=5, observations=x)


def test_score_is_calibrated_and_finds_what_is_unusual() -> None:
    score = fit_ood_score(correlated(20_000), quantile=0.99, margin=1.0)
    fresh = correlated(20_000, seed=1).observations
    share = (ood_scores(score, fresh) > score.threshold).mean()
    assert 0.005 < share < 0.02
    assert (
        abs(np.sqrt(np.mean(ood_scores(score, fresh) ** 2)) - 1) < 0.5
    )  # typical observations score about 1, less with a constant
    normal = np.array([1, 100, 101_325, 1, 0], np.float32)
    assert ood_scores(score, normal[None]) < score.threshold
    for column, value in ((0, 1e6), (0, 3.0), (1, -100), (2, 0), (3, -1), (4, 1e-4)):
        changed = normal.copy()
        changed[column] = value
        assert ood_scores(score, changed[None]) > score.threshold, column
    normal[2] += 10  # a tenth of a per mille, in a column that never changed
    assert ood_scores(score, normal[None]) < score.threshold


def test_threshold_comes_from_held_out_rows_and_says_so() -> None:
    held_out = make_dataset(rows=300, obs=5, seed=3, name="held")
    score = fit_ood_score(LOG, held_out, quantile=0.9, margin=1.2)
    scores = np.sort(ood_scores(score, held_out.observations)[:, 0])
    np.testing.assert_allclose(score.threshold, 1.2 * scores[270], rtol=0.02)
    assert {key: score.info[key] for key in ("dataset", "rows", "quantile", "margin")} == {
        "dataset": "held",
        "rows": 300,
        "quantile": 0.9,
        "margin": 1.2,
    }
    assert fit_ood_score(LOG, held_out).info["fingerprint"] == score.info["fingerprint"]
    assert fit_ood_score(LOG).info["fingerprint"] != score.info["fingerprint"]
    for problem, call in {
        "above 0 and at most 1": lambda: fit_ood_score(LOG, quantile=1.5),
        "at least 1 and below": lambda: fit_ood_score(LOG, margin=0.5),
        "4 dimensions, but the others have 5": lambda: fit_ood_score(LOG, make_dataset()),
    }.items():
        with pytest.raises(AspcError, match=problem):
            call()


# -- checks and storage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"action_low": [-99.0, 0, 0]}, r"action_low\[0\] is -99, which is below the policy's bound"),
        ({"action_high": [99.0, 0, 0]}, r"action_high\[0\] is 99, which is above the policy's bound"),
        ({"action_low": "middle", "action_high": "middle"}, "which is not below action_high"),
        ({"action_low": [0.0]}, "action_low must be 3 finite numbers"),
        ({"max_change": [1.0, 0.0, 1.0]}, r"max_change\[1\] is 0, which is not above 0"),
        ({"max_change": [1.0, np.inf, 1.0]}, "max_change must be 3 finite numbers"),
        ({"start_action": [99.0, 0, 0]}, "start_action"),
        ({"on_ood": "hold"}, "need an out-of-distribution score"),
        ({"ood": "fitted", "on_ood": "stop"}, "on_ood must be 'hold', 'fallback' or 'nan', not 'stop'"),
        ({"ood": "fitted", "on_ood": "fallback"}, "requires a fallback action, and vice versa"),
        ({"ood": "fitted", "on_ood": "hold", "fallback": "middle"}, "requires a fallback action, and vice versa"),
        ({"ood": "fitted", "on_ood": "fallback", "fallback": [99.0, 0, 0]}, "fallback"),
        ({"ood": "other size"}, "mean must be 5 finite numbers"),
    ],
)
def test_invalid_guards_give_one_sentence(changes: dict[str, Any], problem: str) -> None:
    policy = policy_named("td3_bc")
    known = {
        "middle": (policy.action_low + policy.action_high) / 2,
        "fitted": fit_ood_score(LOG),
        "other size": fit_ood_score(make_dataset()),
    }
    values = {key: known[value] if value in list(known) else value for key, value in changes.items()}
    with pytest.raises(AspcError, match=f"^Invalid guards: .*{problem}"):
        policy.with_guards(Guards(**values))


def test_guards_are_saved_and_shown(tmp_path: Path) -> None:
    policy = replace(policy_named("td3_bc"), info={"action_names": ["valve", "fan", "pump"]})
    guarded = policy.with_guards(guards_of(policy, "fallback", start_action=guards_of(policy, None).action_low))
    loaded = load_policy(guarded.save(tmp_path / "policy"))
    assert loaded.header() == guarded.header()
    assert loaded.header()["format"] == 2
    np.testing.assert_array_equal(loaded.guards.ood.whitening, guarded.guards.ood.whitening)
    assert "whitening" not in (tmp_path / "policy" / "policy.json").read_text()
    for row in observations(1):
        np.testing.assert_array_equal(loaded.act(row), guarded.act(row))
    lines = describe_guards(guarded.guards, ["valve", "fan", "pump"])
    assert len(lines) == 4
    for line in lines:
        assert line in repr(guarded)
        assert "valve" in line
    assert "guards" not in repr(policy)
    assert guarded.with_guards(None).header() == policy.header()
    assert policy.header()["format"] == 1  # older versions can read it


@pytest.mark.parametrize(
    "change",
    [
        3,
        [],
        {},
        {"action_low": [9.0, 9.0, 9.0]},
        {"action_low": [float("nan")] * 3},
        {"action_low": [10**400] * 3},
        {"max_change": [0.0] * 3},
        {"max_change": [-1.0] * 3},
        {"max_change": "fast"},
        {"start_action": [1e9] * 3},
        {"on_ood": "explode"},
        {"on_ood": None, "ood": None, "fallback": [0.0] * 3},
        {"on_ood": ["hold"]},
        {"ood": {"mean": [0.0] * 4}},
        {"ood": {"threshold": float("nan")}},
        {"ood": {"threshold": float("inf")}},
        {"ood": {"threshold": -1.0}},
        {"ood": {"threshold": 1e9}},
        {"ood": {"threshold": [1.0, 2.0]}},
        {"ood": {"std": [0.0] * 5}},
        {"ood": {"std": [1e38] * 5}},
        {"ood": {"mean": [0.0] * 6}},
        {"ood": {"info": 3}},
    ],
)
def test_hostile_guards_are_rejected(tmp_path: Path, change: Any) -> None:
    policy = policy_named("td3_bc")
    guarded = policy.with_guards(guards_of(policy, "hold"))
    saved = guarded.save(tmp_path)
    load_policy(saved)
    known = guarded.header()["guards"]
    if isinstance(change, dict) and change:
        nested = {"ood": {**known["ood"], **change["ood"]}} if change.get("ood") else {}
        change = {**known, **change, **nested}
    with pytest.raises(AspcError, match="damaged"):
        load_policy(change_header(saved, guards=change))


def test_hostile_whitening_is_rejected(tmp_path: Path) -> None:
    policy = policy_named("td3_bc")
    guarded = policy.with_guards(guards_of(policy, "hold"))
    score = guarded.guards.ood
    for whitening in (np.full((5, 5), np.nan), np.full((5, 5), 1e30), np.zeros((5, 4)), np.zeros(5)):
        broken = replace(guarded.guards, ood=score._replace(whitening=whitening.astype(np.float32)))
        saved = replace(guarded, guards=broken).save(tmp_path)
        with pytest.raises(AspcError, match="damaged"):
            load_policy(saved)
    plain = policy.save(tmp_path)
    header = {"format": 2, "guards": guarded.header()["guards"]}  # without the matrix
    with pytest.raises(AspcError, match="damaged"):
        load_policy(change_header(plain, **header))


# -- warnings without guards -----------------------------------------------------------------------------------


def test_far_observation_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["T0", "T1", "flow", "T3", "T4"]
    low, high = np.array([0, 0, 1, 2, -1], np.float32), np.array([1, 1, 3, 2, 1], np.float32)  # T3 is constant
    policy = replace(policy_named("td3_bc"), observation_low=low, observation_high=high)
    policy = replace(policy, info={**policy.info, "observation_names": names})
    assert not load_policy(policy.save(tmp_path / "check"))._stream.has_warned
    row = np.array([0.5, 10, 20, 20, -19], np.float32)  # less than ten ranges beyond
    far = row.copy()
    far[2] = 1e6
    plain = replace(policy, observation_low=None, observation_high=None)
    expected = plain.step(far[None], plain.initial_memory(1))[0][0]
    saved = policy.save(tmp_path / "policy")
    module = exported_module(export(saved, "numpy"), monkeypatch)
    message = (
        r"^observation\[2\] \('flow'\) is 1000000\.0, far outside the logged range 1 to 3, so the action is an "
        r"extrapolation\. Check the observation, or export the policy with a guard \(aspc export --ood hold\)\.$"
    )
    for act, exact in (
        (load_policy(saved).act, True),
        (module.act, True),
        (load_stablehlo(export(saved, "stablehlo")), False),
    ):
        act(row)
        with pytest.warns(RuntimeWarning, match=message) as found:
            action = act(far)
        assert len(found) == 1
        assert found[0].filename == __file__
        np.testing.assert_allclose(action, expected, atol=0 if exact else 1e-5)
        act(far)  # warnings are errors in these tests
    guarded = policy.with_guards(Guards(ood=fit_ood_score(LOG)))
    guarded.act(far)  # the guard reacts
    with pytest.warns(RuntimeWarning, match=r"^observations\[1, 3\] \('T3'\) is 500"):
        policy.act(np.stack([row, np.where(np.arange(5) == 3, 500, row)]))


def test_older_policies_warn_by_their_normalizer() -> None:
    policy = policy_named("td3_bc")
    row = policy.observation_mean + 90 * policy.observation_std
    policy.act(row)
    with pytest.warns(RuntimeWarning, match=r"observation\[0\] is 1000000\.0, far outside the logged values, .* ± "):
        policy.act(np.full(5, 1e6))
    raw = replace(policy, observation_mean=np.zeros(5, np.float32), observation_std=np.ones(5, np.float32))
    raw.act(np.full(5, 1e6))  # nothing is known about the log


def test_invalid_ranges_are_rejected(tmp_path: Path) -> None:
    policy = replace(policy_named("td3_bc"), observation_low=-np.ones(5), observation_high=np.ones(5))
    saved = policy.save(tmp_path)
    for change in (
        {"observation_low": [0.0] * 4},
        {"observation_low": [2.0] * 5},
        {"observation_high": [float("nan")] * 5},
        {"observation_high": None},
    ):
        policy.save(tmp_path)
        with pytest.raises(AspcError, match="damaged"):
            load_policy(change_header(saved, **change))


# -- the command -----------------------------------------------------------------------------------------------


def test_command_exports_a_guarded_policy_from_a_table(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    temperature, fan = rng.normal(20, 2, 600), rng.uniform(0, 100, 600)
    valve = np.clip(50 + 10 * (20 - temperature) + rng.normal(0, 10, 600), 0, 100)
    table = np.stack([temperature, fan, valve, 0.5 * fan, -np.abs(temperature - 20), np.arange(600) % 50 == 49], 1)
    header = "temperature,load,valve,fan,reward,timeout"
    np.savetxt("log.csv", table, delimiter=",", header=header, comments="")
    columns = ["observations=temperature,load", "actions=valve,fan", "rewards=reward", "timeouts=timeout"]
    words = ["--steps", "60", "--holdout", "0.2", "--env", "none", "--out", "run", "--quiet"]
    assert main(["train", "log.csv", "--algo", "bc", "--map", *columns, *words]) == 0
    capsys.readouterr()
    words = ["--bound", "valve=10:80", "fan=:40", "--rate-limit", "valve=5", "--start-action", "valve=30", "fan=20"]
    assert main(["export", "run", "--format", "onnx", *words, "--ood", "hold", "--ood-quantile", "0.99"]) == 0
    shown = capsys.readouterr().out
    for text in ("valve 10 to 80", "change per step: valve 5", "valve 30, fan 20", "the previous action"):
        assert text in shown
    session = runtime.InferenceSession("run/policy/seed0/policy.onnx")
    found = session.get_modelmeta().custom_metadata_map
    guards = json.loads(found["guards"])
    assert guards["ood"]["info"]["rows"] == 100  # the held-out episodes: two of twelve
    assert guards["ood"]["info"]["quantile"] == 0.99
    memory = np.array([json.loads(found["initial_memory"])], np.float32)
    assert memory.tolist() == [[1, 30, 20]]
    for observation in ([20, 50], [1e6, 50], [20, 50]):
        actions, memory = session.run(None, {"observations": np.array([observation], np.float32), "memory": memory})
        last, previous = actions[0], (actions if observation[0] == 1e6 else memory[:, 1:])[0]
        np.testing.assert_array_equal(last, previous)
        assert 10 <= last[0] <= 80
        assert abs(last[0] - 30) <= 10 + 1e-4
        assert last[1] <= 40

    assert (
        main(
            [
                "export",
                "run",
                "--format",
                "policy",
                "--out",
                "safe",
                "--ood",
                "fallback",
                "--fallback",
                "valve=50",
                "fan=20",
            ]
        )
        == 0
    )
    safe = load_policy("safe")
    np.testing.assert_array_equal(safe.act([1e6, 0]), [50, 20])
    assert (tmp_path / "run").samefile(safe.info["chosen"]["run"])
    assert main(["export", "safe", "--format", "numpy"]) == 0  # the guards of a policy stay
    assert "valve 50, fan 20" in capsys.readouterr().out
    assert load_policy("run").guards is None

    for arguments, problem in {
        ("--bound", "vlave=1:2"): "Unknown action 'vlave' in --bound. Choose from valve, fan.",
        ("--bound", "valve=1"): "--bound takes NAME=LOW:HIGH",
        ("--bound", "valve=-900:"): "Invalid guards: action_low[0] is -900, which is below the policy's bound",
        ("--rate-limit", "valve"): "--rate-limit takes NAME=VALUE, not 'valve'.",
        ("--rate-limit", "valve=fast"): "--rate-limit takes a number for each action, not 'fast'.",
        ("--start-action", "valve=30"): "--start-action needs a value for every action. Add fan.",
        ("--ood", "fallback"): "--fallback needs a value for every action. Add valve, fan.",
        ("--ood", "hold", "--fallback", "valve=1", "fan=1"): "requires a fallback action, and vice versa",
        ("--ood-quantile", "0.9"): "its options require --ood",
        ("--ood", "nan", "--ood-quantile", "2"): "must be above 0 and at most 1, not 2.0",
        ("--ood", "nan", "--ood-margin", "0.2"): "at least 1 and below 1000, not 0.2",
    }.items():
        assert main(["export", "run", "--format", "numpy", *arguments]) == 2, arguments
        assert problem in capsys.readouterr().err
    assert not Path("run/policy/seed0/numpy").exists()
    assert main(["export", "run", "--format", "policy"]) == 2
    assert "needs an output folder. Pass --out." in capsys.readouterr().err


def test_actions_without_names_are_numbered_from_one() -> None:
    from aspc.guards import named_actions

    policy = policy_named("td3_bc")
    found = named_actions(policy, {"1": 5.0, "3": 7.0}, "--rate-limit", np.zeros(3))
    assert found.tolist() == [5.0, 0.0, 7.0]
    with pytest.raises(AspcError, match=r"Unknown action '0' in --rate-limit\. Choose from 1, 2, 3\."):
        named_actions(policy, {"0": 5.0}, "--rate-limit", np.zeros(3))


# -- evaluation ------------------------------------------------------------------------------------------------


def test_evaluations_refuse_unknown_actions() -> None:
    """A guard that returns NaN leaves the action to the user's controller."""
    policy = policy_named("td3_bc", obs=4, act=2)
    score = fit_ood_score(make_dataset())
    rows = np.array([[0, 0, 0, 0], [1e6, 0, 0, 0], [0, 0, 0, 1e6]], np.float32)
    dataset = replace(make_dataset(rows=50), observations=np.tile(rows[1], (50, 1)))
    problem = r"return NaN for {} observations, which are out of distribution.* Export the policy with --ood fallback"
    strict = policy.with_guards(Guards(ood=score, on_ood="nan"))
    with pytest.raises(AspcError, match=problem.format("2 of 3")):
        step_on_device(strict, rows, strict.initial_memory(3), np.random.default_rng(0))
    with pytest.raises(AspcError, match=problem.format("50 of 50")):
        act_on_rows(strict, dataset, np.arange(50), np.random.default_rng(0))
    with pytest.raises(AspcError, match=problem.format("1 of 1")):
        rollouts("Absurd", strict, [0], {"Absurd": [Absurd()]})
    start = (policy.action_low + policy.action_high) / 2
    for guards in (
        Guards(ood=score, start_action=start),
        Guards(ood=score, on_ood="fallback", fallback=start),
    ):
        safe = policy.with_guards(guards)
        (episode,) = rollouts("Absurd", safe, [0], {"Absurd": [Absurd()]})
        np.testing.assert_allclose(episode["return"], 10 * start[0], rtol=1e-5)


class Absurd(Counting):
    """An environment whose first sensor is broken."""

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return observation * [1e9, 1, 1, 1], info

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return observation * [1e9, 1, 1, 1], *rest


def test_exported_module_is_a_program_without_this_library(tmp_path: Path) -> None:
    policy = policy_named("td3_bc")
    policy = policy.with_guards(guards_of(policy, "hold", start_action=guards_of(policy, None).action_low))
    folder = export(policy.save(tmp_path / "policy"), "numpy", tmp_path / "out")
    for observation in ([0.5, -1.0, 2.0, 0.0, 0.25], [1e6, 0.0, 0.0, 0.0, 0.0]):
        words = [sys.executable, "-I", "-W", "error", str(folder / "policy.py"), *map(str, observation)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        policy.reset()
        np.testing.assert_allclose(np.array(done.stdout.split(), float), policy.act(np.array(observation)), rtol=1e-6)
