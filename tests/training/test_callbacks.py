"""Callbacks: the order and the content of their events, early stops, failures, and the option --callback."""

from __future__ import annotations

import ast
import math
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import aspc
import registries
from aspc import plugins
from aspc.__main__ import main
from aspc.algorithms.td3_bc import TD3BC
from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.interrupts import Interrupted
from aspc.training import checksums, trainer
from aspc.training.callbacks import Callback, RunSnapshot, TrainingEvent
from aspc.training.checkpoints import CheckpointStore
from aspc.training.compiled_loop import Loop
from aspc.training.finetune import finetune, resume
from aspc.training.fleet import Member, train_fleet
from aspc.training.hyperparameters import replace_fields
from aspc.training.run_config import TrainOptions
from aspc.training.run_folder import Run
from tiny import TINY, Counting, make_dataset

SHORT: dict[str, Any] = {
    **TINY,
    "steps": 160,
    "log_every": 40,
    "eval_every": 80,
    "eval_episodes": 2,
    "quiet": True,
    "tensorboard": False,
}
EXAMPLE = Path(__file__).parents[2] / "examples" / "early_stopping.py"
MAZE = "maze2d-umaze?steps=2000"
METHODS = ("on_start", "on_chunk", "on_evaluation", "on_checkpoint", "on_end")


class Recorder(Callback):
    """Records every event as (method, step)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.events: list[TrainingEvent] = []

    def record(self, method: str, event: TrainingEvent) -> None:
        self.calls.append((method, event.step))
        self.events.append(event)

    def on_start(self, event: TrainingEvent) -> None:
        self.record("on_start", event)

    def on_chunk(self, event: TrainingEvent) -> None:
        self.record("on_chunk", event)

    def on_evaluation(self, event: TrainingEvent) -> None:
        self.record("on_evaluation", event)

    def on_checkpoint(self, event: TrainingEvent) -> None:
        self.record("on_checkpoint", event)

    def on_end(self, event: TrainingEvent) -> None:
        self.record(f"on_end: {event.status}", event)


class Stop(Recorder):
    """Requests a stop at a step."""

    def __init__(self, step: int, method: str = "on_chunk", error: Exception | None = None) -> None:
        super().__init__()
        self.step, self.method, self.error = step, method, error

    def record(self, method: str, event: TrainingEvent) -> None:
        super().record(method, event)
        if method.partition(":")[0] == self.method and event.step == self.step:
            if self.error is not None:
                raise self.error
            event.stop(f"step {self.step} is enough")


def latest_checkpoint(path: Path) -> int | None:
    return CheckpointStore(path / "checkpoints", read_only=True).latest_step()


def assert_same_run(one: Run, other: Run) -> None:
    for seed in one.seeds:
        expected = one.policy_of(seed).arrays
        for name, array in other.policy_of(seed).arrays.items():
            np.testing.assert_array_equal(array, expected[name])
    assert (one.path / "metrics.csv").read_bytes() == (other.path / "metrics.csv").read_bytes()
    assert (one.path / "evaluations.csv").read_bytes() == (other.path / "evaluations.csv").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without callbacks."""
    folder = tmp_path_factory.mktemp("whole")
    return aspc.train(make_dataset(), "td3_bc", out=folder / "run", env=Counting, seeds=[0, 3], **SHORT)


# -- events -------------------------------------------------------------------------------------------------


def test_order_of_events(tiny: Dataset, tmp_path: Path) -> None:
    recorder = Recorder()
    aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=Counting, checkpoint_every=80, callbacks=[recorder], **SHORT)
    assert recorder.calls == [
        ("on_start", 0),
        ("on_chunk", 40),
        ("on_chunk", 80),
        ("on_evaluation", 80),
        ("on_checkpoint", 80),
        ("on_chunk", 120),
        ("on_chunk", 160),
        ("on_evaluation", 160),
        ("on_checkpoint", 160),
        ("on_end: finished", 160),
    ]


class Copies(Recorder):
    """Keeps the policies and states of all events that have them."""

    def __init__(self) -> None:
        super().__init__()
        self.policies: dict[tuple[str, int, int], Any] = {}
        self.states: dict[tuple[str, int, int], Any] = {}
        self.before: dict[tuple[str, int, int], list[np.ndarray]] = {}

    def record(self, method: str, event: TrainingEvent) -> None:
        super().record(method, event)
        for run in event.runs:
            key = (method, event.step, run.seed)
            if method != "on_start":
                self.policies[key] = run.policy()
            if method not in ("on_start", "on_evaluation"):
                self.states[key] = run.state()
                self.before[key] = [np.array(leaf) for leaf in jax.tree.leaves(self.states[key])]


