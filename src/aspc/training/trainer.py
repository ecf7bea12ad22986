"""The trainer, which processes the chunks of the compiled program on the host.

A single run, several seeds and a fleet have the same form: *tasks* (prepared datasets with their environments) and *run
specs* (one per run, each with its task). The device computes the next chunk while the host processes the previous one.
Everything that the host needs from a state is copied on the device before the next chunk reuses its memory, so only
checkpoints wait for evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from aspc.errors import AspcError
from aspc.interrupts import GracefulShutdown, Interrupted
from aspc.training import run_folder
from aspc.training.algorithm_checks import check_contract
from aspc.training.callback_dispatcher import CallbackDispatcher
from aspc.training.callbacks import Callback
from aspc.training.checkpoints import CheckpointStore, CheckpointWriter
from aspc.training.checksums import Checksums, GrowingFile
from aspc.training.compiled_loop import (
    Loop,
    Piece,
    RowRange,
    Runs,
    crosses_multiple,
    full_blocks_per_chunk,
    on_accelerator,
    plan_chunk,
    run_chunk,
    start_runs,
)
from aspc.training.devices import Devices, out_of_memory_error, use_compilation_cache
from aspc.training.divergence import Diverged, DivergenceGuard, Failure
from aspc.training.evaluation import EvaluationQueue, Evaluator, QueuedEvaluation, episode_seeds
from aspc.training.held_out import HeldOutLosses
from aspc.training.loggers import make_loggers
from aspc.training.policy_export import ExportedArrays, PolicyExporter, RunStates
from aspc.training.prepared_data import score_of, shared_tables
from aspc.training.progress_line import ProgressLine
from aspc.training.run_folder import RowFile, RunRow
from aspc.training.run_status import RunStatus
from aspc.training.speed_meter import SpeedMeter
from aspc.training.training_plan import Outcome, TrainingPlan
from aspc.ui import Progress


class Chunk(NamedTuple):
    """A chunk that the device computes, and the arrays that the host needs from it."""

    end: int
    results: list[tuple[Piece, Any]]
    held_out: Mapping[str, Any]
    """Losses on held-out rows, one per run."""
    theory: Mapping[str, Array]
    policies: ExportedArrays | None
    """The policies of all runs, if an evaluation is due."""
    state: PyTree | None
    """A copy of the state, if a checkpoint is due."""
    live: RunStates | None = None
    """The state itself, for user-supplied callbacks. It forces the chunk to be processed before the next one starts."""


class Trainer:
    """A trainer for the runs of a plan. It holds the lock of the run folder; use it in a `with` block.

    Args:
        plan: The runs to train.
        first_step: The step to start from; None for the newest checkpoint.
        last_step: The step to train up to.
        quiet: Print nothing.
        on_progress: Called with the step and the total number of steps after each chunk.
        callbacks: User-supplied callbacks.

    Raises:
        AspcError: Another process is training in the folder, or the folder is damaged or already past `last_step`.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        first_step: int | None,
        last_step: int,
        quiet: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.plan, self.options, self.last_step = plan, plan.options, last_step
        self.run_specs, self.tasks = list(plan.run_specs), list(plan.tasks)
        self.on_accelerator = on_accelerator()
        self.loop = self._build_loop()
        check_contract(plan.algo, plan.algorithm, self.loop)
        use_compilation_cache()
        self.devices = Devices(self.loop, len(self.run_specs))
        self.exporter = PolicyExporter(plan, self.loop.spec, self.devices)
        self.held_out = HeldOutLosses(plan, self.loop, self.devices)
        self.guard = DivergenceGuard(
            [run_spec.name for run_spec in self.run_specs],
            [run_spec.title for run_spec in self.run_specs],
            self._handle_divergence,
        )
        self.speed = SpeedMeter(plan)
        self.stopped: str | None = None  # a callback's reason for stopping training
        self.final_states: RunStates | None = None
        with ExitStack() as stack:
            stack.enter_context(run_folder.run_lock(plan.path))
            self.checkpoints = CheckpointStore(plan.path / run_folder.CHECKPOINTS, self.options.checkpoints_to_keep)
            stack.callback(self.checkpoints.close)
            self.first_step = first_step = self._find_first_step(first_step)
            self.status = RunStatus(plan.path, self.guard, first_step)
            self.checksums = Checksums(plan.path, first_step, self._growing_file_sizes())
            self.metrics_table = RowFile(plan.path / run_folder.METRICS, first_step)
            self.evaluations_table = RowFile(plan.path / run_folder.EVALUATIONS, first_step)
            self.growing_files = self._open_growing_files()
            self.progress = stack.enter_context(Progress(last_step, first_step, quiet))
            self.progress_line = ProgressLine(self.progress, plan, on_progress)
            own = [*make_loggers(self.options.tensorboard, self.options.logger), self.progress_line]
            self.callbacks = stack.enter_context(
                CallbackDispatcher(plan, first_step, last_step, lambda: self.guard.active_runs, own, callbacks)
            )
            self.evaluations = EvaluationQueue(self.evaluations_table, self._handle_evaluations, plan.resume_with)
            self.writer = CheckpointWriter(
                self.checkpoints,
                self.evaluations,
                self.options.checkpoint_every,
                self._record_checksums,
                self._handle_checkpoint,
            )
            envs = [task.env for task in self.tasks if task.env is not None]
            self.evaluator = stack.enter_context(Evaluator(envs[0])) if envs else None
            precision = self.options.matmul_precision
            stack.enter_context(jax.default_matmul_precision(None if precision == "default" else precision))
            self.shutdown = stack.enter_context(GracefulShutdown())
            self.callbacks.start()
            first_chunk = first_step // self.options.chunk_steps
            prepared = [task.prepared for task in self.tasks]
            self.tables = stack.enter_context(shared_tables(prepared, first_chunk, self.options.memory_budget_mb))
            self._resources = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._resources.__exit__(*exception)

    # -- hooks for subclasses ----------------------------------------------------------------------------------
    def _build_loop(self) -> Loop:
        prepared, vectorize = self.tasks[0].prepared, self.plan.vectorize
        return Loop(
            self.plan.algorithm,
            prepared.spec,
            prepared.layout,
            vectorize=self.on_accelerator if vectorize is None else vectorize,
        )

    def _growing_file_sizes(self) -> dict[str, int]:
        """Return the size in bytes of each growing file at the first step."""
        return {}

    def _open_growing_files(self) -> dict[str, GrowingFile]:
        return {}

    def _initial_state(self) -> tuple[PyTree, Runs]:
        """Return the state at the first step, and everything else that differs between runs."""
        task = np.asarray([run_spec.task for run_spec in self.run_specs])
        offset, size = (np.asarray(values, np.int32)[task] for values in (self.tables.offsets, self.tables.sizes))
        source = RowRange(jnp.asarray(offset), jnp.asarray(size))
        seeds = jnp.asarray([run_spec.seed for run_spec in self.run_specs])
        overrides = {name: jnp.asarray(values) for name, values in self.plan.overrides.items()}
        runs = start_runs(self.plan.algorithm, self.loop.spec, seeds, source, overrides)
        if self.first_step:
            runs = runs._replace(state=self.checkpoints.restore(self.first_step, runs.state))
        runs = self.devices.shard(runs)
        return runs.state, runs._replace(state=None)

    def _run_chunks(self) -> int:
        """Train chunk by chunk, and save the policies; return the last step."""
        state, runs = self._initial_state()
        self.exporter.check(self.first_step, state, runs.overrides)
        step, last_step, chunk_steps = self.first_step, self.last_step, self.options.chunk_steps
        blocks = full_blocks_per_chunk(chunk_steps, self.loop.block_steps)
        unprocessed: Chunk | None = None
        table = None
        while step < last_step:
            end = min((step // chunk_steps + 1) * chunk_steps, last_step)
            if table is None or self.tables.change:
                table = self.devices.replicate(self.tables.next())
            pieces = plan_chunk(step, end, self.loop.block_steps, blocks)
            state, results = run_chunk(self.devices, state, runs, table, pieces, self.loop.block_steps)
            if unprocessed is not None:
                self._process_chunk(unprocessed)  # runs while the device computes
            stop = end == last_step or self.shutdown.signal_number is not None
            evaluate = self.evaluator is not None and (
                end == last_step or crosses_multiple(self.options.eval_every, step, end)
            )
            save = self.writer.is_due(step, end, force=stop)
            monitor_every = self.options.monitor_every
            monitor = monitor_every > 0 and (step == 0 or crosses_multiple(monitor_every, step, end))
            unprocessed = Chunk(
                end,
                results,
                held_out=self.held_out.compute(state, runs),
                theory=self.loop.theory_metrics(state, runs, table, jnp.asarray(end)) if monitor else {},
                policies=self.exporter.export_arrays(state, runs.overrides) if evaluate else None,
                state=_copy(state) if save else None,
                live=self._states_for_callbacks(end, state),
            )
            step = end
            # On a CPU, rollouts and training would compete for the same cores.
            wait = stop or (evaluate and not self.on_accelerator)
            if wait or unprocessed.live is not None:
                self._process_chunk(unprocessed)
                unprocessed = None
            if wait:
                self._collect_evaluations(wait=True)
            if self._should_end_early(step):
                if unprocessed is not None:
                    self._process_chunk(unprocessed)
                self._end_early(step, state, runs.overrides, is_saved=save, is_evaluated=evaluate)
                break
            if not self.guard.active_runs:
                self._collect_evaluations(wait=True)  # evaluations of earlier steps
                break
        if step == last_step or self.stopped is not None:
            self._save_policies(step, self.exporter.export_arrays(state, runs.overrides))
            self.final_states = RunStates(self.exporter, step, state)
        return step

    # -- training ----------------------------------------------------------------------------------------------
    def train(self) -> Outcome:
        """Train up to the last step.

        Raises:
            Interrupted: A signal stopped training.
            Diverged: A run diverged, unless the plan isolates such runs.
            AspcError: An evaluation failed twice, or the device is out of memory.
        """
        try:
            step = self._run_chunks()
        except Exception as error:  # a second Ctrl-C is not caught, so it stops training at once
            if not isinstance(error, OSError):  # a row truncated by a full disk must remain the last row
                self.writer.save_before_failure()
            if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
                rows = max(start + size for start, size in zip(self.tables.offsets, self.tables.sizes, strict=True))
                raise out_of_memory_error(self.loop, len(self.run_specs), rows) from error
            raise
        self._record_checksums(step)
        outcome = self._outcome(step)
        self.callbacks.end("finished" if self.stopped is None else "stopped", self.final_states)
        if self.plan.isolate and self.on_accelerator and self.evaluator is not None:
            self.progress_line.print_evaluation_cost(outcome, self.evaluator.size)
        self.progress.close()
        return outcome

    def _should_end_early(self, step: int) -> bool:
        """Return whether a signal or a callback ends training after a chunk."""
        is_stopped = self.shutdown.signal_number is not None or self.callbacks.should_stop
        return self.callbacks.failure is not None or (is_stopped and step < self.last_step)

    def _end_early(
        self, step: int, state: PyTree, overrides: Mapping[str, Array], is_saved: bool, is_evaluated: bool
    ) -> None:
        """Save the last state after its evaluations, and raise the interruption or failure, if any."""
        is_failed = self.shutdown.signal_number is not None or self.callbacks.failure is not None
        self.stopped = None if is_failed else self.callbacks.stop_reason
        if self.evaluator is not None and self.stopped is not None and not is_evaluated:
            self._submit_evaluations(step, self.exporter.export_arrays(state, overrides))
        if not is_saved:
            self.writer.submit(step, self._fetch_state(step, state))
        self._collect_evaluations(wait=True)
        if self.shutdown.signal_number is not None and step < self.last_step:
            raise Interrupted(
                f"Stopped at step {step:,}; continue with: {self.plan.resume_with}", self.shutdown.signal_number
            )
        self.callbacks.raise_failure()
        self.progress.print(f"Stopped at step {step:,}: {self.stopped}")

    # -- one chunk ---------------------------------------------------------------------------------------------
    def _process_chunk(self, chunk: Chunk) -> None:
        """Fetch a chunk's results to the host, check and log them, then evaluate and save if due."""
        samples = self._fetch_metrics(chunk.results)
        held_out = {name: jax.device_get(losses) for name, losses in chunk.held_out.items()}
        per_run = {**held_out, **self.devices.fetch(chunk.theory)}
        rows: list[RunRow] = []
        for run in self.guard.active_runs:
            means = {name: float(np.concatenate([s[run] for s in parts]).mean()) for name, parts in samples.items()}
            last = {name: float(values[run]) for name, values in per_run.items()}
            rows.append(RunRow(run, {"step": chunk.end, **self.run_specs[run].labels, **means, **last}))
        self.metrics_table.append([row.values for row in rows])
        self.callbacks.chunk(chunk.end, rows, chunk.live)
        self.speed.mark_chunk(chunk.end)
        state = None if chunk.state is None else self._fetch_state(chunk.end, chunk.state)
        if chunk.policies is not None:
            self._submit_evaluations(chunk.end, chunk.policies)
        if state is not None:
            self.writer.submit(chunk.end, state)
        self._collect_evaluations(wait=False)

    def _fetch_metrics(self, results: Sequence[tuple[Piece, Any]]) -> dict[str, list[np.ndarray]]:
        """Return the samples of each metric, [runs, samples] per piece of the chunk, after a check for divergence."""
        values: dict[str, list[np.ndarray]] = {}
        for piece, result in results:
            metrics = self.devices.fetch(result)
            if not piece.blocks:  # single steps: one sample of each metric that was computed
                last, computed = metrics
                metrics = {name: value[:, None] for name, value in last.items() if computed[name].all()}
            steps_per_sample = self.loop.block_steps if piece.blocks else piece.steps
            if self.guard.check_metrics(metrics, piece.first_step, steps_per_sample):
                self.status.write()
            for name, samples in metrics.items():
                values.setdefault(name, []).append(samples)
        return values

    def _fetch_state(self, step: int, state: PyTree) -> PyTree:
        """Return the state on the host, after a check for divergence."""
        state = self.devices.fetch(state)
        if self.guard.check_state(step, state):
            self.status.write()
        return state

    def _handle_divergence(self, failure: Failure) -> None:
        problem = failure.message.removesuffix(".")
        if not self.plan.isolate:
            self.writer.save_before_failure()
            kept = self.checkpoints.latest_step()
            remains = f"the last good checkpoint, step {kept:,}, is kept" if kept else "there is no checkpoint yet"
            raise Diverged(f"{problem}; {remains} in {self.plan.path}.")
        self.progress.print(f"{problem}; the other runs continue.")

    # -- policies and evaluations ------------------------------------------------------------------------------
    def _save_policies(self, step: int, exported: ExportedArrays) -> None:
        for run, policy in self.exporter.build_policies(step, exported, self.guard.active_runs):
            policy.save(self.plan.path / run_folder.POLICY / self.run_specs[run].name)

    def _submit_evaluations(self, step: int, exported: ExportedArrays) -> None:
        assert self.evaluator is not None
        is_last = step == self.last_step or self.stopped is not None
        episodes = (self.options.final_episodes if is_last else None) or self.options.eval_episodes
        for run, policy in self.exporter.build_policies(step, exported, self.guard.active_runs):
            run_spec = self.run_specs[run]
            task = self.tasks[run_spec.task]
            if task.env is not None:
                pending = self.evaluator.evaluate(policy, episode_seeds(run_spec.seed, step, episodes), task.env)
                labels = {"step": step, **run_spec.labels}
                self.callbacks.expect_evaluation(step, run, policy)
                self.evaluations.submit(QueuedEvaluation(run, labels, pending, score_of(task.data, task.env)))

    def _collect_evaluations(self, wait: bool) -> None:
        """Record finished evaluations, then save the checkpoint that waited for them."""
        self.evaluations.collect(wait)
        self.writer.save_if_evaluated()

    def _handle_evaluations(self, rows: list[RunRow]) -> None:
        self.callbacks.evaluation(rows, self.evaluations.has_pending)

    def _handle_checkpoint(self, step: int, state: PyTree) -> None:
        self.status.write()
        self.callbacks.checkpoint(step, RunStates(self.exporter, step, state))

    def _states_for_callbacks(self, step: int, state: PyTree) -> RunStates | None:
        return RunStates(self.exporter, step, state) if self.callbacks.users else None

    # -- the run folder ----------------------------------------------------------------------------------------
    def _find_first_step(self, first_step: int | None) -> int:
        if first_step is not None:
            return first_step
        first_step = self.checkpoints.latest_step() or 0
        if first_step > self.last_step:
            raise AspcError(f"{self.plan.path} is already at step {first_step:,}; pass a larger --steps.")
        return first_step

    def _record_checksums(self, step: int) -> None:
        tables = {table.path.name: table.record(step) for table in (self.metrics_table, self.evaluations_table)}
        self.checksums.record(step, tables, {name: file.record() for name, file in self.growing_files.items()})

    def _outcome(self, step: int) -> Outcome:
        speed = self.speed.measure(step, self.evaluations.wait_seconds, self.evaluator)
        return Outcome(
            step,
            self.status.seconds,
            failures=dict(self.guard.failures),
            signal=self.shutdown.signal_number,
            stopped=self.stopped,
            **speed._asdict(),
        )


_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
