"""Replay of reference traces in float64, for every algorithm."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from aspc.errors import AspcError
from aspc.lab.reference.adapters.aspc import OUTER_LOSSES, check_aspc
from aspc.lab.reference.replay import TOLERANCE, CompiledSteps, read_trace, relative_error
from aspc.lab.reference.verification import verify

GOLDEN = Path(__file__).parents[2] / "golden"
TRACES = sorted(path.stem for path in GOLDEN.glob("*.npz"))

# alpha is compared by its displacement, which shows how the reference treats a second moment of zero.
TIGHT = 1e-9


@pytest.fixture(scope="module")
def compiled() -> CompiledSteps:
    """Compiled steps that tests share."""
    return {}


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_reproduced(name: str, compiled: CompiledSteps) -> None:
    trace = read_trace(GOLDEN / f"{name}.npz")
    if trace.meta["algo"] == "aspc":
        with jax.enable_x64(True):
            checks = check_aspc(trace, compiled=compiled)
    else:
        checks = verify(GOLDEN / f"{name}.npz")
    for check in checks:
        assert check.error <= (TOLERANCE if check.quantity.endswith("/alpha") else TIGHT), check
    # Every quantity of the file is compared.
    compared = {check.quantity for check in checks}
    for kind in ("out", "norm"):
        assert {f"{kind}/{quantity}" for quantity in trace.group(kind)} <= compared
    for network in {quantity.split("/")[0] for quantity in trace.group("final")}:
        assert any(quantity.startswith((f"final/{network}.", f"final/{network}[")) for quantity in compared)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_a_wrong_outer_loss_fails(shift: int, compiled: CompiledSteps) -> None:
    """With large Q every outer loss moves alpha differently."""
    trace = read_trace(GOLDEN / "aspc_large_q.npz")
    wrong = {right: OUTER_LOSSES[(right + shift - 1) % 4 + 1] for right in OUTER_LOSSES}
    with jax.enable_x64(True):
        errors = {check.quantity: check.error for check in check_aspc(trace, wrong, compiled)}
    assert all(errors[f"out/loss{setting}/alpha"] > 10 * TOLERANCE for setting in OUTER_LOSSES)


def copy_with_changes(tmp_path: Path, name: str, **changes: object) -> Path:
    """Copy a trace with some entries of `meta` or arrays replaced."""
    trace = read_trace(GOLDEN / f"{name}.npz")
    arrays = {**trace.arrays, **{k: v for k, v in changes.items() if "/" in k}}
    meta = {**trace.meta, **{k: v for k, v in changes.items() if "/" not in k}}
    path = tmp_path / "changed.npz"
    np.savez(path, meta=np.array(repr(meta)), **{k: v for k, v in arrays.items() if v is not None})
    return path


def largest_error(path: Path) -> float:
    return max(check.error for check in verify(path))


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("td3_bc_original", "tau", 0.0055),
        ("td3_bc_original", "alpha", 2.6),
        ("iql", "beta", 3.1),
        ("iql_deterministic", "iql_tau", 0.71),
        ("rebrac", "critic_bc_coef", 0.21),
    ],
)
def test_a_changed_setting_fails(tmp_path: Path, name: str, setting: str, value: float) -> None:
    """With a changed setting the trace is not reproduced."""
    assert largest_error(copy_with_changes(tmp_path, name, **{setting: value})) > 1e3 * TOLERANCE


def test_a_shorter_trace_with_fewer_arrays_passes(tmp_path: Path) -> None:
    trace = read_trace(GOLDEN / "iql.npz")
    changes: dict[str, object] = {}
    for name, array in trace.arrays.items():
        if name.startswith(("batch/", "out/", "norm/")):
            changes[name] = array[:7]
        elif name.startswith("final/"):
            changes[name] = None
    assert largest_error(copy_with_changes(tmp_path, "iql", **changes)) <= TIGHT


class TestErrors:
    def test_missing_file(self) -> None:
        with pytest.raises(AspcError, match="does not exist"):
            verify("nowhere.npz")

    def test_not_a_trace(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "other.npz", x=np.zeros(3))
        with pytest.raises(AspcError, match="not a reference trace"):
            verify(tmp_path / "other.npz")

    def test_damaged_file(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.npz"
        shutil.copy(GOLDEN / "iql.npz", path)
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(AspcError, match=r"trace|damaged"):
            verify(path)

    def test_unknown_algorithm(self, tmp_path: Path) -> None:
        with pytest.raises(AspcError, match="iql"):
            verify(copy_with_changes(tmp_path, "iql", algo="iqll"))

    def test_unsupported_setting(self, tmp_path: Path) -> None:
        with pytest.raises(AspcError, match="adam"):
            verify(copy_with_changes(tmp_path, "iql", adam=(0.5, 0.999, 1e-8)))

    def test_unknown_metrics_are_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(AspcError, match="metric 'surprise'"):
            verify(copy_with_changes(tmp_path, "iql_deterministic", **{"out/surprise": np.zeros(50)}))

    @pytest.mark.parametrize("changes", [{"batch/weights": np.zeros((50, 8))}, {"batch/actions": np.zeros((50, 3, 2))}])
    def test_invalid_arrays(self, changes: dict[str, np.ndarray], tmp_path: Path) -> None:
        with pytest.raises(AspcError, match="cannot be replayed: its arrays are not valid"):
            verify(copy_with_changes(tmp_path, "iql", **changes))

    def test_nothing_to_compare(self, tmp_path: Path) -> None:
        trace = read_trace(GOLDEN / "iql.npz")
        results = {name: None for name in trace.arrays if name.split("/")[0] in ("out", "norm", "final")}
        with pytest.raises(AspcError, match="no results to compare"):
            verify(copy_with_changes(tmp_path, "iql", **results))

    def test_missing_array(self, tmp_path: Path) -> None:
        with pytest.raises(AspcError, match="is missing 'terminals', which is required"):
            verify(copy_with_changes(tmp_path, "iql", **{"batch/terminals": None}))


def test_relative_error_compares_shapes_and_nans() -> None:
    assert relative_error([1.0, 2.0], [1.0, 2.0]) == 0
    assert relative_error([1.0], [1.0, 2.0]) == np.inf
    assert relative_error([np.nan, 2.0], [1.0, 2.0]) == np.inf
    assert relative_error([np.nan, 2.0], [np.nan, 2.0]) == 0
    assert relative_error([2.5001], [2.5002], origin=2.5) == pytest.approx(0.5)
