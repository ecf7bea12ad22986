"""Optional loggers, with the real packages if they are installed, in local folders only."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import aspc
from aspc.errors import AspcError
from tiny import TINY, Counting

SHORT = {**TINY, "steps": 80, "log_every": 40, "eval_every": 40, "eval_episodes": 2, "tensorboard": False}
SHORT |= {"algo": "td3_bc", "quiet": True, "env": Counting}


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_a_missing_logger_is_reported_before_training(logger, tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, logger, None)  # as if it were not installed
    with pytest.raises(AspcError, match=r"pip install 'aspc\[loggers\]'"):
        aspc.train(tiny, out=tmp_path / "run", logger=logger, **SHORT)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_mlflow_logs_the_curves_and_settings_of_every_seed(tiny, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra `loggers` is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = aspc.train(tiny, out=tmp_path / "run", logger="mlflow", seeds=[0, 1], **SHORT)
    aspc.train(tiny, resume=run.path, steps=120, env=Counting, quiet=True)
    client = mlflow.MlflowClient()
    logged = client.search_runs([client.get_experiment_by_name("aspc").experiment_id])
    assert sorted(one.data.params["seed"] for one in logged) == ["0", "1"]  # continued, not restarted
    (first,) = [one for one in logged if one.data.params["seed"] == "0"]
    assert first.data.params["alpha"] == "2.5"
    assert first.info.status == "FINISHED"
    history = {m.step: m.value for m in client.get_metric_history(first.info.run_id, "train/critic_loss")}
    ours = run.metrics["critic_loss"][run.metrics["seed"] == 0]
    np.testing.assert_allclose([history[step] for step in (40, 80, 120)], ours)
    returns = {m.step: m.value for m in client.get_metric_history(first.info.run_id, "evaluation/return_mean")}
    assert sorted(returns) == [40, 80, 120]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_wandb_logs_the_curves_of_every_seed(tiny, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the extra `loggers` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    begun, ends, init = [], {}, wandb.init

    def recording_init(**options):
        run = init(**options)
        finish = run.finish

        def record_summary():
            ends[run.name] = dict(run.summary)
            finish()

        run.finish = record_summary
        begun.append(run)
        return run

    monkeypatch.setattr(wandb, "init", recording_init)
    run = aspc.train(tiny, out=tmp_path / "run", logger="wandb", seeds=[0, 1], **SHORT)
    assert [one.name for one in begun] == ["run/seed0", "run/seed1"]
    assert len(list((run.path / "wandb").glob("offline-run-*/*.wandb"))) == 2
    for one, seed in zip(begun, (0, 1), strict=True):
        assert one.config["seed"] == seed
        assert one.config["alpha"] == 2.5
        ours = run.metrics["critic_loss"][run.metrics["seed"] == seed]
        end = ends[one.name]
        np.testing.assert_allclose(end["train/critic_loss"], ours[-1], rtol=1e-6)
        assert end["step"] == 80
        assert np.isfinite(end["evaluation/return_mean"])


def test_loggers_are_callbacks_with_one_log_per_run(tiny, tmp_path, monkeypatch):
    """With stand-ins for the packages; Weights & Biases and MLflow log the same values."""
    logs: dict[str, dict] = {}

    def init(**options):
        values = logs.setdefault(options["name"], {"config": options["config"], "values": [], "ended": False})
        return SimpleNamespace(
            define_metric=lambda *names, **more: None,
            log=values["values"].append,
            finish=lambda: values.update(ended=True),
        )

    wandb = SimpleNamespace(init=init, Settings=lambda **options: None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run = aspc.train(tiny, out=tmp_path / "run", logger="wandb", seeds=[0, 1], **SHORT)
    assert list(logs) == ["run/seed0", "run/seed1"]
    for seed, log in enumerate(logs.values()):
        assert (log["config"]["seed"], log["config"]["alpha"], log["ended"]) == (seed, 2.5, True)
        losses = [values["train/critic_loss"] for values in log["values"] if "train/critic_loss" in values]
        assert losses == list(run.metrics["critic_loss"][run.metrics["seed"] == seed])
        assert [values["step"] for values in log["values"] if "evaluation/return_mean" in values] == [40, 80]

    client = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda: client))
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=lambda *values: values))
    run = aspc.train(tiny, out=tmp_path / "other", logger="mlflow", seeds=[0, 1], **SHORT)
    assert sorted(client.ended) == client.created == ["other/seed0", "other/seed1"]
    for seed, name in enumerate(client.created):
        assert client.params[name]["alpha"] == 2.5
        losses = [value for metric, value, _, _ in client.metrics[name] if metric == "train/critic_loss"]
        assert losses == list(run.metrics["critic_loss"][run.metrics["seed"] == seed])


class FakeMlflow:
    """A client of MLflow whose runs are lists."""

    def __init__(self):
        self.created, self.ended, self.params, self.metrics = [], [], {}, {}

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "0"

    def search_runs(self, experiments, query):
        return []

    def create_run(self, experiment, tags, run_name):
        self.created.append(run_name)
        self.params[run_name], self.metrics[run_name] = {}, []
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_param(self, run, name, value):
        self.params[run][name] = value

    def log_batch(self, run, metrics):
        self.metrics[run] += metrics

    def set_terminated(self, run):
        self.ended.append(run)