def test_contents_of_events(whole: Run, tiny: Dataset, tmp_path: Path) -> None:
    copies = Copies()
    before = Loop.run_blocks._cache_size(), Loop.run_steps._cache_size()
    run = aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=Counting, seeds=[0, 3], callbacks=[copies], **SHORT)
    after = Loop.run_blocks._cache_size(), Loop.run_steps._cache_size()
    assert sum(after) - sum(before) <= 2
    assert_same_run(whole, run)  # callbacks change nothing, although they copied every state
    for event in copies.events:
        assert (event.path, event.algo, event.first_step, event.last_step) == (run.path, "td3_bc", 0, 160)
        assert [(one.name, one.dataset, one.seed) for one in event.runs] == [("seed0", "tiny", 0), ("seed3", "tiny", 3)]
        assert event.runs[0].hyperparameters["alpha"] == 2.5
    chunks = [event for method, event in zip(copies.calls, copies.events, strict=True) if method[0] == "on_chunk"]
    for i, seed in enumerate((0, 3)):
        is_seed = run.metrics["seed"] == seed
        for name in set(run.metrics) - {"step", "seed"}:
            values = [event.runs[i].metrics[name] for event in chunks]
            assert all(type(value) is float for value in values)
            np.testing.assert_array_equal(values, run.metrics[name][is_seed])
        last = copies.events[-1].runs[i].evaluation
        is_last = (run.evaluations["seed"] == seed) & (run.evaluations["step"] == 160)
        assert last["return_mean"] == run.evaluations["return_mean"][is_last]
        assert math.isnan(last["score_mean"])
        saved = run.policy_of(seed)
        for method in ("on_chunk", "on_evaluation", "on_checkpoint", "on_end: finished"):
            policy = copies.policies[method, 160, seed]
            assert policy.info["step"] == 160
            for name, array in saved.arrays.items():
                np.testing.assert_array_equal(policy.arrays[name], array)
    assert copies.events[0].runs[0].metrics == copies.events[0].runs[0].evaluation == {}


def test_copied_states_survive_later_chunks(tiny: Dataset, tmp_path: Path) -> None:
    copies = Copies()
    aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=None, callbacks=[copies], **SHORT)
    for key, state in copies.states.items():
        for leaf, before in zip(jax.tree.leaves(state), copies.before[key], strict=True):
            assert isinstance(leaf, np.ndarray)
            np.testing.assert_array_equal(leaf, before)
            with pytest.raises(ValueError, match="read-only"):
                leaf[...] = 0
    first, last = (jax.tree.leaves(copies.states["on_chunk", step, 0]) for step in (40, 160))
    assert any((a != b).any() for a, b in zip(first, last, strict=True))


def test_snapshots_expire(tiny: Dataset, tmp_path: Path) -> None:
    recorder = Recorder()
    aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=None, callbacks=[recorder], **SHORT)
    for event in recorder.events:
        with pytest.raises(AspcError, match="no policy"):
            event.runs[0].policy()
        with pytest.raises(AspcError, match="no state"):
            event.runs[0].state()


