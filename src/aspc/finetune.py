"""`aspc finetune`: go on from a run in its environment, offline to online.

The whole state goes on: networks, targets, optimisers, and ASPC's scale, which keeps adapting. In turns, the current
policy collects some steps in the environment on the host, and the same compiled loop that trained offline updates on
minibatches of old and new rows:

    table    [ offline rows | ring of online rows ]        on the device, as large as it will ever be
    a batch  offline_share of its rows from the left part, the rest from what the ring holds by now

Nothing recompiles as the ring fills. The normaliser and the transformation of rewards stay those of the offline data.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aspc.algorithms.base import with_horizon
from aspc.cli import load_plugin, parse, print_result
from aspc.data import Dataset
from aspc.envs import make_env
from aspc.errors import AspcError
from aspc.ope.runs import Trained
from aspc.policy import Policy
from aspc.training import figure, folder
from aspc.training.config import TrainOptions, environment_facts, to_plain
from aspc.training.devices import Devices
from aspc.training.folder import Run
from aspc.training.loggers import LoggerName
from aspc.training.loop import Loop, Runs, Source, at, plan_chunk, run_chunk, usual_blocks
from aspc.training.problem import Tables, discount_of, load_source, transitions_of
from aspc.training.run import A_FUNCTION, default_folder
from aspc.training.table import pack
from aspc.training.trainer import CHECKPOINT_SECONDS, Chunk, Interrupted, Place, Plan, Trainee, Trainer, passed

ONLINE = "online.f32"  # every row collected, packed, as bare float32: the ring is filled from it on resuming
DEFAULT_NOISE = 0.1
ONLINE_KEY = 2  # folded into the seed's key: other draws than offline ones


@dataclass(frozen=True)
class OnlineOptions:
    """How to go on online."""

    steps: int = 10_000
    """Steps in the environment."""
    collect: int = 100
    """Steps to collect between updates. Must divide eval_every."""
    updates: int = 1
    """Updates for each step collected."""
    noise: float | None = None
    """Standard deviation of Gaussian noise on the actions, as a share of half their range. Default: 0.1 for policies
    that are deterministic, 0 for those that sample by themselves (diffusion, flow)."""
    offline_share: float = 0.5
    """Share of each minibatch that comes from the offline data."""
    buffer: int | None = None
    """Online steps that are kept, the newest; by default all."""
    horizon: int | None = None
    """Steps over which schedules decay (the scale's learning rate, for one), the offline ones included; by default the
    offline steps and all updates to come."""
    eval_every: int = 1_000
    """Steps between evaluations."""
    eval_episodes: int = 10
    """Episodes of each evaluation."""
    final_episodes: int | None = None
    """Episodes of the last evaluation, if not the same."""
    tensorboard: bool = True
    """Also write the metrics as TensorBoard events."""
    logger: LoggerName = "none"
    """Also send them to Weights & Biases or MLflow, which their own environment variables configure."""

    def __post_init__(self) -> None:
        for name in ("steps", "collect", "updates", "eval_every", "eval_episodes"):
            if getattr(self, name) < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
        if self.eval_every % self.collect:
            raise AspcError(f"--eval-every must be a multiple of --collect, but {self.eval_every} is not.")
        if not 0 <= self.offline_share <= 1:
            raise AspcError(f"--offline-share is a share, 0 to 1, not {self.offline_share}.")
        if self.noise is not None and not 0 <= self.noise < np.inf:
            raise AspcError(f"--noise is a standard deviation and cannot be {self.noise}.")
        if self.buffer is not None and self.buffer < self.collect:
            raise AspcError(f"--buffer must be at least --collect ({self.collect}), not {self.buffer}.")

    def capacity(self, steps: int) -> int:
        """Rows of the ring for that many steps in all: whole collections, so that none wraps around."""
        return -(-min(self.buffer or steps, steps) // self.collect) * self.collect


# ---------------------------------------------------------------------------------------------------------------
# From the library
# ---------------------------------------------------------------------------------------------------------------


def finetune(
    run: str | Path | Run,
    env: str | Callable[[], Any] | None = None,
    *,
    seed: int | None = None,
    dataset: Dataset | str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Go on from the checkpoint of a run, for one of its seeds; leaves a run folder of its own behind.

    `env` is by default the run's own. `settings` are fields of `OnlineOptions`. `dataset` has to be given only where
    the run was trained on arrays.

        online = aspc.finetune.finetune("runs/maze", steps=10_000)
    """
    offline, online = run if isinstance(run, Run) else Run(run), OnlineOptions(**settings)
    if "finetuned_from" in offline.config:
        raise AspcError(f"{offline.path} is online already; go on with: aspc finetune --resume {offline.path}.")
    seed = offline.seeds[0] if seed is None else seed
    if seed not in offline.seeds:
        raise AspcError(f"{offline.path} has no seed {seed}; it has {', '.join(map(str, offline.seeds))}.")
    environment = environment_of(offline, env)
    trained = offline_part(offline, dataset)
    steps = trained.checkpoint_steps()
    if not steps:
        raise AspcError(f"{offline.path} keeps no checkpoint to go on from; train it with aspc train.")
    algorithm = with_horizon(trained.algorithm, online.horizon or steps[-1] + online.steps * online.updates)
    options = train_options(offline, online, seed)
    path = Path(out) if out is not None else default_folder(trained.dataset.name, f"{offline.config['algo']}_online")
    config = {
        **offline.config,
        "hyperparameters": to_plain(algorithm),
        "env": environment if isinstance(environment, str) else A_FUNCTION,
        **dataclasses.asdict(options),
        "online": dataclasses.asdict(online),
        "finetuned_from": {"run": str(offline.path.absolute()), "seed": seed, "step": steps[-1]},
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **environment_facts(),
    }
    folder.create(path, config)
    return _go(path, config, trained, algorithm, environment, online, options, online.steps, quiet)


def resume(
    path: str | Path,
    steps: int | None = None,
    env: str | Callable[[], Any] | None = None,
    *,
    dataset: Dataset | str | None = None,
    quiet: bool = False,
) -> Run:
    """Continue a fine-tuning from its newest checkpoint, to its own end or to `steps`.

    Everything but the environment itself was saved, so it begins with a fresh episode.
    """
    run = Run(path)
    if "finetuned_from" not in run.config:
        raise AspcError(f"{run.path} was trained offline; continue it with aspc train --resume, or fine-tune it.")
    if run.result is not None and run.result["steps"] >= (steps or run.config["steps"]):
        raise AspcError(f"{run.path} has already gone {run.result['steps']:,} steps; give more with --steps.")
    online = OnlineOptions(**run.config["online"])
    options = train_options(run, online, run.seeds[0])
    trained = offline_part(run, dataset)
    last_step = steps or online.steps
    return _go(
        run.path,
        run.config,
        trained,
        trained.algorithm,
        environment_of(run, env),
        online,
        options,
        last_step,
        quiet,
        resuming=True,
    )


def environment_of(run: Run, env: str | Callable[[], Any] | None) -> str | Callable[[], Any]:
    found = env or run.config["env"]
    if found is None or found == A_FUNCTION:
        raise AspcError(f"{run.path} names no environment to go on in; give one with --env.")
    return found


def offline_part(run: Run, dataset: Dataset | str | None) -> Trained:
    """The run's algorithm, and its data made ready as it was."""
    source = dataset if dataset is not None else run.config["dataset"]["source"]
    if source is None:
        raise AspcError(f"{run.path} was trained on arrays: give the dataset again, finetune(…, dataset=…).")
    data = load_source(source, run.config["dataset"]["options"])
    if not isinstance(data, Dataset):
        raise AspcError(f"{run.path} was trained on streamed data; fine-tuning needs data that fits in memory.")
    trained = Trained.of(run, data)
    if not trained.same_data:
        raise AspcError(f"The data is not what {run.path} was trained on (its content differs).")
    return trained


def train_options(run: Run, online: OnlineOptions, seed: int) -> TrainOptions:
    """What the trainer needs to know; how rows are made of data stays as it was."""
    kept = {name: run.config[name] for name in ("holdout", "n_step", "matmul_precision")}
    names = {field.name for field in dataclasses.fields(TrainOptions)} - {"horizon"}
    shared = {name: value for name, value in dataclasses.asdict(online).items() if name in names}
    return TrainOptions(**kept, **shared, seeds=(seed,), log_every=online.collect)


def _go(
    path: Path,
    config: dict[str, Any],
    trained: Trained,
    algorithm: Any,
    env: str | Callable[[], Any],
    online: OnlineOptions,
    options: TrainOptions,
    last_step: int,
    quiet: bool,
    resuming: bool = False,
) -> Run:
    (seed,) = options.seeds
    plan = Plan(
        path,
        config["algo"],
        algorithm,
        [Place(trained.dataset, trained.problem, env)],
        [Trainee(f"seed{seed}", seed, 0, algorithm, {"seed": seed}, f"seed {seed}")],
        {},
        options,
        config,
        resume_with=f"aspc finetune --resume {path}",
    )
    outcome = OnlineTrainer(plan, online, config["finetuned_from"], quiet).go(None if resuming else 0, last_step)
    result = {
        "steps": outcome.step,
        "updates": outcome.step * online.updates,
        "offline_steps": config["finetuned_from"]["step"],
        "seconds": round(outcome.seconds, 3),
        "matmul_precision": options.matmul_precision,
        **folder.summary(folder.read_rows(path / folder.EVALUATIONS), list(options.seeds)),
    }
    folder.write_json(path / folder.RESULT, result)
    run = Run(path)
    figure.draw(run)
    return run


# ---------------------------------------------------------------------------------------------------------------
# Collecting
# ---------------------------------------------------------------------------------------------------------------


class Collector:
    """Steps an environment with a policy, episode after episode."""

    def __init__(self, env: str | Callable[[], Any], data: Dataset, seed: int, noise: float | None) -> None:
        self.env: Any = make_env(env) if isinstance(env, str) else env()
        self.data, self.seed, self.noise = data, seed, noise
        self.observation: np.ndarray | None = None
        self.episode_return = 0.0

    def _reset(self, step: int) -> None:
        (seed,) = np.random.SeedSequence((self.seed, step)).generate_state(1)
        self.observation, _ = self.env.reset(seed=int(seed))
        self.episode_return = 0.0

    def collect(self, policy: Policy, first_step: int, steps: int) -> tuple[Dataset, list[float]]:
        """The next `steps` steps, and the returns of the episodes that ended in them.

        The draws depend on the seed and the step alone, so there is no generator to save.
        """
        rng = np.random.default_rng((self.seed, first_step))
        noise = self.noise if self.noise is not None else 0.0 if policy.noise() else DEFAULT_NOISE
        spread = noise * (policy.action_high - policy.action_low) / 2
        if self.observation is None:
            self._reset(first_step)
        rows: dict[str, list[Any]] = {key: [] for key in ("observations", "actions", "rewards", "next_observations")}
        terminals, timeouts = np.zeros(steps, bool), np.zeros(steps, bool)
        returns: list[float] = []
        for t in range(steps):
            observation = self.observation
            assert observation is not None
            action = policy.act(observation, rng)
            if noise:
                wild = action + spread * rng.standard_normal(action.shape, np.float32)
                action = np.clip(wild, policy.action_low, policy.action_high)
            following, reward, terminals[t], timeouts[t], _ = self.env.step(action)
            for key, value in zip(rows, (observation, action, reward, following), strict=True):
                rows[key].append(value)
            self.observation, self.episode_return = following, self.episode_return + float(reward)
            if terminals[t] or timeouts[t]:
                returns.append(self.episode_return)
                self._reset(first_step + t + 1)
        timeouts[-1] = True  # this log stops here
        low, high = self.data.action_low, self.data.action_high
        log = Dataset.from_arrays(
            rows["observations"],
            rows["actions"],
            rows["rewards"],
            terminals,
            timeouts,
            rows["next_observations"],
            action_low=low,
            action_high=high,
            name="what was collected",
        )
        return log, returns

    def close(self) -> None:
        self.env.close()


@contextmanager
def collecting(env: str | Callable[[], Any], data: Dataset, seed: int, noise: float | None) -> Iterator[Collector]:
    collector = Collector(env, data, seed, noise)
    try:
        size = collector.env.observation_space.shape[-1]
        if size != data.observation_size or collector.env.action_space.shape != data.action_low.shape:
            raise AspcError(
                f"The environment has {size} observation and {collector.env.action_space.shape[-1]} action numbers, "
                f"but the policy has {data.observation_size} and {data.action_size}; name another with --env."
            )
        yield collector
    finally:
        collector.close()


class RowLog:
    """A file of packed rows that grows; rows after a checkpoint's step are dropped on opening, as in the CSV files."""

    def __init__(self, path: Path, width: int, rows: int) -> None:
        self.path, self.width = path, width
        size = path.stat().st_size if path.exists() else 0
        if size < rows * width * 4:
            raise AspcError(f"{path} is damaged: it has fewer rows than the checkpoint of step {rows:,} speaks of.")
        with open(path, "ab") as file:
            file.truncate(rows * width * 4)

    def append(self, rows: np.ndarray) -> None:
        with open(self.path, "ab") as file:
            file.write(np.ascontiguousarray(rows, np.float32).tobytes())
            file.flush()
            os.fsync(file.fileno())

    def read(self, first: int, last: int) -> np.ndarray:
        values = np.fromfile(self.path, np.float32, (last - first) * self.width, offset=first * self.width * 4)
        return values.reshape(last - first, self.width)


# ---------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MixedLoop(Loop):
    """The loop whose minibatches mix the table's first `offline_rows` rows with those of the run's source."""

    offline_rows: int = 0
    offline_share: float = 0.0

    def draw_rows(self, key: PRNGKeyArray, source: Source, shape: tuple[int, ...]) -> Int[Array, "..."]:
        key_offline, key_online, key_which = jax.random.split(key, 3)
        offline = jax.random.randint(key_offline, shape, 0, self.offline_rows)
        online = super().draw_rows(key_online, source, shape)
        return jnp.where(jax.random.uniform(key_which, shape) < self.offline_share, offline, online)


def filled_table(offline: np.ndarray, log: RowLog, step: int, capacity: int) -> np.ndarray:
    """Offline rows, then the ring with what was collected up to `step`: row i is at i modulo its capacity."""
    ring = np.zeros((capacity, offline.shape[1]), np.float32)
    first = max(step - capacity, 0)
    ring[np.arange(first, step) % capacity] = log.read(first, step)
    return np.concatenate([offline, ring])


def with_new_rows(table: jax.Array, rows: np.ndarray, step: int, capacity: int, collect: int) -> jax.Array:
    """The table with the rows of the steps from `step` on. A last, short collection is filled up to `collect` rows, so
    that its shape is the usual one."""
    filled = np.zeros((collect, rows.shape[1]), np.float32)
    filled[: len(rows)] = rows
    places = np.full(collect, len(table), np.int32)
    places[: len(rows)] = len(table) - capacity + np.arange(step, step + len(rows)) % capacity
    return put_rows(table, jnp.asarray(filled), jnp.asarray(places))


@partial(jax.jit, donate_argnums=0)
def put_rows(
    table: Float[Array, "rows width"], rows: Float[Array, "new width"], places: Int[Array, "new"]
) -> Float[Array, "rows width"]:
    """The table with new rows in their places; a place behind the table's end is none."""
    return table.at[places].set(rows, mode="drop")


class OnlineTrainer(Trainer):
    """A trainer that collects before every chunk."""

    def __init__(self, plan: Plan, online: OnlineOptions, origin: dict[str, Any], quiet: bool) -> None:
        super().__init__(plan, quiet)
        self.online, self.origin = online, origin
        (self.place,), (self.trainee,) = self.places, self.trainees
        same = {field.name: getattr(self.loop, field.name) for field in dataclasses.fields(self.loop)}
        self.loop = MixedLoop(**same, offline_rows=self.place.problem.transitions, offline_share=online.offline_share)
        self.devices = Devices(self.loop, 1)

    def _start(self, first_step: int, tables: Tables) -> tuple[Any, Runs]:
        """The offline run's state, or that of a checkpoint of our own."""
        seed = self.trainee.seed
        if self.checkpoints.latest_step() is None:
            assert isinstance(self.place.data, Dataset)
            offline = Trained.of(Run(self.origin["run"]), self.place.data)
            all_seeds = offline.states([self.origin["step"]])[self.origin["step"]]
            state = at(all_seeds, jnp.asarray([offline.run.seeds.index(seed)]))
        else:
            state = self.checkpoints.restore(first_step, self._like())
        key = jax.random.fold_in(jax.random.key(seed), ONLINE_KEY)
        source = Source(jnp.asarray(tables.sizes, jnp.int32), jnp.zeros(1, jnp.int32))
        return jax.tree.map(jnp.asarray, state), Runs(None, key[None], source, {})

    def _like(self) -> Any:
        """The shapes of the state, with the leading axis of runs."""
        one = jax.eval_shape(lambda: self.plan.algorithm.init(jax.random.key(0), self.loop.spec))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), one)

    def _steps(self, step: int, last_step: int, caught: list[int], tables: Tables) -> int:
        """In turns: collect on the host, update on the device."""
        state, runs = self._start(step, tables)
        problem, collect, updates = self.place.problem, self.online.collect, self.online.updates
        self.held_out = [None if problem.held_out is None else self.devices.everywhere(problem.held_out)]
        log = RowLog(self.plan.path / ONLINE, problem.layout.width, step)
        capacity = self.online.capacity(last_step)
        table = self.devices.everywhere(filled_table(tables.next(), log, step, capacity))
        blocks = usual_blocks(collect * updates, self.loop.block_steps)
        last_checkpoint = time.monotonic()
        if self.checkpoints.latest_step() is None:
            if self.evaluations.columns is None:
                self._evaluate(0, self._export(state, {}))  # the offline policy, to compare with
            self._save_when_evaluated(0, state)
            self._collect_evaluations(wait=True)
        env, data = self.place.env, self.place.data
        assert env is not None
        assert isinstance(data, Dataset)
        with collecting(env, data, self.trainee.seed, self.online.noise) as collector:
            while step < last_step:
                end = min((step // collect + 1) * collect, last_step)
                ((_, policy),) = self._policies(step, self._export(state, {}))
                collected, returns = collector.collect(policy, step, end - step)
                rows = self._packed(collected)
                log.append(rows)
                table = with_new_rows(table, rows, step, capacity, collect)
                online_rows = min(end, capacity)
                runs = runs._replace(source=runs.source._replace(size=jnp.full(1, online_rows, jnp.int32)))
                pieces = plan_chunk(step * updates, end * updates, self.loop.block_steps, blocks)
                state, results = run_chunk(self.devices, state, runs, table, pieces, self.loop.block_steps)
                stop = end == last_step or bool(caught)
                evaluate = end == last_step or passed(self.online.eval_every, step, end)
                save = stop or time.monotonic() - last_checkpoint > CHECKPOINT_SECONDS
                if save:
                    last_checkpoint = time.monotonic()
                seen = {"online_rows": online_rows, "online_return": np.mean(returns) if returns else np.nan}
                chunk = Chunk(
                    end,
                    results,
                    valid={**self._validate(state, runs), **{name: np.asarray([x]) for name, x in seen.items()}},
                    theory={},
                    policies=self._export(state, {}) if evaluate else None,
                    state=state if save else None,
                )
                step = end
                self._look_at(chunk)
                self._collect_evaluations(wait=True)
                if caught and step < last_step:
                    self.progress.close()
                    raise Interrupted(f"Stopped at step {step:,}; continue with: {self.plan.resume_with}", caught[0])
        self._save_policies(step, self._export(state, {}))
        return step

    # -- rows --------------------------------------------------------------------------------------------------
    def _packed(self, collected: Dataset) -> np.ndarray:
        """One packed row for each step, made as the offline rows were."""
        data, problem, algorithm = self.place.data, self.place.problem, self.plan.algorithm
        assert isinstance(data, Dataset)
        like = data if self.options.holdout == 0 else data.split(self.options.holdout, seed=0)[0]
        transitions = transitions_of(collected, algorithm, self.options, like)
        return pack(transitions, problem.layout, problem.normaliser, discount_of(algorithm))


# ---------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finetune:
    """Go on from a run in its environment: collect with the current policy, learn from old and new rows.

    Networks, optimisers and the scale go on from the run's last checkpoint. Leaves a run folder of its own behind,
    whose step 0 is the offline policy.
    """

    run: tyro.conf.Positional[Path | None] = None
    """The offline run's folder."""
    env: str | None = None
    """The environment; by default the run's own."""
    seed: int | None = None
    """Which of the run's seeds; by default the first."""
    out: Path | None = None
    """Folder for the new run. Default: runs/DATASET_ALGO_online_TIME."""
    resume: Path | None = None
    """Continue the fine-tuning in this folder (instead of RUN). Only --steps and --env can be changed."""
    plugin: Path | None = None
    """A Python file that registers the algorithm, where it is your own."""
    quiet: bool = False
    """Show no progress."""
    online: tyro.conf.OmitArgPrefixes[OnlineOptions] = dataclasses.field(default_factory=OnlineOptions)


def main(argv: list[str]) -> int:
    asked = parse(Finetune, argv, "finetune")
    if (asked.run is None) == (asked.resume is None):
        raise AspcError("Give the folder of a run to go on from, or --resume and the folder of a fine-tuning.")
    if asked.plugin is not None:
        load_plugin(str(asked.plugin))
    if asked.resume is not None:
        allowed = {"--resume", "--steps", "--env", "--plugin", "--quiet"}
        others = [word for word in argv if word.startswith("--") and word.split("=")[0] not in allowed]
        if others:
            raise AspcError(f"A resumed run keeps its settings; only --steps can be given, not {', '.join(others)}.")
        steps = asked.online.steps if any(word.split("=")[0] == "--steps" for word in argv) else None
        print_result(resume(asked.resume, steps, asked.env, quiet=asked.quiet))
        return 0
    settings = {field.name: getattr(asked.online, field.name) for field in dataclasses.fields(asked.online)}
    print_result(finetune(asked.run, asked.env, seed=asked.seed, out=asked.out, quiet=asked.quiet, **settings))
    return 0
