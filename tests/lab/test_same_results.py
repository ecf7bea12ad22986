"""benchmarks/same_results.py: comparison of repeated runs with recorded ones, bit by bit."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def modules() -> tuple[ModuleType, ModuleType]:
    """The script that compares results, and the generator of synthetic ones."""
    return import_modules("same_results", "synthetic")


def import_modules(*names: str) -> Any:
    folders = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "lab" / "report")]
    sys.path[:0] = folders
    try:
        return tuple(importlib.import_module(name) for name in names)
    finally:
        del sys.path[: len(folders)]


def compare(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = script.main([str(folder / "recorded"), str(folder / "again")])
    return code, capsys.readouterr().out.splitlines()


def test_identical_runs_match(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, synthetic = modules
    variants = [synthetic.Variant("TD3+BC", "td3_bc")]
    synthetic.make(tmp_path / "recorded", "study_main", variants, ("hopper-medium", "hopper-expert"), points=10)
    synthetic.make(tmp_path / "again", "study_main", variants, ("hopper-medium",), points=10)
    same = ["Both folders contain 4 runs with 40 curve points.", "0 runs and 0 points differ."]
    assert compare(script, tmp_path, capsys) == (0, same)


def test_a_changed_bit_is_reported(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, synthetic = modules
    variants, names = [synthetic.Variant("TD3+BC", "td3_bc")], ("hopper-medium", "hopper-expert")
    synthetic.make(tmp_path / "recorded", "study_main", variants, names, points=10, score=lambda *_: 50.0, noise=0)
    bits = {"hopper-medium": float(np.nextafter(50.0, np.inf)), "hopper-expert": 50.0}
    changed = {"score": lambda _, name: bits[name], "noise": 0}
    synthetic.make(tmp_path / "again", "study_main", variants, names, points=10, **changed)
    code, (_, message) = compare(script, tmp_path, capsys)
    assert code == 1
    assert message.startswith("4 runs and ")  # those of one of the two datasets


def test_missing_points_and_runs_are_reported(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, synthetic = modules
    variants = [synthetic.Variant("TD3+BC", "td3_bc")]
    synthetic.make(tmp_path / "recorded", "study_main", variants, ("hopper-medium",), points=5)
    synthetic.make(tmp_path / "again", "study_main", variants, ("hopper-expert",), points=5)
    assert compare(script, tmp_path, capsys) == (1, ["The folders have no runs in common."])
    synthetic.make(tmp_path / "again", "study_main", variants, ("hopper-medium",), points=5)
    assert compare(script, tmp_path, capsys)[0] == 0
    for part in (tmp_path / "again" / "curves").glob("*.parquet"):  # remove the last point of each curve
        curves = pd.read_parquet(part)
        curves[curves["step"] < curves["step"].max()].to_parquet(part)
    code, (_, message) = compare(script, tmp_path, capsys)
    assert (code, message) == (1, "0 runs and 4 points differ.")
