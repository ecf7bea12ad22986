"""Mistakes of users: each gives a one-sentence error before anything is computed."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

import aspc
from aspc import algorithms, envs, presets
from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.bc import BC
from aspc.algorithms.fields import Horizon
from aspc.algorithms.iql import IQL
from aspc.algorithms.td3_bc import TD3BC
from aspc.errors import AspcError
from aspc.io import write_json
from aspc.training.hyperparameters import check_values, coerce_fields, replace_fields
from aspc.training.normalizer import ObservationNormalizer
from aspc.training.packed_table import Layout, pack
from aspc.training.prepared_data import prepared_rewards, score_of
from aspc.training.run_config import TrainOptions
from tiny import TINY, Counting, make_dataset

SHORT = {**TINY, "steps": 80, "log_every": 40, "eval_every": 40, "quiet": True, "tensorboard": False}


# -- settings ------------------------------------------------------------------------------------------------


def test_integers_are_converted():
    options = TrainOptions(steps=1e6, eval_every=np.int64(5000), seeds=np.arange(3))  # type: ignore[arg-type]
    assert (options.steps, options.eval_every, options.seeds) == (1_000_000, 5000, (0, 1, 2))
    json.dumps([options.steps, options.eval_every, options.seeds])
    assert TrainOptions(seeds=7).seeds == (7,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 10.5}, "--steps must be an integer, not 10.5"),
        ({"steps": "many"}, "--steps must be an integer"),
        ({"horizon": float("inf")}, "--horizon must be an integer"),
        ({"seeds": [2**31]}, "0 to 2,147,483,647"),
        ({"seeds": []}, "for example --seeds 0 1 2 3"),
        ({"seeds": [True, 2]}, "--seeds must be an integer"),
        ({"checkpoint_every": -1}, r"--checkpoint-every must be at least 0 \(0: about one per minute\), not -1"),
        ({"monitor_every": -1}, r"--monitor-every must be at least 0 \(0: never\), not -1"),
    ],
)
def test_invalid_options(changes, message):
    with pytest.raises(AspcError, match=message):
        TrainOptions(**changes)


@pytest.mark.parametrize(
    ("algo", "changes", "message"),
    [
        (
            "aspc",
            {"scale_mode": "learn"},
            "scale_mode must be 'learned', 'fixed', 'converged' or 'linear', not 'learn'",
        ),
        ("aspc", {"outer_loss": "L2"}, "outer_loss must be 'L1', "),
        ("aspc", {"l3_form": 6}, "l3_form must be 1, 2, 3, 4 or 5, not 6"),
        ("aspc", {"alpha": -1.0}, "must start above 0"),
        (
            "td3_bc",
            {"reward_transform": "standard"},
            "reward_transform must be 'none', 'return_range' or 'standardize'",
        ),
        ("td3_bc", {"batch_size": 0}, "batch_size must be at least 1"),
        ("td3_bc", {"critic_hidden_dim": 0}, "critic_hidden_dim must be at least 1"),
        ("td3_bc", {"actor_hidden_layers": -1}, "actor_hidden_layers must be at least 0"),
        ("td3_bc", {"policy_freq": 0}, "policy_freq must be at least 1"),
        ("aspc", {"alpha": 0}, "must start above 0"),
        (
            "aspc",
            {"scale_horizon": 77},
            r"scale_horizon cannot be set directly: it always equals the length of the run\. Pass horizon=",
        ),
        ("aspc", {"key_map": {"observations": "s"}}, r"option for loading data.*aspc\.data\.load\(PATH, key_map=…\)"),
        ("aspc", {"stps": 10}, "Unknown setting 'stps'; did you mean steps"),
        ("aspc", {"zzz": 10}, r"Unknown setting 'zzz'; choose from .* and \d+ more\."),
        (3, {}, "algo must be an algorithm or a name"),
    ],
)
def test_invalid_settings(algo, changes, message, tmp_path):
    with pytest.raises(AspcError, match=message):
        aspc.train(make_dataset(), algo, out=tmp_path / "run", env=None, **{**SHORT, **changes})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algo", "changes", "message"),
    [
        ("diffusion_ql", {"diffusion_steps": 0}, "diffusion_steps must be at least 1"),
        ("diffusion_ql", {"time_dim": 3}, "time_dim must be an even number of at least 4"),
        ("diffusion_ql", {"ema_every": 0}, "ema_every must be at least 1"),
        ("fql", {"flow_steps": 0}, "flow_steps must be at least 1"),
        ("iql", {"max_weight": 0.0}, "max_weight must be above 0"),
        ("td3_bc", {"discount": 1.5}, "discount must be between 0 and 1, not 1.5"),
        ("td3_bc", {"discount": math.nan}, "discount must be between 0 and 1, not nan"),
        ("aspc", {"tau": 7.0}, "tau must be between 0 and 1, not 7.0"),
        ("aspc_plus", {"acting_ratio": -1.0}, "acting_ratio must be at least 0, not -1.0"),
        ("aspc_plus", {"acting_tau": 2.0}, "acting_tau must be between 0 and 1, not 2.0"),
        ("mcep", {"evaluation_alpha": -1.0}, "evaluation_alpha must be at least 0, not -1.0"),
        ("aspc", {"ema": -0.1}, "ema must be between 0 and 1"),
        ("iql", {"expectile": 1.1}, "expectile must be between 0 and 1"),
        ("iql", {"actor_dropout": 1.0}, "actor_dropout must be at least 0 and below 1, not 1.0"),
        ("bc", {"actor_lr": -1.0}, "actor_lr must be at least 0, not -1.0"),
        ("fql", {"lr": -1.0}, "lr must be at least 0"),
        ("aspc", {"scale_lr": -1.0}, "scale_lr must be at least 0"),
        ("td3_bc", {"alpha": -1.0}, "alpha must be at least 0"),
        ("rebrac", {"beta2": -0.1}, "beta2 must be at least 0"),
        ("cql", {"temperature": -1.0}, "temperature must be at least 0"),
        ("a2pr", {"vae_weight": -1.0}, "vae_weight must be at least 0"),
    ],
)
def test_out_of_range_hyperparameters(algo, changes, message):
    with pytest.raises(AspcError, match=message):
        check_values(replace_fields(algorithms.default(algo), changes))


def test_boundary_values_are_accepted():
    frozen = {
        "discount": 1.0,
        "tau": 0.0,
        "actor_lr": 0.0,
        "alpha": 0.0,
        "policy_noise": 0.0,
        "critic_hidden_layers": 0,
    }
    check_values(replace_fields(algorithms.default("td3_bc"), frozen))
    check_values(replace_fields(algorithms.default("cql"), {"target_gap": -5.0, "reward_scale": -1.0}))


@pytest.mark.parametrize("algo", algorithms.names())
def test_presets_have_valid_values(algo):
    for preset, found in presets.presets_of(algo).items():
        for dataset in found.by_dataset or ("any",):
            check_values(replace_fields(algorithms.default(algo), presets.overrides(algo, dataset, preset)))


# -- algorithms as objects ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ramped(BC):
    """A user-defined algorithm."""

    spread: float = 0.5
    widths: tuple[int, ...] = (16, 16)
    limit: float | str = "none"
    ramp_horizon: Horizon = 1_000


@dataclass
class Mutable:
    batch_size: int = 16


@pytest.mark.parametrize(
    ("algo", "changes", "message"),
    [
        (Ramped, {}, r"algo is a class, not an instance; pass Ramped\(\)"),
        (Mutable(), {}, r"algo must be a frozen dataclass: write @dataclass\(frozen=True\) above Mutable"),
        (AdaptiveScale(base=TD3BC), {}, r"base is a class, not an instance; pass TD3BC\(\)"),
        (Ramped(spread="a"), {}, "spread must be of type float, not 'a'"),
        (AdaptiveScale(base=TD3BC(batch_size=0.5)), {}, "batch_size must be of type int, not 0.5"),
        (TD3BC(discount=1.5), {}, "discount must be between 0 and 1"),
        (
            Ramped(ramp_horizon=77),
            {},
            r"ramp_horizon cannot be set directly: it always equals the length of the run\. Pass horizon=",
        ),
        (
            AdaptiveScale(base=IQL(lr_horizon=77)),
            {},
            "lr_horizon cannot be set directly: it always equals the length of the run",
        ),
        ("td3_bc", {"bc": "advantage_weighted"}, "bc= has been removed.*td3_bc_aw"),
        (TD3BC(), {"preset": "corl"}, "preset requires the name of an algorithm"),
    ],
)
def test_invalid_algorithm_objects(algo, changes, message, tmp_path):
    with pytest.raises(AspcError, match=message):
        aspc.train(make_dataset(), algo, out=tmp_path / "run", env=None, steps=80, quiet=True, **changes)
    assert not (tmp_path / "run").exists()


def test_fields_of_objects_are_coerced():
    assert coerce_fields(Ramped(spread=1, widths=[8], limit=0.5)) == Ramped(spread=1.0, widths=(8,), limit=0.5)
    assert isinstance(coerce_fields(AdaptiveScale(base=TD3BC(alpha=3))).base.alpha, float)


def test_horizon_option_takes_precedence_over_an_object(tmp_path):
    made = Ramped(ramp_horizon=77, batch_size=16, actor_hidden_dim=16)
    short = {"env": None, "steps": 40, "log_every": 40, "quiet": True, "tensorboard": False}
    run = aspc.train(make_dataset(), made, out=tmp_path / "run", horizon=50, **short)
    assert run.config.hyperparameters["ramp_horizon"] == 50
    same = dataclasses.replace(made, ramp_horizon=40)  # the value that it would be set to
    assert aspc.train(make_dataset(), same, out=tmp_path / "same", **short).result["steps"] == 40


def test_settings_apply_in_any_order():
    given = {"scale_mode": "linear", "base": {"alpha": 3.0}, "scale_target": 5.0, "base.tau": 0.1, "discount": 0.9}
    for settings in (given, dict(reversed(given.items()))):
        algorithm = replace_fields(algorithms.default("aspc"), settings)
        assert (algorithm.scale_mode, algorithm.scale_target) == ("linear", 5.0)
        assert (algorithm.base.alpha, algorithm.base.tau, algorithm.base.discount) == (3.0, 0.1, 0.9)


def test_data_of_another_type_is_refused(tmp_path):
    with pytest.raises(AspcError, match=r"a Dataset \(for arrays: aspc\.data\.Dataset\.from_arrays\), not dict"):
        aspc.train({"observations": np.zeros((4, 2))}, out=tmp_path / "run", **SHORT)


def test_defaults_of_every_algorithm_are_valid():
    for name in algorithms.names():
        check_values(algorithms.default(name))


def test_nonfinite_numbers_survive_json(tmp_path):
    content = {"a": float("nan"), "b": [float("-inf"), np.float32("inf"), 1.5], "c": {"d": (2, None)}}
    write_json(tmp_path / "x.json", content)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": "nan",
        "b": ["-inf", "inf", 1.5],
        "c": {"d": [2, None]},
    }
    back = replace_fields(algorithms.default("aspc"), {"scale_target": "nan", "ema": "inf"})
    assert back.scale_target is algorithms.default("aspc").scale_target  # NaN: only the same object is equal
    assert back.ema == np.inf
    with pytest.raises(AspcError, match="ema must be of type float"):
        replace_fields(back, {"ema": "0.5"})


# -- data ----------------------------------------------------------------------------------------------------


def test_constant_returns_cannot_be_normalized():
    one = make_dataset(rows=50, terminals=np.zeros(50, bool))
    with pytest.raises(AspcError, match=r'all episodes have the same return.*"standardize"'):
        prepared_rewards(one, BC(reward_transform="return_range"))


def test_return_range_uses_complete_episodes():
    ends = np.isin(np.arange(603), np.arange(49, 600, 50))
    cut = make_dataset(rows=603, timeouts=ends, terminals=np.zeros(603), rewards=np.arange(603) // 50 + 1.0)
    how = BC(reward_transform="return_range")  # returns from 50 to 600, and an incomplete episode
    np.testing.assert_allclose(prepared_rewards(cut, how)[0], 1000 / (600 - 50), rtol=1e-6)


def test_discount_zero_packs_finite_rows():
    transitions = make_dataset().transitions(discount=0.0)
    rows = pack(transitions, Layout(4, 2, False), ObservationNormalizer.identity(4), 0.0)
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[:, 7], 1 - transitions.terminals)


def test_score_uses_the_reference_of_its_environment():
    data = make_dataset(env="maze2d-umaze", ref_min=0.0, ref_max=10.0)
    assert score_of(data, "maze2d-umaze")(5.0) == score_of(data, Counting)(5.0) == 50.0
    assert score_of(data, "maze2d-large")(5.0) == envs.normalized_score("maze2d-large", 5.0) != 50.0
    assert score_of(data, "Pendulum-v1")(5.0) is None


def test_negative_rewards_give_a_warning(tmp_path, capsys):
    """All rewards of the tiny dataset are negative."""
    warning = "warning: no reward is above 0: untried actions"
    for algo, changes, warned in (
        ("td3_bc", {}, True),
        ("td3_bc", {"reward_shift": 100.0}, False),
        ("bc", {}, False),
    ):
        settings = {k: v for k, v in {**SHORT, **changes}.items() if algo != "bc" or "critic" not in k}
        aspc.train(make_dataset(), algo, out=tmp_path / f"{algo}{warned}", env=None, **{**settings, "quiet": False})
        assert (warning in capsys.readouterr().err) == warned
