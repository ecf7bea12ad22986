"""Presets: every value lands on a field of its algorithm, and the tables are the published ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aspc.data
from aspc import algorithms
from aspc.errors import AspcError
from aspc.presets import overrides, preset_of, presets_of
from aspc.training.hyperparameters import replace_fields

D4RL = list(json.loads((Path(aspc.__file__).parent / "d4rl.json").read_text()))
OGBENCH = [f"antmaze-{size}-navigate-singletask-task{k}-v0" for size in ("large", "giant") for k in range(1, 6)]


def every_preset() -> Iterator[tuple[str, str]]:
    for algo in algorithms.names():
        for preset in presets_of(algo):
            yield algo, preset


@pytest.mark.parametrize(("algo", "preset"), list(every_preset()))
def test_every_value_is_a_setting_of_its_type(algo: str, preset: str) -> None:
    datasets = preset_of(algo, preset).by_dataset or {"any": {}}
    for dataset in datasets:
        default = algorithms.default(algo)
        settings = overrides(algo, dataset, preset)
        changed = replace_fields(default, settings, coerce=False)  # an unknown field would raise
        for name in settings:
            value, was = changed, default
            for part in name.split("."):
                value, was = getattr(value, part), getattr(was, part)
            assert type(value) is type(was), name
    assert preset_of(algo, preset).source


@pytest.mark.parametrize(
    ("algo", "preset"),
    [("iql", "paper"), ("rebrac", "paper"), *[(a, "corl") for a in ("iql", "rebrac", "cql", "td3_bc")]],
)
def test_all_39_datasets_have_settings(algo: str, preset: str) -> None:
    assert sorted(preset_of(algo, preset).by_dataset or ()) == sorted(D4RL)


@pytest.mark.parametrize("algo", ["fql", "iql", "rebrac"])
def test_the_ten_ogbench_tasks_have_settings(algo: str) -> None:
    assert set(OGBENCH) <= set(preset_of(algo, "authors").by_dataset or ())


@pytest.mark.parametrize(
    ("algo", "preset", "dataset", "expected"),
    [
        ("iql", "paper", "hopper-medium-v2", {"beta": 3.0, "expectile": 0.7, "deterministic": True}),
        ("iql", "paper", "hopper-full-replay-v2", {"beta": 10.0, "expectile": 0.9, "deterministic": False}),
        ("iql", "paper", "antmaze-umaze-diverse-v2", {"beta": 10.0, "expectile": 0.95, "reward_shift": -1.0}),
        ("iql", "paper", "hammer-expert-v1", {"beta": 0.5, "expectile": 0.95}),
        ("iql", "corl", "hopper-medium-v2", {"tau": 0.001, "reward_transform": "return_range"}),
        (
            "rebrac",
            "paper",
            "hopper-medium-replay-v2",
            {"beta1": 0.05, "beta2": 0.5, "batch_size": 1024, "actor_lr": 1e-3},
        ),
        ("rebrac", "paper", "walker2d-random-v2", {"beta1": 0.01, "beta2": 0.0}),
        (
            "rebrac",
            "paper",
            "antmaze-medium-play-v2",
            {"beta1": 0.001, "beta2": 0.0005, "discount": 0.999, "actor_lr": 1e-4, "reward_scale": 100.0},
        ),
        ("rebrac", "paper", "maze2d-large-v1", {"beta1": 0.003, "beta2": 0.001, "batch_size": 256, "actor_lr": 3e-4}),
        ("rebrac", "corl", "antmaze-umaze-v2", {"actor_lr": 3e-4, "critic_lr": 5e-5, "discount": 0.999}),
        (
            "cql",
            "corl",
            "antmaze-large-play-v2",
            {"cql_alpha": 5.0, "lagrange": True, "reward_scale": 10.0, "reward_shift": -5.0},
        ),
        ("td3_bc", "corl", "hopper-medium-v2", {"critic_hidden_layers": 2, "critic_layer_norm": False}),
        ("diffusion_ql", "authors", "antmaze-large-play-v2", {"eta": 4.5, "max_grad_norm": 10.0, "max_q_backup": True}),
        (
            "fql",
            "authors",
            "antmaze-giant-navigate-singletask-task3-v0",
            {"alpha": 10.0, "q_agg": "min", "discount": 0.995},
        ),
        (
            "iql",
            "authors",
            "antmaze-giant-navigate-singletask-task5-v0",
            {"beta": 10.0, "expectile": 0.9, "discount": 0.995, "deterministic": True, "critic_layer_norm": True},
        ),
        ("iql", "authors", "antmaze-large-navigate-singletask-task1-v0", {"discount": 0.99, "hidden_dim": 512}),
        ("a2pr", "authors", "hopper-medium-v2", {"constraint_weight": 0.4, "discount": 0.995}),
        ("rapo", "authors", "hopper-medium-expert-v2", {"scale_lr": 3e-4}),
        ("rapo", "authors", "antmaze-large-play-v2", {"scale_lr": 1e-3}),
        ("iql+aspc", "paper", "hopper-medium-v2", {"base.deterministic": True}),
    ],
)
def test_published_values(algo: str, preset: str, dataset: str, expected: dict[str, Any]) -> None:
    settings = overrides(algo, dataset, preset)
    assert {name: settings.get(name) for name in expected} == expected


def test_a_learned_scale_is_not_preset() -> None:
    assert "beta" in overrides("iql", "hopper-medium-v2", "paper")
    assert "base.beta" not in overrides("iql+aspc", "hopper-medium-v2", "paper")


def test_algorithms_with_one_setting_use_their_defaults() -> None:
    assert overrides("aspc", "any-dataset-of-mine", "paper") == {}


ADAM_3E4 = {"actor_lr": 3e-4, "critic_lr": 3e-4, "batch_size": 256, "discount": 0.99, "tau": 5e-3}
ACTOR = {"actor_hidden_dim": 256, "actor_hidden_layers": 2}
TD3_BC = ADAM_3E4 | ACTOR | {"policy_noise": 0.2, "noise_clip": 0.5, "policy_freq": 2, "alpha": 2.5}
TD3_BC |= {"critic_hidden_dim": 256, "critic_hidden_layers": 3}
VALUE = {"value_lr": 3e-4, "value_hidden_dim": 256, "value_hidden_layers": 2}


@pytest.mark.parametrize(
    ("table", "algorithm", "expected"),
    [
        (5, algorithms.default("aspc"), {"scale_lr": 2e-3, "k_alpha": 10, "ema": 0.995}),
        (5, algorithms.default("aspc").base, TD3_BC | {"critic_layer_norm": True}),
        (6, algorithms.default("td3_bc"), TD3_BC | {"critic_layer_norm": True}),
        (7, algorithms.default("wpc"), TD3_BC | VALUE | {"critic_layer_norm": True, "policy_noise": 0.1}),
        (8, algorithms.default("a2pr"), TD3_BC | {"value_hidden_dim": 256, "value_hidden_layers": 3}),
        (8, algorithms.default("a2pr"), {"normalize_observations": True, "vae_weight": 1.0, "constraint_weight": 1.0}),
        (8, algorithms.default("a2pr"), {"advantage_threshold": 0.0}),
        (9, algorithms.default("iql"), ADAM_3E4 | {"value_lr": 3e-4, "hidden_dim": 256, "hidden_layers": 2}),
        (11, algorithms.default("rebrac"), {"tau": 5e-3, "hidden_dim": 256, "critic_layer_norm": True}),
        (11, algorithms.default("rebrac"), {"actor_hidden_layers": 3, "critic_hidden_layers": 3}),
    ],
)
def test_defaults_are_the_papers_tables(table: int, algorithm: Any, expected: dict[str, Any]) -> None:
    assert {name: getattr(algorithm, name) for name in expected} == expected, f"Table {table}"


def test_errors_list_valid_names() -> None:
    with pytest.raises(AspcError, match="cql has no preset 'paper'; choose from corl"):
        overrides("cql", "hopper-medium-v2", "paper")
    with pytest.raises(AspcError, match="bc has no presets"):
        overrides("bc", "hopper-medium-v2", "paper")
    with pytest.raises(AspcError, match="hopper-medium-v2"):
        overrides("iql", "hopper-medum-v2", "paper")
