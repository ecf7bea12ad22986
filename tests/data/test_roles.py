"""Roles of columns: costs, formulas, KPIs, categories, units, step limits and episode ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from log_files import refuse, write_csv, write_hdf5, write_table
from small_logs import make_log

from aspc import algorithms, data
from aspc.data import diagnostics, packing, reward_checks, writers
from aspc.data.dataset import Dataset
from aspc.data.formula import Formula
from aspc.errors import AspcError
from aspc.training.hyperparameters import replace_fields
from aspc.training.prepared_data import warnings_of

Table = dict[str, np.ndarray]


def plant(rows: int = 60) -> Table:
    rng = np.random.default_rng(0)
    return {
        "obs_level": rng.normal(size=rows).round(3),
        "action_valve": rng.uniform(0, 100, rows).round(2),
        "energy": rng.uniform(1, 2, rows).round(3),
        "comfort [%]": rng.uniform(0, 1, rows).round(3),
        "episode": np.arange(rows) // 10,
    }


def has_note(dataset: Dataset, text: str) -> bool:
    return any(text in note for note in dataset.notes)


# ── costs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_costs_are_negated(tmp_path: Path) -> None:
    table = plant()
    for path in (write_csv(tmp_path / "x.csv", table), write_table(tmp_path / "x.parquet", table)):
        dataset = data.load(path, key_map={"costs": "energy"})
        np.testing.assert_allclose(dataset.rewards, -table["energy"].astype(np.float32))
    arrays = {"observations": np.zeros((60, 1)), "actions": np.ones((60, 1)), "price": table["energy"]}
    np.savez(tmp_path / "x.npz", **arrays, episodes=table["episode"])
    np.testing.assert_allclose(
        data.load(tmp_path / "x.npz", key_map={"cost": "price"}).rewards, -table["energy"], rtol=1e-6
    )


@pytest.mark.parametrize("column", ["cost", "EnergyCost", "heat_loss", "penalty [EUR]"])
def test_costs_as_rewards_are_warned_about(tmp_path: Path, column: str) -> None:
    path = write_csv(tmp_path / "x.csv", {**plant(), column: plant()["energy"]})
    dataset = data.load(path, key_map={"rewards": column})
    assert has_note(
        dataset,
        f"rewards are maximized, but {column!r} is named like a cost: if lower is better, pass --map costs={column} "
        "instead of --map rewards; costs are negated.",
    )
    refuse(path, rf"'rewards' not found .* is a cost, pass --map costs={column.split(' ')[0]}")


@pytest.mark.parametrize(
    ("formula", "named"),
    [
        ("comfort + 0.1*`energy cost`", ["energy cost"]),
        ("comfort - 0.1*`energy cost`", []),
        ("-(`energy cost` - comfort)", []),
        ("`energy cost` - 2*penalty", ["energy cost"]),
        ("max(0, penalty) - comfort", ["penalty"]),
    ],
)
def test_costs_added_by_a_formula_are_warned_about(tmp_path: Path, formula: str, named: list[str]) -> None:
    table = {**plant(), "energy cost": plant()["energy"], "penalty": plant()["energy"], "comfort": plant()["energy"]}
    notes = data.load(write_csv(tmp_path / "x.csv", table), reward=formula).notes
    end = "is named like a cost: if lower is better, subtract it in --reward."
    assert [n for n in notes if "named like" in n] == [f"rewards are maximized, but {c!r} {end}" for c in named]


@pytest.mark.parametrize("column", ["neg_cost", "reward_minus_cost", "glossy", "CostSaving"])
def test_gains_are_not_taken_for_costs(tmp_path: Path, column: str) -> None:
    path = write_csv(tmp_path / "x.csv", {**plant(), column: plant()["energy"]})
    assert not has_note(data.load(path, key_map={"rewards": column}), "named like a cost")


# ── formulas ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * 2 - 1", [6, 9]),
        ("-(a - b) / 2", [1, 1]),
        ("1 - -a * 1e-1", [1.1, 1.2]),
        ("min(a, b, 1.5) + max(a, 2)", [3, 3.5]),
        ("clip(b, 0, 3.5) * abs(-a)", [3, 7]),
        ("`a` / 'b' * \"b\"", [1, 2]),
        ("a - b - 1", [-3, -3]),
        ("8 / b / 2", [4 / 3, 1]),
    ],
)
def test_formulas_are_arithmetic(text: str, expected: list[float]) -> None:
    columns = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])}
    np.testing.assert_allclose(Formula.parse(text).evaluate(columns), expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unexpected end"),
        ("1 + 1", "it contains no column name"),
        ("a b", "unexpected 'b'"),
        ("a ** 2", r"unexpected '\*'"),
        ("(a", r"'\)' is missing"),
        ("clip(a)", "clip takes 3 values"),
        ("a; b", "unexpected ';'"),
        ("__import__('os')", "unknown function '__import__'"),
        ("a.__class__()", "unknown function 'a.__class__'"),
        ("(" * 60 + "a" + ")" * 60, "nested more than 50 deep"),
        ("+".join(["a"] * 500), "more than 400 numbers"),
        ("-" * 500 + "a", "more than 400 numbers"),
    ],
)
def test_invalid_formulas_are_rejected(text: str, says: str) -> None:
    with pytest.raises(AspcError, match=f"Invalid formula .*{says}.* Use \\+ - \\* / "):
        Formula.parse(text)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rewards_are_computed_from_columns(tmp_path: Path, suffix: str) -> None:
    table = plant()
    path = (write_csv if suffix == ".csv" else write_table)(tmp_path / f"x{suffix}", table)
    dataset = data.load(path, reward="0.7*`comfort [%]` - 0.3*energy")
    np.testing.assert_allclose(dataset.rewards, 0.7 * table["comfort [%]"] - 0.3 * table["energy"], rtol=1e-5)
    assert not has_note(dataset, "unused columns")
    refuse(path, "column 'enrgy' does not exist. Available: 'obs_level'", reward="enrgy")
    refuse(path, "'rewards' has a NaN, infinite", reward="energy / (energy - energy)")
    refuse(path, "Rewards must have one source: .* Choose one", reward="energy", key_map={"costs": "energy"})


def test_arrays_have_no_columns_to_name(tmp_path: Path) -> None:
    arrays = {"observations": np.zeros((9, 1)), "actions": np.ones((9, 1)), "rewards": np.ones(9)}
    np.savez(tmp_path / "x.npz", **arrays, terminals=np.arange(9) == 8)
    refuse(tmp_path / "x.npz", "--reward names columns, but this file holds arrays", reward="rewards")
    refuse(tmp_path / "x.npz", "--one-hot names columns", one_hot=["a"])


# ── KPIs, categories and units ──────────────────────────────────────────────────────────────────────────────────────


def test_kpis_are_carried_through(tmp_path: Path) -> None:
    table = {**plant(), "reward": np.ones(60)}
    dataset = data.load(write_csv(tmp_path / "x.csv", table), kpis=["energy", "comfort [%]"])
    assert dataset.observation_size == 1
    assert dataset.kpi_names == ("energy", "comfort [%]")
    np.testing.assert_allclose(dataset.kpis[:, 0], table["energy"], rtol=1e-6)
    learn, validate = dataset.split(0.5)
    assert len(learn.kpis) == len(learn)
    assert len(validate.kpis) == len(validate)
    assert "KPI comfort [%]" in diagnostics.summarize(dataset).text()
    for suffix, write in ((".hdf5", writers.write_hdf5), (".npz", writers.write_npz)):
        path = tmp_path / f"y{suffix}"
        write(path, writers.dataset_arrays(dataset), writers.dataset_metadata(dataset))
        again = data.load(path)
        assert again.kpi_names == dataset.kpi_names
        np.testing.assert_array_equal(again.kpis, dataset.kpis)
    packing.pack(tmp_path / "y.hdf5", tmp_path / "packed")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_categories_become_one_observation_each(tmp_path: Path, suffix: str) -> None:
    modes = np.array(["auto", "manual", "off"])[np.arange(60) % 3]
    table = {**plant(), "obs_mode": modes, "reward": np.ones(60)}
    path = (write_csv if suffix == ".csv" else write_table)(tmp_path / f"x{suffix}", table)
    refuse(path, "column 'obs_mode' holds text, not numbers. .* list it in --one-hot")
    dataset = data.load(path, one_hot="obs_mode")
    assert dataset.observation_names == ("obs_level", "obs_mode=auto", "obs_mode=manual", "obs_mode=off")
    np.testing.assert_array_equal(dataset.observations[:, 1:], np.eye(3)[np.arange(60) % 3])
    assert dataset.categories == {"obs_mode": ["auto", "manual", "off"]}
    refuse(path, "--one-hot names 'energy', which is not an observation", one_hot=["obs_mode", "energy"])


def test_units_in_names_are_kept(tmp_path: Path) -> None:
    table = {
        "obs_temp [°C]": np.arange(9.0),
        "action_heat (kW)": np.arange(9.0),
        "Reward [EUR]": np.ones(9),
        "episode": np.zeros(9, int),
    }
    dataset = data.load(write_csv(tmp_path / "x.csv", table))
    assert dataset.observation_names == ("obs_temp [°C]",)
    assert dataset.action_names == ("action_heat (kW)",)


# ── episodes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_limit_ends_episodes_where_nothing_else_does(tmp_path: Path) -> None:
    table = {**plant(), "reward": np.ones(60)}
    del table["episode"]
    limits = {"max_episode_steps": 20}
    path = write_csv(tmp_path / "x.csv", table)
    assert data.load(path, **limits).episode_lengths.tolist() == [20, 20, 20]
    never = write_csv(tmp_path / "y.csv", {**table, "truncated": np.zeros(60, int)})
    assert data.load(never, **limits).episode_lengths.tolist() == [20, 20, 20]
    once = write_csv(tmp_path / "z.csv", {**table, "truncated": (np.arange(60) == 29).astype(int)})
    dataset = data.load(once, **limits)
    assert dataset.episode_lengths.tolist() == [30, 30]
    assert has_note(dataset, "the step limit of 20 is not used: the log contains timeouts")
    arrays = {"observations": np.zeros((60, 1)), "actions": table["action_valve"][:, None], "rewards": np.ones(60)}
    hdf5 = write_hdf5(tmp_path / "x.hdf5", arrays)
    assert data.load(hdf5, **limits).episode_lengths.tolist() == [20, 20, 20]
    assert packing.pack(hdf5, tmp_path / "packed", **limits).rows == 57


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ids_that_look_like_numbers_stay_apart(tmp_path: Path, suffix: str) -> None:
    """1e5 is not the episode 100000, and short hexadecimal ids can look like numbers."""
    for ids in (
        ["1e5", "100000"],
        ["1e2", "100"],
        ["007", "7"],
        ["2e3", "a0f"],
        ["9007199254740993", "9007199254740992"],
    ):
        table = {**plant(20), "reward": np.ones(20), "episode": np.repeat(ids, 10)}
        path = (write_csv if suffix == ".csv" else write_table)(tmp_path / f"x{suffix}", table)
        assert data.load(path).episode_lengths.tolist() == [10, 10], ids


# ── rewards ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_training_warns_about_extreme_rewards() -> None:
    log = make_log(rows=1_000)
    dataset = Dataset.from_arrays(**{**log, "rewards": 1e8 * np.abs(log["rewards"])})
    (said,) = warnings_of(dataset, algorithms.default("td3_bc"))
    assert said.endswith("train with --reward-scale 1e-08.")
    assert warnings_of(dataset, replace_fields(algorithms.default("td3_bc"), {"reward_scale": 1e-8})) == []


@pytest.mark.parametrize(
    ("rewards", "options"),
    [
        (1e8 * np.random.default_rng(0).uniform(1, 2, 3_000), ["--reward-scale 1e-08"]),
        (1e-6 * np.random.default_rng(0).uniform(1, 2, 3_000), ["--reward-scale 1e+06"]),
        (-1e8 * np.random.default_rng(0).uniform(1, 2, 3_000), ["--reward-scale 1e-08", "--reward-shift 2."]),
        (np.random.default_rng(0).uniform(0, 100, 3_000), []),
    ],
)
def test_extreme_rewards_name_the_option_to_paste(rewards: np.ndarray, options: list[str]) -> None:
    warnings = reward_checks.check_rewards(rewards, has_terminals=False)
    assert len(warnings) == len(options)
    for warning, option in zip(warnings, options, strict=True):
        assert option in warning
    # With these options, nothing is left to say.
    scale, shift = (float(option.split()[1]) if option else 0 for option in (*options, "", "")[:2])
    scaled = rewards * (scale or 1)
    shifted = scaled + (np.ceil(-scaled.min()) if shift else 0)
    assert reward_checks.check_rewards(shifted, has_terminals=False, scale=scale or 1) == []
