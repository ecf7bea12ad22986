"""Evaluation in environments: sizes, endless episodes, workers and their messages."""

from __future__ import annotations

import io
import os
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest

import aspc
from aspc import envs
from aspc.envs.make import DEFAULT_HORIZON
from aspc.errors import AspcError
from aspc.training import evaluation, rollout_worker
from aspc.training.evaluation import Evaluator
from policies import policy_named
from tiny import TINY, Counting, make_dataset

SHORT = {**TINY, "steps": 80, "log_every": 40, "eval_every": 40, "quiet": True, "tensorboard": False}


class Endless(Counting):
    """Episodes that never end."""

    def step(self, action):
        observation, reward, *_, info = super().step(action)
        return observation, reward, False, False, info


def test_environment_of_another_size_is_refused_before_training(tmp_path):
    for env in ("Pendulum-v1", "hopper-medium-v2"):
        with pytest.raises(AspcError, match=r"but the data has 4 and 2\. Choose another environment \(--env\)"):
            aspc.train(make_dataset(), "td3_bc", out=tmp_path / "run", env=env, **SHORT)
    assert not (tmp_path / "run").exists()
    wide = policy_named("td3_bc")  # five observation dimensions
    with pytest.raises(AspcError, match="The environment has observation size 4"):
        rollout_worker.rollouts("", wide, [0], {"": [Counting()]})


def test_endless_episodes_are_cut(monkeypatch):
    class Idle:
        observation_size, action_size = 4, 2

        def noise(self):
            return {}

        def initial_memory(self, batch):
            return np.zeros((batch, 0))

        def step(self, observations, memory):
            return np.zeros((len(observations), 2)), memory

        def check_actions(self, actions):
            assert np.isfinite(actions).all()

    monkeypatch.setattr(rollout_worker, "MAX_EPISODE_STEPS", 50)
    with pytest.raises(AspcError, match=r"not ended after 50 steps.*TimeLimit"):
        rollout_worker.rollouts("", Idle(), [0, 1], {"": [Endless(), Endless()]})
    gym.register("NeverEnding-v0", entry_point=Endless)
    env = envs.make_env("NeverEnding-v0")
    env.reset(seed=0)
    ends = [env.step(np.zeros(2))[3] for _ in range(DEFAULT_HORIZON)]
    assert ends.index(True) == DEFAULT_HORIZON - 1
    monkeypatch.setattr(rollout_worker, "MAX_EPISODE_STEPS", 10**12)
    with Evaluator(Endless) as evaluator:  # closing it stops the episodes
        pending = evaluator.evaluate(Idle(), [0])  # type: ignore[arg-type]
    assert pending.done()


@pytest.mark.parametrize("ended", ["while it waits for the worker", "before the worker has the job"])
def test_abandoned_evaluation_is_not_retried(monkeypatch, ended):
    started, calling, ending = [], threading.Event(), threading.Event()
    start, call, sends = evaluation.WorkerProcess._start, evaluation.WorkerProcess.call, evaluation.send
    monkeypatch.setattr(evaluation.WorkerProcess, "_start", lambda self: (started.append(self), start(self))[1])
    if ended == "while it waits for the worker":
        monkeypatch.setattr(evaluation, "send", lambda *args: (sends(*args), calling.set())[0])
    else:

        def slow_call(self, job, timeout):
            calling.set()
            assert ending.wait(600)
            return call(self, job, timeout)

        monkeypatch.setattr(evaluation.WorkerProcess, "call", slow_call)

    with Evaluator("maze2d-umaze", workers=1) as evaluator:
        worker = evaluator._workers[0]
        stop = worker.stop
        monkeypatch.setattr(worker, "stop", lambda: (stop(), ending.set())[0])
        os.kill(worker.process.pid, signal.SIGSTOP)
        pending = evaluator.evaluate(Counting, [0], env="maze2d-umaze")  # type: ignore[arg-type]
        assert calling.wait(600)
    assert len(started) == 1
    with pytest.raises(evaluation.WorkerFailed):
        pending.result()


class Closing(Counting):
    """Counts how often it is created and closed."""

    made, closed = 0, 0

    def __init__(self):
        type(self).made += 1

    def close(self):
        type(self).closed += 1


def test_environments_of_a_function_are_reused_and_closed():
    policy = policy_named("td3_bc", obs=4, act=2)
    with Evaluator(Closing) as evaluator:
        first = [evaluator.evaluate(policy, [1, 2, 3]).result() for _ in range(2)]
        assert (Closing.made, Closing.closed) == (3, 0)
    assert Closing.closed == 3
    assert first[0].to_row(lambda value: value) == first[1].to_row(lambda value: value)


def test_truncated_message_raises_eof():
    stream = io.BytesIO()
    rollout_worker.send(stream, ("episodes", [1.0] * 100))
    whole = stream.getvalue()
    assert rollout_worker.receive(io.BytesIO(whole))[0] == "episodes"
    for length in (0, 4, 8, len(whole) - 1):
        with pytest.raises(EOFError):
            rollout_worker.receive(io.BytesIO(whole[:length]))
