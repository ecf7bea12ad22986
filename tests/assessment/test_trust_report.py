"""The trust report: its quantities by hand and by brute force, and the page of runs with and without critics."""

from __future__ import annotations

import dataclasses
import html
import json
import shutil

import numpy as np
import pytest
from matplotlib.figure import Figure

import aspc
from aspc.__main__ import main
from aspc.assessment import critic_convergence, trust_measures, trust_page
from aspc.assessment.inspected_policy import InspectedPolicy
from aspc.assessment.trained_runs import dataset_of
from aspc.assessment.trust_checks import (
    TrustCheck,
    check_saturation,
    check_theory,
    check_values,
    evaluate_theory,
    grade,
)
from aspc.assessment.trust_page import draw_pictures, render_page
from aspc.assessment.trust_report import TrustReport, assess_policy
from aspc.cli.inspect import format_report
from aspc.data.diagnostics import find_warnings, saturation
from tiny import TINY, make_dataset

# ---------------------------------------------------------------------------------------------------------------
# Quantities
# ---------------------------------------------------------------------------------------------------------------


def test_nearest_neighbors_match_brute_force():
    rng = np.random.default_rng(0)
    queries, references = rng.normal(size=(300, 3)), rng.normal(size=(500, 3))
    indices, distances = trust_measures.nearest_neighbors(queries, references, 4)
    apart = np.linalg.norm(queries[:, None] - references[None], axis=-1)
    np.testing.assert_array_equal(indices, np.argsort(apart, axis=1)[:, :4])
    np.testing.assert_allclose(distances, np.sort(apart, axis=1)[:, :4], atol=1e-6)


def test_a_state_is_not_its_own_neighbor():
    points = np.asarray([[0.0], [1.0], [3.0], [7.0]])
    rows = np.arange(4)
    indices, distances = trust_measures.nearest_neighbors(points, points, 1, ids=(rows, rows))
    np.testing.assert_array_equal(indices[:, 0], [1, 0, 1, 2])
    np.testing.assert_allclose(distances[:, 0], [1, 1, 2, 4])
    everyone, _ = trust_measures.nearest_neighbors(points, points, 10, ids=(rows, rows))
    assert everyone.shape == (4, 3)


