"""`train`: a dataset in, a run folder with a policy out."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspc import algorithms, theory
from aspc.algorithms.base import with_horizon
from aspc.envs import normalised_score, reference_scores
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.presets import overrides
from aspc.training import figure, folder
from aspc.training.checkpoint import Checkpoints
from aspc.training.config import (
    TrainOptions,
    environment_facts,
    replace_fields,
    to_plain,
)
from aspc.training.evaluation import Evaluator, PendingEvaluation, WorkerFailed, episode_seeds
from aspc.training.folder import Row, RowFile, Run
from aspc.training.loop import Loop, Runs, Source, plan_chunk, start_runs, usual_blocks
from aspc.training.problem import Data, Problem, Tables, dataset_facts, load_source, score_of
from aspc.training.progress import Progress

CHECKPOINT_SECONDS = 60.0
A_FUNCTION = "a Python function"  # what the config says of an environment that has no name


class Diverged(AspcError):
    """A quantity became NaN or infinite."""


class Interrupted(AspcError):
    """SIGINT or SIGTERM; the run can be resumed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def train(
    dataset: Data | str | os.PathLike[str] | None = None,
    algo: Any = "aspc",
    *,
    out: str | Path | None = None,
    env: str | Callable[[], Any] | None = "auto",
    resume: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train an algorithm on a dataset and leave a run folder behind.

    `settings` are fields of `TrainOptions` (steps, seeds, eval_every, …) or hyper-parameters of the algorithm
    (alpha, discount, k_alpha, …). `env` is a name or a function that makes the environment; "auto" takes the
    dataset's own, None trains without evaluation, as for logs that have no simulator. `resume` continues a run.

        run = aspc.train("maze2d-umaze", algo="aspc", steps=20_000, seeds=[0, 1])
        run.policy.act(observation)
    """
    names = {field.name for field in dataclasses.fields(TrainOptions)}
    given: dict[str, Any] = {k: tuple(v) if k == "seeds" else v for k, v in settings.items() if k in names}
    hyper = {k: v for k, v in settings.items() if k not in names}
    if resume is not None:
        if set(given) - {"steps"} or hyper:
            raise AspcError("A resumed run keeps its settings; only steps can be given with resume.")
        return resume_run(Path(resume), dataset, algo, env, given.get("steps"), quiet)
    if dataset is None:
        raise AspcError("train needs a dataset: a name, a path, or a Dataset.")
    data = load_source(dataset, {})
    source = os.fspath(dataset) if isinstance(dataset, str | os.PathLike) else None
    variant = {name: hyper.pop(name, default) for name, default in (("bc", "plain"), ("preset", None))}
    algorithm = algorithms.default(algo, variant["bc"]) if isinstance(algo, str) else algo
    if variant["preset"] is not None:
        hyper = {**overrides(str(algo), data.name, variant["preset"]), **hyper}
    return start_run(
        algo if isinstance(algo, str) else getattr(algo, "name", type(algo).__name__),
        replace_fields(algorithm, hyper),
        data,
        TrainOptions(**given),
        source=source,
        variant=variant,
        out=out,
        env=env,
        quiet=quiet,
    )


def start_run(
    name: str,
    algorithm: Any,
    data: Data,
    options: TrainOptions,
    *,
    source: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    variant: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    env: str | Callable[[], Any] | None = "auto",
    quiet: bool = False,
) -> Run:
    """A new run of `algorithm`, called `name`. `source` says where the data can be loaded from again."""
    if options.monitor_every and not theory.can_monitor(algorithm):
        raise AspcError(f"--monitor-every looks at the step that a scale governs; {name} has no scale.")
    algorithm = with_horizon(algorithm, options.horizon or options.steps)
    problem = Problem.of(data, algorithm, options)
    path = Path(out) if out is not None else default_folder(data.name, name)
    environment = data.env if env == "auto" else env
    config = {
        "format": 1,
        "algo": name,
        **(variant or {}),
        "scale_name": getattr(algorithm, "scale_name", None),
        "hyperparameters": to_plain(algorithm),
        "dataset": dataset_facts(data, source, source_options or {}, problem),
        "env": environment if isinstance(environment, str) or environment is None else A_FUNCTION,
        **dataclasses.asdict(options),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **environment_facts(),
    }
    folder.create(path, config)
    return _Training(path, config, data, problem, algorithm, options, environment, quiet).go(0, options.steps)


def resume_run(path: Path, dataset: Any, algo: Any, env: Any, steps: int | None, quiet: bool) -> Run:
    """Continue a run from its newest checkpoint, to its own end or further."""
    run = Run(path)
    config = run.config
    algorithm = algo if not isinstance(algo, str) else algorithms.default(config["algo"], config.get("bc", "plain"))
    algorithm = replace_fields(algorithm, config["hyperparameters"])
    kept: dict[str, Any] = {field.name: config[field.name] for field in dataclasses.fields(TrainOptions)}
    options = TrainOptions(**{**kept, "seeds": tuple(config["seeds"])})
    source = dataset if dataset is not None else config["dataset"]["source"]
    if source is None:
        raise AspcError(f"{path} was trained on arrays: give the dataset again, train(dataset, resume=…).")
    data = load_source(source, config["dataset"]["options"])
    problem = Problem.of(data, algorithm, options)
    if problem.fingerprint != config["dataset"]["fingerprint"]:
        raise AspcError(f"The data is not what {path} was trained on (its content differs); a run cannot change data.")
    environment = config["env"] if env == "auto" else env
    if environment == A_FUNCTION:
        raise AspcError(f"{path} was evaluated in an environment made by a Python function: give it again as env=….")
    steps = steps or options.steps
    if run.result is not None and run.result["steps"] >= steps:
        raise AspcError(f"{path} has already trained {run.result['steps']:,} steps; give more with --steps.")
    training = _Training(path, config, data, problem, algorithm, options, environment, quiet)
    return training.go(None, steps)


def default_folder(dataset: str, algo: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{dataset}_{algo}_{stamp}"


# ---------------------------------------------------------------------------------------------------------------
# The run itself
# ---------------------------------------------------------------------------------------------------------------


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, to be obeyed at the end of the chunk; a second SIGINT is Python's own."""
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    try:
        before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
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


class _Training:
    """One call of `train`: what happens between the chunks."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        data: Data,
        problem: Problem,
        algorithm: Any,
        options: TrainOptions,
        env: str | Callable[[], Any] | None,
        quiet: bool,
    ) -> None:
        self.path, self.config, self.data, self.problem = path, config, data, problem
        self.algorithm, self.options, self.env, self.quiet = algorithm, options, env, quiet
        self.seeds = list(options.seeds)
        self.on_accelerator = jax.devices()[0].platform != "cpu"
        self.loop = Loop(algorithm, problem.spec, problem.layout, vectorise=self.on_accelerator)
        self.evaluations_under_way: list[tuple[int, int, PendingEvaluation]] = []
        self.monitored: dict[int, dict[str, Any]] = {}  # by step; on the device until the chunk is looked at

    # -- the whole of it ---------------------------------------------------------------------------------------
    def go(self, first_step: int | None, last_step: int) -> Run:
        use_compilation_cache()
        with ExitStack() as stack:
            stack.callback(folder.lock(self.path).release)
            self.checkpoints = Checkpoints(self.path / "checkpoints")
            stack.callback(self.checkpoints.close)
            if first_step is None:
                first_step = self.checkpoints.latest_step() or 0
            self.metrics = RowFile(self.path / folder.METRICS, first_step)
            self.evaluations = RowFile(self.path / folder.EVALUATIONS, first_step)
            self.progress = stack.enter_context(_closing(Progress(last_step, first_step, self.quiet)))
            self.writers = self._tensorboard(first_step)
            for writer in self.writers:
                stack.callback(writer.close)
            self.evaluator = stack.enter_context(Evaluator(self.env)) if self.env is not None else None
            stack.enter_context(jax.default_matmul_precision(_jax_precision(self.options.matmul_precision)))
            caught = stack.enter_context(caught_signals())
            self._announce(first_step, last_step)
            first_chunk = first_step // self.options.chunk_steps
            tables = stack.enter_context(self.problem.tables(first_chunk, self.options.memory_budget_mb))
            seconds = self._steps(first_step, last_step, caught, tables)
            self.progress.close()
        return self._finish(last_step, seconds)

    def _announce(self, first_step: int, last_step: int) -> None:
        for note in self.data.notes:
            self.progress.say(f"note: {note}")
        if first_step:
            self.progress.say(f"Continuing {self.path} from step {first_step:,}.")
        if last_step > self.options.steps:
            self.progress.say(
                f"Going on to {last_step:,} steps; schedules that decay keep the horizon of "
                f"{self.options.horizon or self.options.steps:,} steps that the run began with."
            )

    def _start(self, first_step: int, rows: int) -> Runs:
        runs = len(self.seeds)
        source = Source(jnp.zeros(runs, jnp.int32), jnp.full(runs, rows, jnp.int32))
        started = start_runs(self.algorithm, self.problem.spec, jnp.asarray(self.seeds), source)
        if first_step:
            state = self.checkpoints.restore(first_step, started.state)
            started = started._replace(state=jax.tree.map(jnp.asarray, state))
        return started

    def _steps(self, step: int, last_step: int, caught: list[int], tables: Tables) -> float:
        """Chunk after chunk. The device computes the next one while the host looks at the last."""
        began = last_checkpoint = time.monotonic()
        runs = self._start(step, tables.rows)
        state, runs = runs.state, runs._replace(state=None)
        self._prepare_validation(runs)
        chunk = self.options.chunk_steps
        blocks = usual_blocks(chunk, self.loop.block_steps)
        unseen: tuple[int, list[Any]] | None = None
        while step < last_step:
            end = min((step // chunk + 1) * chunk, last_step)
            results, table = [], tables.next()
            for piece in plan_chunk(step, end, self.loop.block_steps, blocks):
                if piece.blocks:
                    first_block = jnp.asarray(piece.first_step // self.loop.block_steps)
                    state, metrics = self.loop.run_blocks(state, runs, table, first_block, blocks=piece.blocks)
                else:
                    state, *metrics = self.loop.run_steps(
                        state, runs, table, jnp.asarray(piece.first_step), jnp.asarray(piece.steps)
                    )
                results.append((piece, metrics))
            if self._monitor_due(step, end):
                self.monitored[end] = self.loop.theory_on(state, runs, table, jnp.asarray(end))
            self._look_at(unseen)
            unseen = (end, results)
            evaluate = self.evaluator is not None and (end // self.options.eval_every > step // self.options.eval_every)
            evaluate = evaluate or (self.evaluator is not None and end == last_step)
            step = end
            if self.options.checkpoint_every:
                due = step // self.options.checkpoint_every > (step - chunk) // self.options.checkpoint_every
            else:
                due = time.monotonic() - last_checkpoint > CHECKPOINT_SECONDS
            due = due or step == last_step or bool(caught)
            if evaluate or due or self.held_out is not None:
                self._look_at(unseen, state)
                unseen = None
            if evaluate:
                self._evaluate(step, state, last=step == last_step)
            self._collect_evaluations(wait=due or not self.on_accelerator)
            if due:
                self.checkpoints.save(step, state)
                last_checkpoint = time.monotonic()
            if caught and step < last_step:
                self.progress.close()
                raise Interrupted(
                    f"Stopped at step {step:,}; continue with: aspc train --resume {self.path}", caught[0]
                )
        self._save_policies(step, state)
        return time.monotonic() - began

    # -- metrics -----------------------------------------------------------------------------------------------
    def _monitor_due(self, step: int, end: int) -> bool:
        """Where a multiple of `monitor_every` was passed; and in the first row, which names the file's columns."""
        every = self.options.monitor_every
        return every > 0 and (step == 0 or end // every > step // every)

    def _look_at(self, unseen: tuple[int, list[Any]] | None, state: Any = None) -> None:
        """Bring a chunk's metrics to the host: check, log, show."""
        if unseen is None:
            return
        end, results = unseen
        values: dict[str, list[np.ndarray]] = {}
        for piece, metrics in results:
            metrics = jax.device_get(metrics)
            if not piece.blocks:  # single steps: one sample of each metric, of those that were computed
                last, computed = metrics
                metrics = {name: value[:, None] for name, value in last.items() if computed[name].all()}
            for name, samples in metrics.items():
                self._refuse_nan(name, samples, piece)
                values.setdefault(name, []).append(samples)
        valid = self._validate(state) if state is not None else {}
        seen = jax.device_get(self.monitored.pop(end, {}))
        rows: list[Row] = []
        for i, seed in enumerate(self.seeds):
            row: Row = {"step": end, "seed": seed}
            row |= {name: float(np.concatenate([s[i] for s in samples]).mean()) for name, samples in values.items()}
            row |= {name: float(value[i]) for name, value in {**valid, **seen}.items()}
            rows.append(row)
        self.metrics.append(rows)
        for row, writer in zip(rows, self.writers, strict=False):
            for name, value in row.items():
                if name not in ("step", "seed") and not math.isnan(value):
                    writer.add_scalar(f"train/{name}", value, end)
        shown = {}
        if "scale" in rows[0]:
            shown[self.config["scale_name"] or "scale"] = f"{np.mean([r['scale'] for r in rows]):.3g}"
        self.progress.show(end, **shown)

    def _refuse_nan(self, name: str, samples: np.ndarray, piece: Any) -> None:
        bad = ~np.isfinite(samples)
        if not bad.any():
            return
        run, block = np.argwhere(bad)[np.argwhere(bad)[:, 1].argmin()]
        step = (
            piece.first_step + (block + 1) * self.loop.block_steps if piece.blocks else piece.first_step + piece.steps
        )
        kept = self.checkpoints.latest_step()
        where = f"the last good checkpoint, step {kept:,}, is kept" if kept is not None else "no checkpoint was due yet"
        raise Diverged(
            f"{name} became {samples[run, block]} at step {step:,} (seed {self.seeds[run]}); {where} in {self.path}."
        )

    # -- held-out episodes -------------------------------------------------------------------------------------
    def _prepare_validation(self, runs: Runs) -> None:
        self.held_out = None if self.problem.held_out is None else jnp.asarray(self.problem.held_out)
        self.runs = runs

    def _validate(self, state: Any) -> dict[str, np.ndarray]:
        if self.held_out is None:
            return {}
        losses = self.loop.losses_on(state, self.runs, self.held_out)
        return {f"valid_{name}": value for name, value in jax.device_get(losses).items()}

    # -- evaluation --------------------------------------------------------------------------------------------
    def _policies(self, step: int, state: Any) -> list[Policy]:
        """The policy of every run, on the host."""
        exports: list[Any] = []

        def arrays(one: Any) -> dict[str, Any]:
            export = self.algorithm.policy(one)
            exports.append(export)
            return export.arrays

        stacked = jax.device_get(jax.vmap(arrays)(state))
        info = {
            "algo": self.config["algo"],
            "dataset": self.data.name,
            "step": step,
            "versions": self.config["versions"],
        }
        return [
            Policy(
                exports[0].kind,
                {name: array[i] for name, array in stacked.items()},
                exports[0].settings,
                self.problem.normaliser.mean,
                self.problem.normaliser.std,
                self.data.action_low,
                self.data.action_high,
                {**info, "seed": seed},
            )
            for i, seed in enumerate(self.seeds)
        ]

    def _evaluate(self, step: int, state: Any, last: bool) -> None:
        assert self.evaluator is not None
        episodes = (self.options.final_episodes if last else None) or self.options.eval_episodes
        for seed, policy in zip(self.seeds, self._policies(step, state), strict=True):
            pending = self.evaluator.evaluate(policy, episode_seeds(seed, step, episodes))
            self.evaluations_under_way.append((step, seed, pending))

    def _collect_evaluations(self, wait: bool) -> None:
        """Record evaluations in the order in which they were asked for."""
        rows = []
        while self.evaluations_under_way and (wait or self.evaluations_under_way[0][2].done()):
            step, seed, pending = self.evaluations_under_way.pop(0)
            try:
                row = pending.result().row(score_of(self.data))
            except WorkerFailed as failure:
                raise AspcError(f"Evaluation at step {step:,} failed twice: {failure}") from failure
            rows.append({"step": step, "seed": seed, **row})
        self.evaluations.append(rows)
        for row in rows:
            writer = self.writers[self.seeds.index(int(row["seed"]))] if self.writers else None
            for name in ("score_mean", "return_mean", "success_rate"):
                if writer is not None and not math.isnan(row[name]):
                    writer.add_scalar(f"evaluation/{name}", row[name], int(row["step"]))
        if rows:
            name = "return" if math.isnan(rows[-1]["score_mean"]) else "score"
            latest = [r[f"{name}_mean"] for r in rows if r["step"] == rows[-1]["step"]]
            self.progress.show(int(rows[-1]["step"]), **{name: f"{np.mean(latest):.1f}"})

    # -- the end -----------------------------------------------------------------------------------------------
    def _save_policies(self, step: int, state: Any) -> None:
        for seed, policy in zip(self.seeds, self._policies(step, state), strict=True):
            policy.save(self.path / "policy" / f"seed{seed}")

    def _finish(self, last_step: int, seconds: float) -> Run:
        evaluations = folder.read_rows(self.path / folder.EVALUATIONS)
        result = {
            "steps": last_step,
            "seconds": round(seconds, 3),
            "matmul_precision": self.options.matmul_precision,
            **folder.summary(evaluations, self.seeds),
        }
        folder.write_json(self.path / folder.RESULT, result)
        run = Run(self.path)
        figure.draw(run)
        return run

    def _tensorboard(self, first_step: int) -> list[Any]:
        if not self.options.tensorboard:
            return []
        from tensorboardX import SummaryWriter

        return [
            SummaryWriter(str(self.path / "tensorboard" / f"seed{seed}"), purge_step=first_step or None)
            for seed in self.seeds
        ]


@contextmanager
def _closing(progress: Progress) -> Iterator[Progress]:
    try:
        yield progress
    finally:
        progress.close()


def _jax_precision(name: str) -> str | None:
    return None if name == "default" else {"high": "high", "highest": "highest"}[name]


def evaluate(run: Run, episodes: int = 100, seeds: Sequence[int] | None = None, env: str | None = None) -> list[Row]:
    """Roll the saved policies of a run out again, in episodes that training did not use."""
    environment = env or run.config["env"]
    if environment is None or environment == A_FUNCTION:
        raise AspcError(f"{run.path} names no environment to evaluate in; give one with --env.")
    known = reference_scores(environment) is not None
    rows = []
    with Evaluator(environment) as evaluator:
        for seed in seeds or run.seeds:
            pending = evaluator.evaluate(run.policy_of(seed), episode_seeds(seed, -1 % 2**32, episodes))
            try:
                evaluation = pending.result()
            except WorkerFailed as failure:
                raise AspcError(f"The evaluation failed: {failure}") from failure
            row = evaluation.row(lambda r: normalised_score(environment, r) if known else None)
            rows.append({"seed": seed, **row})
    return rows