def test_evaluations_arrive_together_on_an_accelerator(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training does not wait for them, and the rows of one step are one event."""
    monkeypatch.setattr(trainer, "on_accelerator", lambda: True)
    copies = Copies()
    aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=Counting, seeds=[0, 3], callbacks=[copies], **SHORT)
    assert [call for call in copies.calls if call[0] == "on_evaluation"] == [
        ("on_evaluation", 80),
        ("on_evaluation", 160),
    ]
    assert copies.policies["on_evaluation", 80, 3].info["step"] == 80
    assert all(len(event.runs) == 2 for event in copies.events)


def test_fleet_events_have_all_members(tmp_path: Path) -> None:
    members = [
        Member("one", make_dataset(), 0),
        Member("two", make_dataset(seed=1, name="other"), 1, {"alpha": 1.0}),
    ]
    options = {name: value for name, value in SHORT.items() if name not in (*TINY, "quiet")}
    stop = Stop(80)

    def train(**more: Any) -> Any:
        algorithm = replace_fields(TD3BC(), TINY)
        return train_fleet(
            "td3_bc", algorithm, members, TrainOptions(**options), tmp_path / "fleet", env=None, quiet=True, **more
        )

    fleet = train(callbacks=[stop])
    assert [(run.name, run.dataset) for run in stop.events[-1].runs] == [("one", "tiny"), ("two", "other")]
    assert [run.hyperparameters["alpha"] for run in stop.events[-1].runs] == [2.5, 1.0]
    assert fleet.result["steps"] == 80
    assert fleet.result["stopped"] == "step 80 is enough"
    assert fleet.policy("two").info["step"] == 80
    assert train(callbacks=[Recorder()]).result["steps"] == 80  # finished
    assert train().result["steps"] == 160
    assert "stopped" not in train().result


# -- stopping -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["on_chunk", "on_evaluation"])
def test_stopped_run_resumes_to_the_same_bits(
    method: str, whole: Run, tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = Stop(80, method)
    run = aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=Counting, seeds=[0, 3], callbacks=[stop], **SHORT)
    assert stop.calls[-3:] == [("on_evaluation", 80), ("on_checkpoint", 80), ("on_end: stopped", 80)]
    assert run.result is not None
    assert run.result["steps"] == 80
    assert run.result["stopped"] == "step 80 is enough"
    assert run.policy.info["step"] == 80
    assert latest_checkpoint(run.path) == 80
    assert checksums.verify(run.path).finished
    recorder = Recorder()
    resumed = aspc.train(tiny, resume=run.path, env=Counting, quiet=True, callbacks=[recorder])
    assert recorder.calls[0] == ("on_start", 80)
    assert recorder.calls[-1] == ("on_end: finished", 160)
    assert resumed.result is not None
    assert resumed.result["steps"] == 160
    assert "stopped" not in resumed.result
    assert_same_run(whole, resumed)


def test_stopped_run_evaluates_its_policy(tiny: Dataset, tmp_path: Path) -> None:
    """With the episodes of a last evaluation."""
    run = aspc.train(
        tiny, "td3_bc", out=tmp_path / "run", env=Counting, final_episodes=3, callbacks=[Stop(120)], **SHORT
    )
    assert list(run.evaluations["step"]) == [80, 120]
    assert list(run.evaluations["episodes"]) == [2, 3]
    assert run.result is not None
    assert run.result["last_return"] == run.evaluations["return_mean"][-1]


@pytest.mark.parametrize("method", ["on_chunk", "on_checkpoint"])
def test_stop_at_the_last_step_is_a_normal_end(method: str, tiny: Dataset, tmp_path: Path) -> None:
    stop = Stop(160, method)
    run = aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=None, callbacks=[stop], **SHORT)
    assert run.result is not None
    assert "stopped" not in run.result
    assert stop.calls[-1] == ("on_end: finished", 160)


def test_a_signal_ends_the_callbacks(tiny: Dataset, tmp_path: Path) -> None:
    class Signal(Recorder):
        def on_chunk(self, event: TrainingEvent) -> None:
            super().on_chunk(event)
            signal.raise_signal(signal.SIGTERM)

    recorder = Signal()
    with pytest.raises(Interrupted, match="Stopped at step 40"):
        aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=None, callbacks=[recorder], **SHORT)
    assert recorder.calls == [
        ("on_start", 0),
        ("on_chunk", 40),
        ("on_checkpoint", 40),
        ("on_end: interrupted", 40),
    ]


# -- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "step", "kept"),
    [("on_chunk", 40, 40), ("on_evaluation", 80, 80), ("on_checkpoint", 80, 80), ("on_chunk", 160, 160)],
)
def test_failing_callback_keeps_a_checkpoint(
    method: str, step: int, kept: int, whole: Run, tiny: Dataset, tmp_path: Path
) -> None:
    failing, other = Stop(step, method, ZeroDivisionError("division by zero")), Recorder()
    with pytest.raises(AspcError) as failure:
        aspc.train(
            tiny,
            "td3_bc",
            out=tmp_path / "run",
            env=Counting,
            seeds=[0, 3],
            checkpoint_every=80,
            callbacks=[failing, other],
            **SHORT,
        )
    message = str(failure.value)
    assert message.startswith(f"Stop.{method} failed at step {step} ({__file__}, line ")
    assert message.endswith(
        f"): ZeroDivisionError: division by zero. Fix it, then continue with: aspc train --resume {tmp_path / 'run'}"
    )
    assert failing.calls[-1] == other.calls[-1] == ("on_end: failed", step)
    assert latest_checkpoint(tmp_path / "run") == kept
    assert_same_run(whole, aspc.train(tiny, resume=tmp_path / "run", env=Counting, quiet=True))


def test_failure_at_the_start_empties_the_folder(tiny: Dataset, tmp_path: Path) -> None:
    started, failing = Recorder(), Stop(0, "on_start", KeyError("x"))
    with pytest.raises(AspcError, match=r"Stop\.on_start failed .*: KeyError: 'x'\. Fix it, then try again\.$"):
        aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=None, callbacks=[started, failing], **SHORT)
    assert started.calls == [("on_start", 0), ("on_end: failed", 0)]
    assert failing.calls == [("on_start", 0)]
    aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=None, **SHORT)


def test_failure_at_the_end_can_be_resumed(tiny: Dataset, tmp_path: Path) -> None:
    failing, other = Stop(160, "on_end", RuntimeError("no network")), Recorder()
    with pytest.raises(AspcError, match=r"Stop\.on_end failed at step 160 .*: RuntimeError: no network\. Fix it"):
        aspc.train(tiny, "td3_bc", out=tmp_path / "run", env=None, callbacks=[failing, other], **SHORT)
    assert other.calls[-1] == ("on_end: finished", 160)
    assert Run(tmp_path / "run").result is None
    run = aspc.train(tiny, resume=tmp_path / "run", env=None, quiet=True)
    assert run.result is not None
    assert run.result["steps"] == 160


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([Recorder], r"objects, not classes\. Use Recorder\(\)\."),
        ([print], r"is not a callback\. Derive it from aspc\.Callback\."),
        (Recorder(), r"must be a list"),
        (3, r"must be a list"),
    ],
)
def test_invalid_callbacks(callbacks: Any, message: str, tiny: Dataset, tmp_path: Path) -> None:
    with pytest.raises(AspcError, match=message):
        aspc.train(tiny, "td3_bc", out=tmp_path / "run", callbacks=callbacks, **SHORT)
    assert not (tmp_path / "run").exists()


def test_base_class_does_nothing() -> None:
    event = TrainingEvent(Path("run"), "bc", "now", 0, 100, 40, (RunSnapshot("seed0", "data", 0, {}, {}, {}),))
    for method in METHODS:
        getattr(aspc.Callback(), method)(event)
    event.stop("ignored")


# -- fine-tuning --------------------------------------------------------------------------------------------


def test_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPC_DATA", str(tmp_path / "cache"))
    small = {**TINY, "steps": 40, "log_every": 40, "quiet": True, "tensorboard": False}
    offline = aspc.train(MAZE, "td3_bc", out=tmp_path / "offline", env=None, **small)
    online: dict[str, Any] = {"steps": 160, "collect": 40, "eval_every": 80, "eval_episodes": 1, "quiet": True}
    online |= {"tensorboard": False, "env": "maze2d-umaze"}
    copies, stop = Copies(), Stop(80)
    run = finetune(offline, out=tmp_path / "online", callbacks=[copies, stop], **online)
    assert copies.calls == [
        ("on_start", 0),
        ("on_evaluation", 0),
        ("on_checkpoint", 0),
        ("on_chunk", 40),
        ("on_chunk", 80),
        ("on_evaluation", 80),
        ("on_checkpoint", 80),
        ("on_end: stopped", 80),
    ]
    assert "online_return" in copies.events[3].runs[0].metrics
    for key, state in copies.states.items():
        for leaf, before in zip(jax.tree.leaves(state), copies.before[key], strict=True):
            np.testing.assert_array_equal(leaf, before)
    assert run.result is not None
    assert (run.result["steps"], run.result["stopped"]) == (80, "step 80 is enough")
    assert run.policy.info["step"] == 80
    with pytest.raises(AspcError, match=r"Stop\.on_chunk failed at step 120 .* aspc finetune --resume"):
        resume(run.path, quiet=True, callbacks=[Stop(120, error=ValueError("no"))])
    assert latest_checkpoint(run.path) == 120
    assert resume(run.path, quiet=True).result["steps"] == 160


# -- the command line ---------------------------------------------------------------------------------------


WORDS = ["--algo", "td3_bc", "--steps", "400", "--log-every", "20", "--eval-every", "20", "--no-tensorboard", "--quiet"]
WORDS += ["--actor-hidden-dim", "16", "--critic-hidden-dim", "16", "--batch-size", "16", "--env", "none"]


@pytest.fixture
def maze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that trains on a small maze from the command line."""
    monkeypatch.setenv("ASPC_DATA", str(tmp_path / "cache"))

    def train(*words: str) -> int:
        with registries.restored():
            return main(["train", MAZE, *WORDS, "--out", str(tmp_path / "run"), *words])

    return train


def test_example_is_short() -> None:
    (kind,) = (node for node in ast.parse(EXAMPLE.read_text()).body if isinstance(node, ast.ClassDef))
    assert kind.end_lineno is not None
    assert kind.end_lineno - kind.lineno <= 10


def test_early_stopping_on_the_command_line(maze: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A learning rate of 0 improves nothing after the first chunk."""
    frozen = ["--actor-lr", "0", "--critic-lr", "0"]
    assert maze("--callback", str(EXAMPLE), "--holdout", "0.2", *frozen) == 0
    printed = capsys.readouterr()
    assert "td3_bc on maze2d-umaze" in printed.out
    assert ": 220 steps, 1 seed\n" in printed.out
    assert "  stopped early: no improvement in 10 chunks\n" in printed.out
    assert printed.err == ""
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "240", "--quiet"]) == 0
    assert Run(tmp_path / "run").result["steps"] == 240  # type: ignore[index]
    assert "stopped" not in capsys.readouterr().out


def test_early_stopping_from_python(tiny: Dataset, tmp_path: Path) -> None:
    with registries.restored():
        (example,) = plugins.load_callbacks([EXAMPLE])
    example.patience = 2  # type: ignore[attr-defined]
    frozen = {"actor_lr": 0.0, "critic_lr": 0.0}  # improves nothing after the first chunk
    run = aspc.train(
        tiny, "td3_bc", out=tmp_path / "run", env=None, holdout=0.2, callbacks=[example], **{**SHORT, **frozen}
    )
    assert run.result is not None
    assert (run.result["steps"], run.result["stopped"]) == (120, "no improvement in 2 chunks")


FAILING = """
import aspc


class Failing(aspc.Callback):
    def on_chunk(self, event):
        if event.step == 40:
            raise IndexError("list index out of range")
"""


def test_failing_callback_on_the_command_line(maze: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    assert maze("--callback", str(file)) == 2
    assert capsys.readouterr().err == (
        f"aspc: Failing.on_chunk failed at step 40 ({file}, line 8): IndexError: list index out of range. "
        f"Fix it, then continue with: aspc train --resume {tmp_path / 'run'}\n"
    )
    assert latest_checkpoint(tmp_path / "run") == 40
    file.write_text(FAILING.replace("40", "-1"))
    resume = ["train", "--resume", str(tmp_path / "run"), "--steps", "60", "--quiet", "--callback", str(file)]
    with registries.restored():
        assert main(resume) == 0
    assert "60 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def broken(:\n", "own.py, line 1: SyntaxError: invalid syntax. Fix the callback."),
        ("import nothing_here\n", "own.py, line 1: there is no module nothing_here."),
        ("from aspc import Callback\n", "own.py defines no callback. Add a subclass of aspc.Callback."),
        (
            "import aspc\n\nclass Own(aspc.Callback):\n    def __init__(self, x):\n        pass\n",
            "Own() failed: TypeError: Own.__init__() missing 1 required positional argument: 'x'. It is called without",
        ),
        (None, "There is no callback at"),
    ],
)
def test_invalid_files(
    content: str | None, message: str, maze: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.py"
    if content is not None:
        file.write_text(content)
    assert maze("--callback", str(file)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_several_files(tmp_path: Path) -> None:
    for name in ("One", "Two"):
        text = f"import aspc\nfrom aspc import Callback\nclass _Base(Callback): ...\nclass {name}(_Base): ...\n"
        (tmp_path / f"{name}.py").write_text(text)
    with registries.restored():
        found = plugins.load_callbacks([tmp_path / "One.py", tmp_path / "Two.py"])
    assert [type(callback).__name__ for callback in found] == ["One", "Two"]
