"""Observations with NaN, infinite, None or masked entries raise by default and never give a silent NaN action."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest

from aspc.__main__ import main
from aspc.errors import AspcError
from aspc.export import export, load_stablehlo
from aspc.policy import Policy, load_policy
from aspc.training.evaluation import Evaluator
from aspc.training.rollout_worker import rollouts
from policies import policy_named
from test_policy_format import FORMATS, change_header
from tiny import Counting

KINDS = ("td3_bc", "fql", "diffusion_ql")
VALID = np.linspace(-1, 1, 5, dtype=np.float32)
INVALID = {
    "nan": [0.0, 1.0, np.nan, 0.0, 0.0],
    "inf": np.array([0.0, 1.0, np.inf, 0.0, 0.0]),
    "None": [0.0, 1.0, None, 0.0, 0.0],
    "masked": np.ma.masked_greater(np.array([0.0, 1.0, 9.0, 0.0, 0.0], np.float32), 5),
    "too large for float32": [0.0, 1.0, 1e300, 0.0, 0.0],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", INVALID)
def test_invalid_observation_raises_by_default(kind: str, what: str) -> None:
    policy = policy_named(kind)
    with pytest.raises(AspcError, match=r"^observation\[2\] is -?(nan|inf)\. Correct it, or choose on_invalid='hold'"):
        policy.act(INVALID[what])
    assert np.isfinite(policy.act(VALID)).all()


def test_error_names_the_entry() -> None:
    policy = policy_named("td3_bc")
    batch = np.tile(VALID, (4, 1))
    batch[3, 1] = np.nan
    with pytest.raises(AspcError, match=r"^observations\[3, 1\] is nan"):
        policy.act(batch)
    policy.info["observation_names"] = ["T0", "T1", "flow", "T3", "T4"]
    table = pd.DataFrame(batch, columns=policy.info["observation_names"])
    with pytest.raises(AspcError, match=r"^observations\[3, 1\] \('T1'\) is nan"):
        policy.act(table)
    with pytest.raises(AspcError, match=r"^observation\[2\] \('flow'\) is nan"):
        policy.act({**table.iloc[0], "flow": None})
    with pytest.raises(AspcError, match=r"^observation\[2\] \('flow'\) is nan"):
        policy.act({**table.iloc[0], "flow": np.ma.masked_array(3.0, mask=True)})
    policy.info["observation_names"] = ["T0"]  # as in a damaged file
    with pytest.raises(AspcError, match=r"^observations\[3, 1\] is nan"):
        policy.act(batch)
    policy.info["observation_names"] = list(table)
    with pytest.raises(AspcError, match="is not numeric"):
        policy.act({**table.iloc[0], "flow": "open"})


def test_masks_survive_in_lists_of_rows() -> None:
    policy = policy_named("td3_bc")
    rows = [np.ma.masked_array(VALID, mask=[False] * 5), np.ma.masked_array(VALID, mask=[0, 0, 0, 0, 1])]
    with pytest.raises(AspcError, match=r"^observations\[1, 4\] is nan"):
        policy.act(rows)
    np.testing.assert_array_equal(policy.act(rows[0]), policy.act(VALID))  # nothing is masked


def test_hold_repeats_the_last_valid_action() -> None:
    policy = policy_named("td3_bc").with_on_invalid("hold")
    with pytest.raises(AspcError, match=r"there is no action to hold yet\. Start with a valid observation"):
        policy.act(INVALID["nan"])
    first = policy.act(VALID)
    given = first.copy()
    first[:] = 99.0  # changing a returned action does not change the held one
    for what in INVALID.values():
        np.testing.assert_array_equal(policy.act(what), given)
    other = policy.act(-VALID)
    np.testing.assert_array_equal(policy.act(INVALID["inf"]), other)
    with pytest.raises(AspcError, match="no action to hold yet"):
        policy.with_on_invalid("hold").act(INVALID["nan"])  # a copy has its own memory


def test_hold_in_a_batch_is_per_row() -> None:
    policy = policy_named("td3_bc")
    batch = np.stack([VALID, -VALID, 2 * VALID])
    before = policy.act(batch, on_invalid="hold")
    changed = batch + 1
    changed[1, 0] = np.nan
    after = policy.act(changed, on_invalid="hold")
    np.testing.assert_array_equal(after[1], before[1])
    np.testing.assert_allclose(after[[0, 2]], policy.act(batch + 1)[[0, 2]], rtol=1e-6)
    changed[1:, 0] = np.inf
    np.testing.assert_array_equal(policy.act(changed, on_invalid="hold")[1:], after[1:])
    with pytest.raises(AspcError, match="the batch had 3 rows before and has 2 now"):
        policy.act(changed[:2], on_invalid="hold")


@pytest.mark.parametrize("kind", KINDS)
def test_nan_mode_affects_only_invalid_rows(kind: str) -> None:
    policy = policy_named(kind).with_on_invalid("nan")
    for what in INVALID.values():
        assert np.isnan(policy.act(what)).all()
    batch = np.stack([VALID, np.full(5, np.inf, np.float32), -VALID])
    actions = policy.act(batch)
    assert np.isnan(actions[1]).all()
    without = policy.act(np.where(np.isfinite(batch), batch, 0))
    np.testing.assert_array_equal(actions[[0, 2]], without[[0, 2]])


def test_on_invalid_is_saved(tmp_path: Path) -> None:
    assert load_policy(FORMATS / "format1" / "deterministic").on_invalid == "raise"  # saved before the setting existed
    saved = policy_named("td3_bc").with_on_invalid("hold").save(tmp_path / "policy")
    assert json.loads((saved / "policy.json").read_text())["on_invalid"] == "hold"
    policy = load_policy(saved)
    action = policy.act(VALID)
    np.testing.assert_array_equal(policy.act(INVALID["nan"]), action)
    with pytest.raises(AspcError, match=r"observation\[2\] is nan"):
        policy.act(INVALID["nan"], on_invalid="raise")
    for wrong in ("ignore", 3, None, ["raise"]):
        with pytest.raises(AspcError, match="damaged"):
            load_policy(change_header(saved, on_invalid=wrong))
    for call in (lambda: policy.act(VALID, on_invalid="ignore"), lambda: policy.with_on_invalid("ignore")):
        with pytest.raises(AspcError, match="on_invalid must be 'raise', 'hold' or 'nan', not 'ignore'"):
            call()


# ── exports ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def exported_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "policy", raising=False)
    module = importlib.import_module("policy")
    monkeypatch.delitem(sys.modules, "policy")
    return module


def check_modes(act: Callable[..., np.ndarray], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"observation\[2\] is nan"):
        act(INVALID["None"], on_invalid="raise")
    with pytest.raises(error, match="no action to hold yet"):
        act(INVALID["masked"], on_invalid="hold")
    action = act(VALID, on_invalid="hold")
    np.testing.assert_array_equal(act(INVALID["inf"], on_invalid="hold"), action)
    assert np.isnan(act(INVALID["inf"], on_invalid="nan")).all()


def test_numpy_export_follows_on_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = policy_named("td3_bc").save(tmp_path / "policy")
    module = exported_module(export(saved, "numpy"), monkeypatch)
    assert module.METADATA["on_invalid"] == "raise"
    with pytest.raises(ValueError, match=r"observation\[2\] is nan"):
        module.act(INVALID["nan"])
    check_modes(module.act, ValueError)
    assert main(["export", str(saved), "--format", "numpy", "--force", "--on-invalid", "nan"]) == 0
    module = exported_module(saved / "numpy", monkeypatch)
    assert module.METADATA["on_invalid"] == "nan"
    assert np.isnan(module.act(INVALID["nan"])).all()


def test_stablehlo_export_follows_on_invalid(tmp_path: Path) -> None:
    saved = policy_named("td3_bc").save(tmp_path / "policy")
    act = load_stablehlo(export(saved, "stablehlo"))
    assert act.metadata["on_invalid"] == "raise"
    check_modes(act, AspcError)
    with pytest.raises(AspcError, match=r"observation\[2\] is inf"):
        act(INVALID["inf"])


@pytest.mark.parametrize("kind", KINDS)
def test_exported_programs_return_nan(kind: str, tmp_path: Path) -> None:
    """Neither ONNX Runtime nor XLA saturates an infinity into a plausible action."""
    import zipfile

    from jax import export as jax_export

    runtime = pytest.importorskip("onnxruntime")
    policy = policy_named(kind)
    saved = policy.save(tmp_path / "policy")
    rows = np.stack([VALID, *(np.ma.filled(np.ma.array(INVALID[key], np.float32), np.nan) for key in ("nan", "inf"))])
    rng = np.random.default_rng(0)
    noise = {name: draw.sample(rng, len(rows)) for name, draw in policy.noise().items()}
    session = runtime.InferenceSession(str(export(saved, "onnx")))
    assert session.get_modelmeta().custom_metadata_map["on_invalid"] == "nan"
    (actions,) = session.run(None, {"observations": rows, **noise})
    with zipfile.ZipFile(export(saved, "stablehlo")) as archive:
        program = jax_export.deserialize(bytearray(archive.read("program")))
    for found in (actions, np.asarray(program.call(rows, *noise.values()))):
        assert np.isfinite(found[0]).all()
        assert np.isnan(found[1:]).all()


def test_onnx_cannot_raise_or_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = policy_named("td3_bc").save(tmp_path / "policy")
    assert main(["export", str(saved), "--format", "onnx", "--on-invalid", "hold"]) == 2
    message = "An ONNX graph does not support --on-invalid hold: an invalid observation gives a NaN action"
    assert message in capsys.readouterr().err


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Failing(Counting):
    """An environment whose simulation diverges at the third step."""

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        if self.t == 3:
            observation[1] = np.nan
        return observation, *rest


gym.register("AspcTestFailing-v0", entry_point="test_invalid_observations:Failing")


@pytest.mark.parametrize("kind", KINDS)
def test_environment_that_returns_nan_is_named(kind: str) -> None:
    policy = policy_named(kind, obs=4, act=2).with_on_invalid("hold")  # a rollout never holds
    with pytest.raises(AspcError, match=r"Failing returned nan as entry 1 of an observation \(episode seed 7, after 3"):
        rollouts("Failing", policy, [7], {"Failing": [Failing()]})


def test_worker_names_it_too() -> None:
    policy = policy_named("td3_bc", obs=4, act=2)
    with Evaluator("test_invalid_observations:AspcTestFailing-v0", workers=1) as evaluator:
        pending = evaluator.evaluate(policy, [7])
        with pytest.raises(AspcError, match=r"AspcTestFailing-v0 returned nan as entry 1 of an observation"):
            pending.result()


def test_with_on_invalid_changes_nothing_else() -> None:
    policy = policy_named("td3_bc")
    assert isinstance(policy.with_on_invalid("nan"), Policy)
    assert policy.with_on_invalid("nan").header() == {**policy.header(), "on_invalid": "nan"}
