"""`aspc assess`: held-out episodes, KPI columns, verdict rules, selection, the page, and errors."""

from __future__ import annotations

import dataclasses
import html
import json

import numpy as np
import pytest

import aspc
from aspc import data
from aspc.__main__ import main
from aspc.assessment.assess import assess
from aspc.assessment.assess_options import AssessOptions
from aspc.assessment.combination import CombinedDifference
from aspc.assessment.evidence import REWARD
from aspc.assessment.held_out_episodes import held_out_episodes, row_hashes
from aspc.assessment.kpi_columns import kpi_columns
from aspc.assessment.support import LoggedNeighbors
from aspc.assessment.verdict import decide
from aspc.policy import load_policy
from tiny import make_dataset

QUICK = ["--steps", "20", "--model-steps", "20", "--hidden-dim", "8", "--batch-size", "16", "--rollouts", "4"]
OPTIONS = AssessOptions(steps=20, model_steps=20, hidden_dim=8, batch_size=16, rollouts=4)
HOSTILE = "run$x_{<script>"


def write_table(path, dataset, **extra):
    """Write a dataset as a CSV table with more columns."""
    columns = {
        **{f"obs_{i}": dataset.observations[:, i] for i in range(dataset.observation_size)},
        **{f"action_{i}": dataset.actions[:, i] for i in range(dataset.action_size)},
        "reward": dataset.rewards,
        "terminal": dataset.terminals.astype(int),
        "timeout": dataset.timeouts.astype(int),
        **extra,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(repr, row)) for row in rows)]) + "\n")
    return str(path)


def train(source, folder, **options):
    settings = {"log_every": 20, "checkpoint_every": 20, "quiet": True, "tensorboard": False, "env": None}
    return aspc.train(source, "bc", out=folder, steps=40, actor_hidden_dim=16, batch_size=16, **settings, **options)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    dataset = make_dataset(1_000)
    energy = np.round(np.abs(dataset.actions).sum(1), 4)
    return write_table(tmp_path_factory.mktemp("logs") / "log.csv", dataset, energy=energy)


@pytest.fixture(scope="module")
def trained(log, tmp_path_factory):
    """Train with held-out episodes, in a folder with a hostile name."""
    return train(log, tmp_path_factory.mktemp("runs") / HOSTILE, holdout=0.3)


@pytest.fixture(scope="module")
def greedy(log, tmp_path_factory):
    """Train on all episodes."""
    return train(log, tmp_path_factory.mktemp("runs") / "greedy")


def load(log):
    return data.load(log)


def refused(capsys, argv):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("aspc: ")
    assert said.count("\n") == 1
    return said


# ---------------------------------------------------------------------------------------------------------------
# Held-out episodes
# ---------------------------------------------------------------------------------------------------------------


def test_only_held_out_episodes_judge(trained, log):
    dataset = load(log)
    found = held_out_episodes([trained.path], dataset, on_training_data=False)
    _, held = dataset.split(0.3, seed=0)
    np.testing.assert_array_equal(dataset.observations[found.rows], held.observations)
    count = len(dataset.episode_lengths)
    assert found.description == f"{round(0.3 * count)} of {count} episodes: those that no policy was trained on"
    assert found.warnings == []


def test_training_data_is_refused(greedy, trained, log, capsys):
    dataset = load(log)
    with pytest.raises(aspc.AspcError, match=r"were used for training.*--holdout 0\.2.*--on-training-data"):
        held_out_episodes([greedy.path], dataset, on_training_data=False)
    with pytest.raises(aspc.AspcError, match="were used for training"):
        held_out_episodes([trained.path, greedy.path], dataset, on_training_data=False)
    assert "were used for training" in refused(capsys, ["assess", str(greedy.path), *QUICK])
    asked = held_out_episodes([greedy.path], dataset, on_training_data=True)
    assert len(asked.rows) == len(dataset)
    assert "trained on" in asked.warnings[0]


def test_new_episodes_of_a_longer_log_judge(greedy, log, tmp_path):
    old, new = load(log), make_dataset(300, seed=7)
    arrays = {
        name: np.concatenate([getattr(old, name), getattr(new, name)])
        for name in ("observations", "actions", "rewards", "terminals", "timeouts")
    }
    last = len(old) - 1
    arrays["timeouts"][last] = not arrays["terminals"][last]
    longer = data.Dataset.from_arrays(**arrays, action_low=-2, action_high=2)
    found = held_out_episodes([greedy.path], longer, on_training_data=False)
    np.testing.assert_array_equal(found.rows, np.arange(len(old), len(longer)))


