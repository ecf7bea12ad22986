"""A training from its first step to its last: what happens between the chunks of the compiled program.

One run, several seeds, or a fleet of datasets and settings are the same here: *tasks* (a dataset made ready, with
its environment) and *run_specs* (one run each, which learns from one task). The device computes the next chunk while
the host looks at the last one; whatever the host needs of a state is copied on the device before the next chunk
takes its memory, so nothing waits for evaluations or checkpoints but the checkpoints themselves.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from aspc import plugins
from aspc.algorithms.interface import PolicyExport, Spec
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.training import run_folder
from aspc.training.algorithm_checks import check_contract
from aspc.training.checkpoints import Checkpoints
from aspc.training.checksums import Checksums
from aspc.training.compiled_loop import (
    Loop,
    Piece,
    Runs,
    Source,
    on_accelerator,
    plan_chunk,
    run_chunk,
    start_runs,
    usual_blocks,
    with_overrides,
)
from aspc.training.devices import Devices
from aspc.training.evaluation import EnvFactory, Evaluator, PendingEvaluation, WorkerFailed, episode_seeds
from aspc.training.loggers import Logged, Logger, open_loggers
from aspc.training.prepared_data import Data, PreparedDataset, Tables, score_of, shared_tables, warnings_of
from aspc.training.run_config import TrainOptions, flat_values
from aspc.training.run_folder import Row, RowFile
from aspc.ui import Progress

CHECKPOINT_SECONDS = 60.0


class Diverged(AspcError):
    """A quantity became NaN or infinite."""


class Interrupted(AspcError):
    """SIGINT or SIGTERM; the run can be resumed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class Task(NamedTuple):
    """A dataset made ready, and the environment of the policies that learn from it (None: they are not rolled out)."""

    data: Data
    prepared: PreparedDataset
    env: str | EnvFactory | None


class RunSpec(NamedTuple):
    """One run of the program."""

    name: str
    """Of the folders of its policy and its log."""
    seed: int
    task: int
    """Which of the tasks it learns from."""
    algorithm: Any
    """With all of its own hyper-parameters."""
    marks: Row
    """What its rows in the CSV files say of it, after the step."""
    title: str
    """What a message calls it."""


@dataclass(frozen=True)
class Plan:
    """What is trained, where, and how."""

    path: Path
    algo: str
    algorithm: Any
    """What all run_specs share; their own numbers are in `overrides`."""
    tasks: Sequence[Task]
    run_specs: Sequence[RunSpec]
    overrides: Mapping[str, np.ndarray]
    """Hyper-parameters that differ between the run_specs, by dotted field name, a number for each."""
    options: TrainOptions
    config: Mapping[str, Any]
    """What config.json says."""
    resume_with: str
    """What a message says to do to go on after an interruption."""
    vectorise: bool | None = None
    """Runs side by side or one after the other; None: as the device likes it."""
    isolate: bool = False
    """A run that diverges is left behind, and status.json says so; otherwise it ends the training."""


class Failure(NamedTuple):
    """A run whose numbers became NaN or infinite."""

    step: int
    message: str


class Chunk(NamedTuple):
    """A chunk that was given to the device, and what the host will want to see of it."""

    end: int
    results: list[tuple[Piece, Any]]
    valid: dict[str, Any]
    """Losses on held-out rows: for each task its run_specs' numbers and theirs alone."""
    theory: dict[str, Any]
    policies: dict[str, Any] | None
    """The arrays of all policies, where an evaluation is due."""
    state: Any
    """A copy of the state, where a checkpoint is due."""