def test_distance_to_the_nearest_neighbors_action():
    actions = np.asarray([[0.0, 0.0], [0.5, 0.5]])
    neighbors = np.asarray([[[0.3, 0.4], [1.0, 0.0]], [[0.5, 0.5], [-1.0, -1.0]]])
    found = trust_measures.nearest_action_distances(actions, neighbors)
    np.testing.assert_allclose(found.total, [0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.by_dimension, [[0.3, 0.4], [0.0, 0.0]], atol=1e-12)


def test_fraction_beyond_is_5_percent_for_the_data_itself():
    data = np.random.default_rng(0).exponential(size=10_000)
    assert trust_measures.fraction_beyond(data, data) == pytest.approx(0.05, abs=1e-3)
    assert trust_measures.fraction_beyond(data + 100, data) == 1.0


def test_saturation_counts_both_bounds():
    data = make_dataset(action_low=-1, action_high=1)
    actions = np.asarray([[1.0, 0.0], [-1.0, 0.5], [0.0, 0.9995], [0.99, -0.2]])
    np.testing.assert_allclose(saturation(data, actions), [0.5, 0.25])
    pinned = dataclasses.replace(data, action_low=np.float32([-1, 1]), action_high=np.float32([1, 1.0000001]))
    np.testing.assert_allclose(saturation(pinned, actions), [0.5, 0])


def test_calibration_by_hand():
    found = trust_measures.measure_calibration(np.asarray([3.0, 5.0, 10.0]), np.asarray([1.0, 3.0, 5.0]))
    assert found.mean_q == 6
    assert found.bias == 3
    assert found.bias_in_stds == pytest.approx(3 / np.sqrt(8 / 3))
    assert found.correlation == pytest.approx(14 / np.sqrt(26 * 8))
    assert found.above_best == pytest.approx(1 / 3)
    flat = trust_measures.measure_calibration(np.asarray([1.0, 2.0]), np.asarray([4.0, 4.0]))
    assert np.isnan(flat.correlation)
    assert np.isnan(flat.bias_in_stds)


def test_impossible_values_and_disagreement():
    assert trust_measures.fractions_outside(np.asarray([-1.0, 0.0, 10.05, 12.0]), (0.0, 10.0)) == (0.25, 0.25)
    spread = trust_measures.critic_std(np.asarray([[1.0, 5.0, 2.0], [3.0, 5.0, 8.0]]))
    np.testing.assert_allclose(spread, [1, 0, 3])
    np.testing.assert_array_equal(trust_measures.largest_indices(spread, 2), [2, 0])


def test_verdict_names_the_worst_first():
    def verdict(*levels):
        return TrustReport([], [TrustCheck(level, f"part {i}", "") for i, level in enumerate(levels)], {}).verdict

    assert verdict("good", "worry", "look") == "Before you rely on this policy, examine: part 1, part 2."
    assert verdict("good", "look") == "No alarms, but examine: part 1."
    assert verdict("good", "unknown") == "No problems found. Not checked: part 1. This is not a guarantee."
    assert verdict("good") == "No problems found. This is not a guarantee."
    assert [grade(x, (0.1, 0.5)) for x in (0.1, 0.5, 0.6)] == ["good", "look", "worry"]


# ---------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=alert(1)>&$x_{"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    data = make_dataset(name="log")
    path = tmp_path_factory.mktemp("inspect") / "log.npz"
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    np.savez(path, **{name: getattr(data, name) for name in names})
    return path


@pytest.fixture(scope="module")
def run(log):
    """Two seeds of TD3+BC in a folder with a hostile name."""
    options = {"log_every": 40, "quiet": True, "tensorboard": False, "env": None}
    return aspc.train(str(log), "td3_bc", out=log.parent / HOSTILE, steps=40, seeds=[3, 4], **options, **TINY)


def test_page_and_numbers_of_a_run(run, tmp_path, capsys):
    page = tmp_path / "trust.html"
    assert main(["inspect", str(run.path), "--seed", "4", "--states", "200", "--json", "--out", str(page)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [f["about"] for f in result["findings"]] == [
        "distance from the data",
        "saturation",
        "convergence of the critics",
        "disagreement of the critics",
        "theory",
    ]
    assert all(f["level"] != "unknown" for f in result["findings"])
    numbers = result["numbers"]
    worst = numbers["disagreeing"]["worst"]
    assert len(worst) == 10
    assert all(min(state["row"], state["step"], state["episode"]) >= 1 for state in worst)
    assert numbers["theory"]["theory_prop1_upper"] <= 1
    assert 0 < numbers["values"]["states_with_return"] <= 200
    shown = page.read_text()
    assert HOSTILE not in shown
    assert html.escape(HOSTILE) in shown
    assert html.escape(result["verdict"]) in shown
    assert shown.count("data:image/png;base64,") == 6
    assert "http" not in shown.replace("http-equiv", "")


def test_critics_are_those_of_the_policys_checkpoint(run):
    """The actor of the restored state acts like the saved policy."""
    inspected = InspectedPolicy.load(run.path / "policy" / "seed4", dataset_of([run.path], None, {}), 50)
    rows = (inspected.observations - inspected.policy.observation_mean) / inspected.policy.observation_std
    np.testing.assert_allclose(inspected.state.actor(rows), inspected.actions, atol=1e-5)
    assert inspected.critics(inspected.observations, inspected.logged_actions).shape == (2, 50)
    assert inspected.trained.same_data
    columns = evaluate_theory(inspected)
    assert np.std(columns["theory_delta_q"]) > 0  # the batches differ


def test_saturation_agrees_with_the_summary_of_the_data(run):
    """Only few of the rows are sampled."""
    log = dataclasses.replace(dataset_of([run.path], None, {}), action_names=("valve [%]", "fan"))
    (warning,) = [text for text in find_warnings(log) if text.startswith("actions are at a bound")]
    inspected = InspectedPolicy.load(run.path / "policy" / "seed4", log, 20)
    stuck = dataclasses.replace(inspected, actions=np.ones_like(inspected.actions))
    found = check_saturation(stuck)
    assert f"dimension 1 (valve [%]) in {100 * found.numbers['data'][0]:.0f} % of the rows" in warning
    assert found.check.text.startswith("Dimension 2 is at a bound in 100 % of the states (22 % in the data)")
    policy = dataclasses.replace(stuck.policy, info={"action_names": ["valve [%]", "fan"]})
    named = check_saturation(dataclasses.replace(stuck, policy=policy))
    assert named.check.text.startswith("Dimension 2 (fan) is at a bound in 100 % of the states")


def test_actions_are_drawn_with_names_units_and_values(run, monkeypatch):
    """No chart is empty, and actions have names and the units of the user."""
    drawn = []

    def draw(function, subject):
        drawn.append(Figure())
        function(drawn[-1], subject)
        return ""

    monkeypatch.setattr(trust_page, "draw_png", draw)
    data = dataset_of([run.path], None, {})
    report = assess_policy(InspectedPolicy.load(run.path / "policy" / "seed4", data, 50))
    arrays = {**report.arrays, "action_low": np.float32([0, 7.5]), "action_high": np.float32([100, 7.5000005])}
    arrays |= {"policy_by_dimension": np.full((50, 2), 0.25), "saturation": np.zeros((2, 2))}
    named = dataclasses.replace(report, arrays=arrays, action_names=("valve [%]", "$x_{$ [m/s]"))
    captions = [picture.caption for picture in draw_pictures(named, data.observations[:50])]
    assert not any("at a bound" in caption for caption in captions)  # no action is
    (bars,) = [f for f, caption in zip(drawn, captions, strict=True) if caption.startswith("Mean of this distance")]
    assert [label.get_text() for label in bars.axes[0].get_yticklabels()] == ["valve", "$x_{$"]
    texts = [text.get_text() for text in bars.axes[0].texts]
    assert texts[0] == "12.5 %"  # of the policy's valve, then its other action, then the data
    assert len(texts) == 4
    assert texts[1].endswith(" m/s")
    (panels,) = [f for f, caption in zip(drawn, captions, strict=True) if caption.startswith("Actions of the policy")]
    assert [(axes.get_title(), axes.get_xlabel()) for axes in panels.axes] == [("valve", "%"), ("$x_{$", "")]
    assert panels.axes[0].get_xlim()[1] > 50
    assert [text.get_text() for text in panels.axes[1].texts] == ["always 7.5"]


def test_actions_use_the_bounds_of_the_policy(run):
    data = dataset_of([run.path], None, {})
    folder = run.path / "policy" / "seed4"
    for factor in (0.5, 3.0):
        other = dataclasses.replace(data, action_low=factor * data.action_low, action_high=factor * data.action_high)
        inspected = InspectedPolicy.load(folder, other, 50)
        np.testing.assert_array_equal(inspected.actions, InspectedPolicy.load(folder, data, 50).actions)
        np.testing.assert_array_equal(inspected.logged_actions, InspectedPolicy.load(folder, data, 50).logged_actions)


def test_rising_critics_are_not_an_over_estimation(tmp_path):
    data = make_dataset(rewards=np.linspace(1, 3, 600), terminals=np.zeros(600, bool), action_names=["valve", "fan"])
    options = {"log_every": 40, "quiet": True, "tensorboard": False, "env": None}
    short = aspc.train(data, "td3_bc", out=tmp_path / "run", steps=40, **options, **TINY)
    inspected = InspectedPolicy.load(short.path / "policy" / "seed0", data, 100)
    report = assess_policy(inspected)
    (check,) = [c for c in report.checks if c.topic == "convergence of the critics"]
    assert check.level == "look"
    assert (
        "In 0.0 % of the states, Q(s, π(s)) is above the possible range for the logged rewards, "
        "and in 100.0 % it is below"
    ) in check.text
    assert "Critics 1 and 2 of seed 0 have not converged" in check.text
    assert report.action_names == ("valve", "fan")
    hostile = dataclasses.replace(report, action_names=("$x_{$", "fan"))  # not a formula
    assert "data:image/png;base64," in render_page(hostile, data.observations[:100])
    for names in (3, ["valve"], ["valve", 3]):
        policy = dataclasses.replace(inspected.policy, info={"action_names": names})
        assert dataclasses.replace(inspected, policy=policy).action_names == ()


SHORT = {"log_every": 200, "eval_every": 200, "quiet": True, "tensorboard": False, "env": None, "seeds": [3]}


def values_of(data, folder, steps, **options):
    run = aspc.train(data, "td3_bc", out=folder, steps=steps, **SHORT, **TINY, **options)
    return check_values(InspectedPolicy.load(run.path / "policy" / "seed3", data, 300))


@pytest.mark.parametrize(("steps", "shift"), [(100, 100.0), (100, -100.0), (2_000, 100.0)])
def test_critics_of_a_short_run_have_not_converged(tmp_path, steps, shift):
    """Shifted rewards move Q far from its initial value near 0, in either direction."""
    result = values_of(make_dataset(), tmp_path / "run", steps, reward_shift=shift)
    assert result.check.topic == "convergence of the critics"
    assert result.check.text.startswith("Critics 1 and 2 of seed 3 have not converged: Q of logged actions is ")
    assert "over-estimation" not in result.check.text
    first, second = result.numbers["critics"]
    assert (first["critic"], second["critic"], result.numbers["seed"]) == (1, 2, 3)
    for critic in (first, second):
        assert not critic["converged"]
        assert critic["fixed_point"] * np.sign(shift) > 10 * abs(critic["mean_q"])
    change = result.numbers["change_of_q"]
    assert (change is None) == (steps == 100)
    assert ("in the last quarter of training" in result.check.text) == (steps == 2_000)


def test_converged_critics_are_neither_too_high_nor_too_low(tmp_path):
    data = make_dataset(2_000)
    result = values_of(data, tmp_path / "run", 4_000, discount=0.9, tau=0.02, critic_lr=3e-3, reward_shift=5.0)
    assert result.check.topic == "values of the critics"
    assert result.check.level == "good"
    assert "converged" not in result.check.text
    assert all(critic["converged"] for critic in result.numbers["critics"])
    assert abs(result.numbers["change_of_q"]) < 0.05
    low = dataclasses.replace(data, rewards=data.rewards + 50)  # the same critics, judged against higher returns
    inspected = InspectedPolicy.load(tmp_path / "run" / "policy" / "seed3", low, 300)
    assert check_values(inspected).check.topic == "under-estimation"
    high = dataclasses.replace(data, rewards=data.rewards - 50)
    inspected = InspectedPolicy.load(tmp_path / "run" / "policy" / "seed3", high, 300)
    result = check_values(inspected)
    assert (result.check.topic, result.check.level) == ("over-estimation", "worry")


def test_distance_to_the_fixed_point_by_hand():
    """With γ = 0.5, reward 1 and no end, Q = 2: critics at 0 and 1 use the lower one as target."""
    q = np.asarray([[0.0, 0.0], [1.0, 1.0]])
    rewards, masks = np.ones(2), np.ones(2)
    np.testing.assert_allclose(critic_convergence.distances_to_fixed_point(q, q, rewards, masks, 0.5), [2, 0])
    ends = critic_convergence.distances_to_fixed_point(q, q, rewards, np.zeros(2), 0.5)
    np.testing.assert_allclose(ends, [1, 0])


def test_the_logged_change_of_q_takes_precedence():
    def found(distances, change):
        return critic_convergence.find_unconverged(np.asarray([10.0, 10.0]), np.asarray(distances), change, 1.0)

    assert found([90.0, 1.0], None) == [0]
    assert found([90.0, 90.0], 0.01) == []  # another fixed point, as that of a conservative critic
    assert found([90.0, 0.1], 0.2) == [0]
    assert found([-5.0, -5.0], 0.2) == []
    assert found([np.nan, 0.0], 0.01) == [0]
    steps = np.arange(100, 2_001, 100)
    assert critic_convergence.relative_change(steps, steps / 2_000) == pytest.approx(0.25)
    assert critic_convergence.relative_change(steps, np.ones(20)) == 0
    assert critic_convergence.relative_change(steps[:5], np.ones(5)) is None
    assert critic_convergence.relative_change(steps[::10], np.ones(2)) is None


def test_unknown_checks_are_reported(run, log, tmp_path, capsys):
    lone = tmp_path / "lone"
    shutil.copytree(run.path / "policy" / "seed3", lone)
    out = ["--states", "100", "--quiet", "--out", str(tmp_path / "t.html")]
    assert main(["inspect", str(lone), "--dataset", str(log), *out]) == 0
    shown = capsys.readouterr().out
    assert "not in the folder of a run" in " ".join(shown.split())
    assert f"policy          {lone}\n" in shown  # the path as it was given
    assert "Not checked: values of the critics" in shown or "examine" in shown
    options = {"log_every": 20, "quiet": True, "tensorboard": False, "env": None}
    small = {"actor_hidden_dim": 16, "batch_size": 16}
    no_q = aspc.train(make_dataset(seed=1), "bc", out=tmp_path / "bc", steps=40, seeds=[0, 1], **options, **small)
    assert main(["inspect", str(no_q.path), "--dataset", str(log), *out]) == 0
    shown = capsys.readouterr().out
    assert "bc learns no Q-function" in shown
    assert "not exactly those" in shown


def test_theory_falls_back_to_the_logged_monitor(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    shutil.rmtree(copy / "checkpoints")
    dataset = dataset_of([copy], None, {})
    inspected = InspectedPolicy.load(copy / "policy" / "seed3", dataset, 20)
    assert check_theory(inspected).check.level == "unknown"
    assert "no checkpoint of step 40" in check_values(inspected).check.text
    header, *rows = "step,seed,theory_delta_q,theory_kappa_star", "20,3,0.5,0.25", "20,4,9,9", "40,3,nan,nan"
    (copy / "metrics.csv").write_text("\n".join([header, *rows]) + "\n")
    result = check_theory(inspected)
    assert result.numbers == {"theory_delta_q": 0.5, "theory_kappa_star": 0.25}
    assert result.check.level == "good"


def test_mistakes_give_one_sentence(run, log, tmp_path, capsys):
    def refused(*argv):
        assert main(["inspect", *argv]) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        return said[0]

    assert "no policy" in refused(str(tmp_path))
    assert "no policy for seed 9" in refused(str(run.path), "--seed", "9")
    assert "at least 1" in refused(str(run.path), "--states", "0")
    assert "cannot be written" in refused(str(run.path), "--out", f"{log}/trust.html")
    lone = tmp_path / "lone"
    shutil.copytree(run.path / "policy" / "seed3", lone)
    assert "--dataset" in refused(str(lone))
    other = tmp_path / "other.npz"
    data = make_dataset(obs=3)
    np.savez(other, **{k: getattr(data, k) for k in ("observations", "actions", "rewards", "terminals", "timeouts")})
    assert "4 observation" in refused(str(run.path), "--dataset", str(other))


def test_terminal_output_has_no_control_characters():
    report = TrustReport([("policy", "a\x1b[2J")], [TrustCheck("look", "x", "y\x07 z")], {})
    assert "\x1b" not in format_report(report)
    assert "\x07" not in format_report(report)