def test_a_changed_file_is_refused(log, tmp_path):
    copy = write_table(tmp_path / "log.csv", load(log))
    run = train(copy, tmp_path / "run", holdout=0.3)
    changed = write_table(tmp_path / "log.csv", make_dataset(1_000, seed=3))
    with pytest.raises(aspc.AspcError, match="has changed since"):
        held_out_episodes([run.path], load(changed), on_training_data=False)


def test_unknown_training_data_is_noted(tmp_path):
    dataset = make_dataset(1_000)
    run = train(dataset, tmp_path / "run", holdout=0.3)  # arrays, which have no source
    found = held_out_episodes([run.path], dataset, on_training_data=False)
    assert len(found.rows) == len(dataset.split(0.3, seed=0)[1])
    other = held_out_episodes([run.path], make_dataset(300, seed=9), on_training_data=False)
    assert len(other.rows) == 300
    assert "is unknown" in other.warnings[0]


def test_row_hashes_tell_rows_apart():
    dataset = make_dataset(600)
    hashes = row_hashes(dataset)
    assert len(np.unique(hashes)) == 600
    np.testing.assert_array_equal(row_hashes(dataset.select(np.arange(50, 90))), hashes[50:90])
    shifted = dataclasses.replace(dataset, rewards=dataset.rewards + 1)
    assert not np.isin(row_hashes(shifted), hashes).any()


# ---------------------------------------------------------------------------------------------------------------
# KPI columns
# ---------------------------------------------------------------------------------------------------------------


def test_kpi_columns_are_observations_actions_or_other_columns(log):
    dataset, options = load(log), {"key_map": {"rewards": "reward"}}
    found = kpi_columns(["obs_2", "action_1", "energy"], dataset, log, options)
    np.testing.assert_array_equal(found["obs_2"], dataset.observations[:, 2])
    np.testing.assert_array_equal(found["action_1"], dataset.actions[:, 1])
    np.testing.assert_allclose(found["energy"], np.abs(dataset.actions).sum(1), atol=1e-4)
    with pytest.raises(aspc.AspcError, match=r"KPI 'enrgy' cannot be read.*'enrgy'"):
        kpi_columns(["enrgy"], dataset, log, options)
    with pytest.raises(aspc.AspcError, match="has no column 'energy'; choose from action_0"):
        kpi_columns(["energy"], dataset, None, {})
    with pytest.raises(aspc.AspcError, match="always estimated"):
        kpi_columns([REWARD], dataset, log, options)


# ---------------------------------------------------------------------------------------------------------------
# Verdicts
# ---------------------------------------------------------------------------------------------------------------


def support(far):
    dataset = make_dataset(400)
    rows = np.arange(0, 400, 2)
    logged = dataset.scale_actions(dataset.actions[rows])
    is_far = np.arange(len(rows)) < far * len(rows)
    return LoggedNeighbors.of(dataset, rows).measure(np.where(is_far[:, None], 9.0, logged))


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(1, 3, "better"), (-3, -1, "worse"), (-0.5, 2, "not worse"), (-2, 2, "cannot tell"), (np.nan, np.nan, "unknown")],
)
def test_verdict_rules(low, high, kind):
    used = () if kind == "unknown" else ("FQE",)
    combined = CombinedDifference(REWARD, (low + high) / 2, low, high, 0.5, 1.0, 0.0, used)
    inside = decide(combined, support(0.0), margin=0.5, silent={"FQE": "its critics diverged"})
    assert inside.kind == ("cannot tell" if kind == "unknown" else kind)
    assert inside.reason.endswith(".")
    if kind == "unknown":
        assert "its critics diverged" in inside.reason
    outside = decide(combined, support(0.9), margin=0.5, silent={})
    assert outside.kind == "outside the data"
    assert "action" in outside.reason


# ---------------------------------------------------------------------------------------------------------------
# The command and the Python interface
# ---------------------------------------------------------------------------------------------------------------