@dataclass(frozen=True)
class Outcome:
    """What a training came to."""

    step: int
    seconds: float
    steps_per_second: float | None
    """Of every run, without compilation and without waiting for evaluations; None where one chunk was all."""
    failures: Mapping[int, Failure]
    evaluation_seconds: float | None
    """Seconds that one evaluation of all runs takes the workers; None where nothing was evaluated."""
    hidden_eval_every: int | None
    """Steps between evaluations from which on these hide behind training."""
    signal: int | None = None
    """One that came in the last chunk: there was nothing left to stop here, but there may be where this was called."""


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM, to be obeyed at the end of the chunk; a second one raises KeyboardInterrupt.

    A signal that is ignored stays ignored, as SIGINT is in a background job of a shell script.
    """
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        if number == signal.SIGINT:
            # Straight to the terminal, since a signal may come in the middle of a print; and where nobody reads any
            # more (Ctrl-C ends a `tee` behind us first) the chunk is saved all the same.
            with suppress(OSError):
                os.write(2, b"\nStopping when this chunk is done and saved; Ctrl-C again stops at once, without it.\n")

    try:
        heeded = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
        before = {s: signal.signal(s, note) for s in heeded}
    except ValueError:  # not the main thread: signals are somebody else's
        yield caught
        return
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def use_compilation_cache() -> None:
    """A second start of the same program takes its compiled form from the user's cache folder.

    The environment variable ASPC_COMPILATION_CACHE names another folder; JAX's own settings come first.
    """
    from platformdirs import user_cache_dir

    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = os.environ.get("ASPC_COMPILATION_CACHE") or os.path.join(user_cache_dir("aspc"), "compiled")
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


class Trainer:
    """One training."""

    def __init__(self, plan: Plan, quiet: bool, on_progress: Callable[[int, int], None] | None = None) -> None:
        self.plan, self.options, self.quiet, self.on_progress = plan, plan.options, quiet, on_progress
        self.run_specs, self.tasks = list(plan.run_specs), list(plan.tasks)
        self.on_accelerator = on_accelerator()
        vectorise = self.on_accelerator if plan.vectorise is None else plan.vectorise
        prepared = self.tasks[0].prepared
        self.loop = Loop(plan.algorithm, prepared.spec, prepared.layout, vectorise=vectorise)
        check_contract(plan.algo, plan.algorithm, self.loop)
        self.devices = Devices(self.loop, len(self.run_specs))
        self.failures: dict[int, Failure] = {}
        self.evaluations_under_way: list[tuple[int, int, PendingEvaluation]] = []
        self.unsaved: tuple[int, Any] | None = None  # a checkpoint that waits for evaluations up to its step
        self.waited = 0.0
        self.first_look: tuple[int, float] | None = None  # step and time, when compilation is over

    @property
    def scale_name(self) -> str:
        return getattr(self.plan.algorithm, "scale_name", None) or "scale"

    # -- the whole of it ---------------------------------------------------------------------------------------
    def go(self, first_step: int | None, last_step: int) -> Outcome:
        """Train up to `last_step`, from `first_step` or (None) from the newest checkpoint on."""
        use_compilation_cache()
        path = self.plan.path
        with ExitStack() as stack:
            stack.callback(run_folder.lock(path).release)
            self.checkpoints = Checkpoints(path / "checkpoints", self.options.checkpoints_to_keep)
            stack.callback(self.checkpoints.close)
            if first_step is None:
                first_step = self.checkpoints.latest_step() or 0
                if first_step > last_step:
                    raise AspcError(f"{path} has trained {first_step:,} steps already; give more with --steps.")
            self._recall_status(first_step)
            self.checksums = Checksums(path, first_step, self._sizes_of_growing_files(first_step))
            self.metrics = RowFile(path / run_folder.METRICS, first_step)
            self.evaluations = RowFile(path / run_folder.EVALUATIONS, first_step)
            self.progress = stack.enter_context(_closing(Progress(last_step, first_step, self.quiet)))
            self.loggers = [self._open_loggers(run_spec, first_step) for run_spec in self.run_specs]
            for logger in (logger for loggers in self.loggers for logger in loggers):
                stack.callback(logger.close)
            envs = [task.env for task in self.tasks if task.env is not None]
            self.evaluator = stack.enter_context(Evaluator(envs[0])) if envs else None
            stack.enter_context(jax.default_matmul_precision(_jax_precision(self.options.matmul_precision)))
            caught = stack.enter_context(caught_signals())
            self._announce(first_step, last_step)
            first_chunk = first_step // self.options.chunk_steps
            prepared = [task.prepared for task in self.tasks]
            tables = stack.enter_context(shared_tables(prepared, first_chunk, self.options.memory_budget_mb))
            try:
                step = self._steps(first_step, last_step, caught, tables)
            except Exception as error:  # not a second Ctrl-C, which stops at once
                if not isinstance(error, OSError):  # a row that a full disk has cut short stays the last of its file
                    self._save_what_waits()
                if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
                    raise self._out_of_memory(tables) from error
                raise
            self._record_checksums(step)
            outcome = replace(self._outcome(step), signal=caught[0] if caught else None)
            if self.plan.isolate:
                self._say_cost(outcome)
            self.progress.close()
        return outcome

    def _out_of_memory(self, tables: Tables) -> AspcError:
        rows = max(offset + size for offset, size in zip(tables.offsets, tables.sizes, strict=True))
        state = jax.eval_shape(lambda key: self.plan.algorithm.init(key, self.loop.spec), jax.random.key(0))
        bytes_of_run = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        return AspcError(
            f"The device is out of memory: the data takes {4 * rows * self.loop.layout.width / 2**20:,.1f} MiB and the "
            f"networks {len(self.run_specs)} × {bytes_of_run / 2**20:,.1f} MiB, besides what a step computes with; "
            "train fewer seeds at once or with a smaller --batch-size, or stream the data (aspc data convert) with a "
            "smaller --memory-budget-mb."
        )

    def _say_cost(self, outcome: Outcome) -> None:
        """Report whether evaluation was hidden behind training; on a CPU training always waits for it."""
        if outcome.hidden_eval_every is None or not self.on_accelerator:
            return
        assert self.evaluator is not None
        enough = outcome.hidden_eval_every <= self.options.eval_every
        self.progress.say(
            f"One evaluation of all runs takes {outcome.evaluation_seconds:.1f} s on {self.evaluator.size} workers, "
            f"which training makes up for in {outcome.hidden_eval_every:,} steps: evaluation every "
            f"{self.options.eval_every:,} steps {'hides' if enough else 'does not hide'} behind training."
        )

    def _announce(self, first_step: int, last_step: int) -> None:
        once = dict.fromkeys((run_spec.task, run_spec.algorithm) for run_spec in self.run_specs)  # seeds share them
        warnings = (text for task, algorithm in once for text in warnings_of(self.tasks[task].data, algorithm))
        notes = (note for task in self.tasks for note in task.data.notes)
        for kind, texts in (("note", notes), ("warning", warnings)):
            for text in dict.fromkeys(texts):
                self.progress.say(f"{kind}: {text}")
        if first_step:
            self.progress.say(f"Continuing {self.plan.path} from step {first_step:,}.")
            if plugins.differs(self.plan.algo, self.plan.config["versions"]):
                self.progress.say("warning: up to here it was trained with another version of the plugin's code.")
        if last_step > self.options.steps:
            self.progress.say(
                f"Going on to {last_step:,} steps; schedules that decay keep the horizon of "
                f"{self.options.horizon or self.options.steps:,} steps that the run began with."
            )

    def _start(self, first_step: int, tables: Tables) -> tuple[Any, Runs]:
        """The state at `first_step`, and everything else that differs between the runs."""
        at = np.asarray([run_spec.task for run_spec in self.run_specs])
        offset, size = (np.asarray(numbers, np.int32)[at] for numbers in (tables.offsets, tables.sizes))
        source = Source(jnp.asarray(offset), jnp.asarray(size))
        seeds = jnp.asarray([run_spec.seed for run_spec in self.run_specs])
        overrides = {name: jnp.asarray(values) for name, values in self.plan.overrides.items()}
        runs = start_runs(self.plan.algorithm, self.loop.spec, seeds, source, overrides)
        if first_step:
            runs = runs._replace(state=self.checkpoints.restore(first_step, runs.state))
        runs = self.devices.spread(runs)
        return runs.state, runs._replace(state=None)

    def _steps(self, step: int, last_step: int, caught: list[int], tables: Tables) -> int:
        """Chunk after chunk; returns the last step."""
        state, runs = self._start(step, tables)
        held_out = [task.prepared.held_out for task in self.tasks]
        self.held_out = [None if rows is None else self.devices.everywhere(rows) for rows in held_out]
        chunk_steps = self.options.chunk_steps
        blocks = usual_blocks(chunk_steps, self.loop.block_steps)
        last_checkpoint = time.monotonic()
        unseen: Chunk | None = None
        table = None
        while step < last_step:
            end = min((step // chunk_steps + 1) * chunk_steps, last_step)
            if table is None or tables.change:
                table = self.devices.everywhere(tables.next())
            pieces = plan_chunk(step, end, self.loop.block_steps, blocks)
            state, results = run_chunk(self.devices, state, runs, table, pieces, self.loop.block_steps)
            if unseen is not None:
                self._look_at(unseen)  # while the device computes
            stop = end == last_step or bool(caught)
            evaluate = self.evaluator is not None and (end == last_step or passed(self.options.eval_every, step, end))
            if self.options.checkpoint_every:
                save = passed(self.options.checkpoint_every, step, end)
            else:
                save = time.monotonic() - last_checkpoint > CHECKPOINT_SECONDS
            if save or stop:
                last_checkpoint = time.monotonic()
            monitor = self.options.monitor_every > 0 and (step == 0 or passed(self.options.monitor_every, step, end))
            unseen = Chunk(
                end,
                results,
                valid=self._validate(state, runs),
                theory=self.loop.theory_on(state, runs, table, jnp.asarray(end)) if monitor else {},
                policies=self._export(state, runs.overrides) if evaluate else None,
                state=_copy(state) if save or stop else None,
            )
            step = end
            # On a CPU rollouts and training would only take turns on the same cores.
            if stop or (evaluate and not self.on_accelerator):
                self._look_at(unseen)
                unseen = None
                self._collect_evaluations(wait=True)
            if caught and step < last_step:
                if unseen is not None:
                    self._look_at(unseen)
                self._obey(caught[0], step, None if save or stop else state)
            if len(self.failures) == len(self.run_specs):
                self._collect_evaluations(wait=True)  # of what they were before
                break
        if step == last_step:
            self._save_policies(step, self._export(state, runs.overrides))
        return step

    def _obey(self, signal_number: int, step: int, unsaved: Any) -> NoReturn:
        """Stop. A signal that came while a chunk was evaluated finds the state not saved, or still waiting for its
        evaluations: that is done first."""
        if unsaved is not None:
            self._save_when_evaluated(step, self._sound(step, unsaved))
        self._collect_evaluations(wait=True)
        self.progress.close()
        raise Interrupted(f"Stopped at step {step:,}; continue with: {self.plan.resume_with}", signal_number)

    # -- looking at a chunk ------------------------------------------------------------------------------------
    def _look_at(self, chunk: Chunk) -> None:
        """Bring a chunk's numbers to the host: check, log, show; then evaluate and save what is due."""
        end, values = chunk.end, self._sampled(chunk.results)
        seen = self.devices.fetch(chunk.theory)
        valid = {name: jax.device_get(losses) for name, losses in chunk.valid.items()}
        rows: list[tuple[int, Row]] = []
        for i in self._alive():
            row: Row = {"step": end, **self.run_specs[i].marks}
            row |= {name: float(np.concatenate([s[i] for s in samples]).mean()) for name, samples in values.items()}
            row |= {name: float(value[i]) for name, value in {**valid, **seen}.items()}
            rows.append((i, row))
        self.metrics.append([row for _, row in rows])
        for i, row in rows:
            self._log(i, "train", {k: v for k, v in row.items() if k not in ("step", *self.run_specs[i].marks)}, end)
        shown = {}
        if rows and "scale" in rows[0][1]:
            shown[self.scale_name] = f"{np.mean([row['scale'] for _, row in rows]):.3g}"
        self.progress.show(end, **shown)
        if self.on_progress is not None:
            self.on_progress(end, self.progress.total)
        self.first_look = self.first_look or (end, time.monotonic())
        state = None if chunk.state is None else self._sound(end, chunk.state)
        if chunk.policies is not None:
            self._evaluate(end, chunk.policies)
        if state is not None:
            self._save_when_evaluated(end, state)
        self._collect_evaluations(wait=False)

    def _alive(self) -> list[int]:
        return [i for i in range(len(self.run_specs)) if i not in self.failures]

    def _sampled(self, results: list[tuple[Piece, Any]]) -> dict[str, list[np.ndarray]]:
        """The samples of each metric, [runs, samples] for each piece of the chunk; notes who diverged."""
        values: dict[str, list[np.ndarray]] = {}
        for piece, metrics in results:
            metrics = self.devices.fetch(metrics)
            if not piece.blocks:  # single steps: one sample of each metric, of those that were computed
                last, computed = metrics
                metrics = {name: value[:, None] for name, value in last.items() if computed[name].all()}
            self._note_divergence(metrics, piece)
            for name, samples in metrics.items():
                values.setdefault(name, []).append(samples)
        return values

    def _note_divergence(self, metrics: Mapping[str, np.ndarray], piece: Piece) -> None:
        """A run that has a number which is not finite ends: by itself, or with all others."""
        found: dict[int, tuple[int, str, float]] = {}  # by run: its first bad sample, the metric, the number
        for name, samples in metrics.items():
            for i in np.flatnonzero(~np.isfinite(samples).all(1)).tolist():
                first = int(np.flatnonzero(~np.isfinite(samples[i]))[0])
                if i not in self.failures and (i not in found or first < found[i][0]):
                    found[i] = (first, name, samples[i, first])
        for i, (first, name, number) in sorted(found.items(), key=lambda item: item[1][0]):
            steps = (first + 1) * self.loop.block_steps if piece.blocks else piece.steps
            self._leave_behind(i, piece.first_step + steps, f"{name} became {number}")
        if found:
            self._write_status()

    def _leave_behind(self, i: int, step: int, what: str) -> None:
        what = f"{what} at step {step:,} ({self.run_specs[i].title})"
        if not self.plan.isolate:
            self._save_what_waits()
            kept = self.checkpoints.latest_step()
            good = f"the last good checkpoint, step {kept:,}, is kept" if kept else "there is no checkpoint yet"
            raise Diverged(f"{what}; {good} in {self.plan.path}.")
        self.failures[i] = Failure(step, f"{what}.")
        self.progress.say(f"{what}; the other runs go on without it.")

    def _sound(self, step: int, state: Any) -> Any:
        """The state on the host. A run whose state is not finite ends: metrics are of what was before an update, so
        they show it one update too late for a checkpoint, and never for the last policy."""
        state, before = self.devices.fetch(state), len(self.failures)
        for leaf_path, numbers in jax.tree_util.tree_leaves_with_path(state):
            finite = np.isfinite(numbers).reshape(len(numbers), -1).all(1)
            for i in self._alive() if not finite.all() else ():
                if not finite[i]:
                    self._leave_behind(i, step, f"{jax.tree_util.keystr(leaf_path)[1:]} became NaN or infinite")
        if len(self.failures) > before:
            self._write_status()
        return state

    def _write_status(self) -> None:
        """What a checkpoint does not say: who has failed, and how long it took so far."""
        failures = {self.run_specs[i].name: failure._asdict() for i, failure in self.failures.items()}
        status = {"seconds": round(self._seconds(), 3), "failures": failures}
        run_folder.write_json(self.plan.path / run_folder.STATUS, status)

    def _recall_status(self, first_step: int) -> None:
        """Runs that had failed when the checkpoint was made stay failed; later failures will happen again."""
        path, names = self.plan.path / run_folder.STATUS, [run_spec.name for run_spec in self.run_specs]
        status = run_folder.read_json(path, {"seconds": 0.0, "failures": {}})
        try:
            self.began = time.monotonic() - (float(status["seconds"]) if first_step else 0.0)
            failures = {names.index(name): Failure(**failure) for name, failure in status["failures"].items()}
            self.failures = {i: failure for i, failure in failures.items() if failure.step <= first_step}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise AspcError(f"{path} is damaged; remove it to go on without what it says.") from error

    def _seconds(self) -> float:
        """Since the start, with the time before an interruption."""
        return time.monotonic() - self.began

    # -- held-out episodes -------------------------------------------------------------------------------------
    def _validate(self, state: Any, runs: Runs) -> dict[str, Any]:
        """Each run's losses on the held-out rows of its own task."""
        if self.held_out[0] is None:
            return {}
        if len(self.tasks) == 1:
            losses = self.loop.losses_on(state, runs, self.held_out[0])
            return {f"valid_{name}": value for name, value in losses.items()}
        found: dict[str, Any] = {}
        for task, rows in enumerate(self.held_out):
            here = np.asarray([i for i, run_spec in enumerate(self.run_specs) if run_spec.task == task])
            part_state, part_runs = jax.tree.map(lambda x, here=here: x[here], (state, runs))
            for name, value in self.loop.losses_on(part_state, part_runs, rows).items():
                whole = found.get(f"valid_{name}", jnp.zeros(len(self.run_specs), value.dtype))
                found[f"valid_{name}"] = whole.at[here].set(value)
        return found

    # -- evaluation --------------------------------------------------------------------------------------------
    def _export(self, state: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of every run's policy, on their way to the host; the device does not wait."""
        arrays = _policy_arrays(self.plan.algorithm, state, overrides)
        for array in arrays.values():
            array.copy_to_host_async()
        return arrays

    def _policies(self, step: int, arrays: dict[str, Any]) -> Iterator[tuple[int, Policy]]:
        """The policy of every run that has not failed."""
        stacked = self.devices.fetch(arrays)
        for i in self._alive():
            run_spec = self.run_specs[i]
            task = self.tasks[run_spec.task]
            kind, settings = kind_and_settings(run_spec.algorithm, self.loop.spec)
            arrays_of_run = {name: array[i] for name, array in stacked.items()}
            info = {
                "algo": self.plan.algo,
                "dataset": task.data.name,
                "step": step,
                "versions": self.plan.config["versions"],
                "seed": run_spec.seed,
            }
            yield i, task.prepared.policy(PolicyExport(kind, arrays_of_run, settings), task.data, info)

    def _evaluate(self, step: int, arrays: dict[str, Any]) -> None:
        assert self.evaluator is not None
        last = step == self.progress.total
        episodes = (self.options.final_episodes if last else None) or self.options.eval_episodes
        for i, policy in self._policies(step, arrays):
            run_spec = self.run_specs[i]
            env = self.tasks[run_spec.task].env
            if env is not None:
                pending = self.evaluator.evaluate(policy, episode_seeds(run_spec.seed, step, episodes), env)
                self.evaluations_under_way.append((step, i, pending))

    def _collect_evaluations(self, wait: bool, up_to: float = math.inf) -> None:
        """Record evaluations in the order in which they were asked for; then the checkpoint that waited for them."""
        began = time.monotonic()
        rows: list[tuple[int, Row]] = []
        for step, i, pending in self.evaluations_under_way:
            if step > up_to or not (wait or pending.done()):
                break
            run_spec = self.run_specs[i]
            try:
                task = self.tasks[run_spec.task]
                row = pending.result().row(score_of(task.data, task.env))
            except WorkerFailed as failure:
                raise AspcError(
                    f"Evaluation at step {step:,} failed twice: {failure}; continue with: {self.plan.resume_with}"
                ) from failure
            rows.append((i, {"step": step, **run_spec.marks, **row}))
        self.waited += time.monotonic() - began
        self.evaluations.append([row for _, row in rows])
        del self.evaluations_under_way[: len(rows)]  # only now: a checkpoint waits for what is not on disk
        for i, row in rows:
            shown = {name: row[name] for name in ("score_mean", "return_mean", "success_rate")}
            self._log(i, "evaluation", shown, int(row["step"]))
        if rows:
            latest = rows[-1][1]
            name = "return" if math.isnan(latest["score_mean"]) else "score"
            means = [row[f"{name}_mean"] for _, row in rows if row["step"] == latest["step"]]
            self.progress.show(int(latest["step"]), **{name: f"{np.mean(means):.1f}"})
        self._save_what_is_evaluated()

    # -- checkpoints -------------------------------------------------------------------------------------------
    def _save_when_evaluated(self, step: int, state: Any) -> None:
        """A checkpoint is saved when all evaluations up to its step are on disk, for these are never done again.

        Training goes on meanwhile; only where the last checkpoint still waits for its evaluations is there a pause.
        """
        if self.unsaved is not None:
            self._collect_evaluations(wait=True, up_to=self.unsaved[0])
        self.unsaved = (step, state)

    def _save_what_is_evaluated(self) -> None:
        if self.unsaved is None:
            return
        step, state = self.unsaved
        if not any(asked <= step for asked, *_ in self.evaluations_under_way):
            self._record_checksums(step)
            self.checkpoints.save(step, state)
            self._write_status()
            self.unsaved = None

    def _record_checksums(self, step: int) -> None:
        tables = {file.path.name: file.record(step) for file in (self.metrics, self.evaluations)}
        self.checksums.record(step, tables, self._records_of_growing_files())

    def _sizes_of_growing_files(self, step: int) -> dict[str, int]:
        """Return the names of files that grow besides the tables, with their bytes at a checkpoint."""
        return {}

    def _records_of_growing_files(self) -> dict[str, dict[str, Any]]:
        """Return the checksums of these files as they are now."""
        return {}

    def _save_what_waits(self) -> None:
        """Before a failure ends the training: a checkpoint that waits for its evaluations is of a state from before it.
        Where these fail too it is not saved, as ever, and the first failure is the one to tell."""
        if self.unsaved is not None:
            step, _ = self.unsaved
            with suppress(Exception):
                self._collect_evaluations(wait=True, up_to=step)
            self.unsaved = None  # whatever became of it: it is tried once

    # -- the end -----------------------------------------------------------------------------------------------
    def _save_policies(self, step: int, arrays: dict[str, Any]) -> None:
        for i, policy in self._policies(step, arrays):
            policy.save(self.plan.path / "policy" / self.run_specs[i].name)

    def _outcome(self, step: int) -> Outcome:
        rate = cost = hidden = None
        if self.first_look is not None and step > self.first_look[0]:
            training = time.monotonic() - self.first_look[1] - self.waited
            rate = (step - self.first_look[0]) / max(training, 1e-9)
        if self.evaluator is not None and self.evaluator.episodes:
            evaluated = sum(self.tasks[run_spec.task].env is not None for run_spec in self.run_specs)
            episodes = evaluated * self.options.eval_episodes
            cost = self.evaluator.busy_seconds / self.evaluator.episodes * episodes / self.evaluator.size
        if rate is not None and cost is not None:
            chunk = self.options.chunk_steps
            hidden = max(math.ceil(cost * rate / chunk), 1) * chunk
        return Outcome(step, self._seconds(), rate, dict(self.failures), cost, hidden)

    # -- loggers -----------------------------------------------------------------------------------------------
    def _open_loggers(self, run_spec: RunSpec, first_step: int) -> list[Logger]:
        settings = {
            "algo": self.plan.algo,
            "dataset": self.tasks[run_spec.task].data.name,
            "seed": run_spec.seed,
            **flat_values(run_spec.algorithm),
        }
        logged = Logged(self.plan.path, run_spec.name, settings, self.plan.config["started"], first_step)
        return open_loggers(self.options.tensorboard, self.options.logger, logged)

    def _log(self, run: int, group: str, values: Row, step: int) -> None:
        known = {f"{group}/{name}": value for name, value in values.items() if not math.isnan(value)}
        for logger in self.loggers[run]:
            logger.log(known, step)


def passed(every: int, step: int, end: int) -> bool:
    """Whether a multiple of `every` lies after `step` and not after `end`."""
    return end // every > step // every


@cache
def kind_and_settings(algorithm: Any, spec: Spec) -> tuple[str, dict[str, Any]]:
    """What a policy says of itself besides its arrays; nothing is computed."""
    exports: list[Any] = []
    jax.eval_shape(lambda key: exports.append(algorithm.policy(algorithm.init(key, spec))), jax.random.key(0))
    return exports[0].kind, exports[0].settings


_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def _arrays(algorithm: Any, state: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
    one_run = jax.vmap(lambda state, overrides: with_overrides(algorithm, overrides).policy(state).arrays)
    # Copies: the next chunk takes the state's memory.
    return jax.tree.map(jnp.copy, one_run(state, overrides))


_policy_arrays = jax.jit(_arrays, static_argnums=0)


@contextmanager
def _closing(progress: Progress) -> Iterator[Progress]:
    try:
        yield progress
    finally:
        progress.close()


def _jax_precision(name: str) -> str | None:
    return None if name == "default" else name