def test_assessing_a_run(trained, tmp_path, capsys):
    page = tmp_path / "page.html"
    ask = ["assess", str(trained.path), *QUICK, "--kpi", "energy", "--kpi", "obs_1", "--out", str(page)]
    assert main([*ask, "--json"]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    (policy,) = result["policies"]
    assert list(policy["differences"]) == ["reward", "energy", "obs_1"]
    assert policy["verdict"] in ("better", "not worse", "cannot tell", "worse", "outside the data")
    kinds = {"FQE", "doubly robust", "dynamics models", "importance sampling"}
    assert {e["estimator"] for e in policy["estimates"] if e["signal"] == "energy"} == kinds
    assert {e["estimator"] for e in policy["estimates"] if e["signal"] == "reward"} == kinds | {"pessimistic FQE"}
    assert result["calibration"]["systematic_error"] >= 0
    assert result["controller"]["reward"]["spread"] > 0
    shown = page.read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert policy["verdict"].capitalize() in shown
    assert html.escape(policy["reason"], quote=True).replace("&#x27;", "&#39;") in shown
    assert "energy per step" in " ".join(shown.replace("</span>", "").split())
    assert "<script>" not in shown
    assert 'name="viewport"' in shown


def test_text_names_verdict_reason_and_calibration(trained, tmp_path, capsys):
    assert main(["assess", str(trained.path), *QUICK, "--quiet", "--out", str(tmp_path / "page.html")]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    shown = " ".join(output.out.split())
    assert f"{HOSTILE}/seed0: " in shown
    assert "those that no policy was trained on" in shown
    assert "per step" in shown
    assert "calibrated" in shown or "account for a systematic error" in shown


def test_selection_saves_a_policy_or_none(trained, tmp_path, capsys):
    out = ["--quiet", "--out", str(tmp_path / "page.html")]
    folder = tmp_path / "chosen"
    # A margin of the interval that nothing can clear: the level.
    strict = ["assess", str(trained.path), *QUICK, *out, "--level", "0.999999999"]
    assert main([*strict, "--select", str(folder)]) == 1
    assert "selected no policy" in " ".join(capsys.readouterr().out.split())
    assert not folder.exists()
    assert main([*strict, "--select", str(folder), "--select-anyway", "--json"]) == 0
    selected = json.loads(capsys.readouterr().out)["selected"]
    assert selected["overrides"]
    note = load_policy(folder).info["chosen"]
    assert note["overrides"] == selected["overrides"]
    assert note["holdout"] == 0.3
    observations = make_dataset().observations
    np.testing.assert_array_equal(load_policy(folder).act(observations), trained.policy.act(observations))
    # The copy records its data and what was held out, so it can be judged too.
    assert main(["assess", str(folder), *QUICK, *out]) == 0
    assert "those that no policy was trained on" in capsys.readouterr().out


def test_checkpoints_are_judged(trained):
    found = assess(trained, checkpoints=True, options=OPTIONS)
    assert sorted(p.name.split("/")[-1] for p in found.policies) == ["seed0@20", "seed0@40"]


def test_policies_without_runs_are_judged_on_the_data_as_it_is(trained, log):
    _, held = load(log).split(0.3, seed=0)
    found = aspc.assess({"mine": trained.policy}, held, kpis=(), options=OPTIONS)
    assert found.policies[0].name == "mine"
    assert found.episodes.endswith("as given")
    with pytest.raises(aspc.AspcError, match="needs a dataset"):
        aspc.assess({"mine": trained.policy}, options=OPTIONS)


def test_mistakes_give_one_sentence(trained, tmp_path, capsys):
    run = str(trained.path)
    assert "at least one" in refused(capsys, ["assess"])
    assert "has no effect without --select" in refused(capsys, ["assess", run, "--select-anyway"])
    assert "even number" in refused(capsys, ["assess", run, "--critics", "3"])
    assert "--level" in refused(capsys, ["assess", run, "--level", "1"])
    assert "--margin" in refused(capsys, ["assess", run, "--margin", "-1"])
    assert "ends in .html" in refused(capsys, ["assess", run, "--out", str(tmp_path / "page.csv")])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "already exists" in refused(capsys, ["assess", run, "--select", str(tmp_path / "full")])
    short = write_table(tmp_path / "short.csv", make_dataset(100, seed=4, terminals=np.zeros(100)))
    assert "at least 4 are required" in refused(capsys, ["assess", run, "--dataset", short, "--quiet", *QUICK])
