"""Training that goes on in an environment: collect with the current policy, learn from old and new rows.

    table    [ offline rows | ring of online rows ]        on the device, as large as it will ever be
    a batch  offline_share of its rows from the left part, the rest from what the ring holds by now

In turns, the current policy collects some steps in the environment on the host, and the same compiled loop that trained
offline updates on minibatches of old and new rows. Nothing recompiles as the ring fills. The normaliser and the
transformation of rewards stay those of the offline data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aspc.data import Dataset
from aspc.data.collect import Recorder
from aspc.envs import make_env
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.training.compiled_loop import Loop, Runs, Source, at, plan_chunk, run_chunk, usual_blocks
from aspc.training.devices import Devices
from aspc.training.loggers import LoggerName
from aspc.training.packed_table import pack
from aspc.training.prepared_data import Tables, discount_of, transitions_of
from aspc.training.run_folder import ONLINE, Run
from aspc.training.trainer import CHECKPOINT_SECONDS, Chunk, Plan, Trainer, passed

if TYPE_CHECKING:
    from aspc.assessment.trained_runs import Trained

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
        self.observation = np.array(self.env.reset(seed=int(seed))[0], np.float32)
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
        recorder, returns = Recorder(), list[float]()
        for t in range(steps):
            observation = self.observation
            assert observation is not None
            action = policy.act(observation, rng)
            if noise:
                wild = action + spread * rng.standard_normal(action.shape, np.float32)
                action = np.clip(wild, policy.action_low, policy.action_high)
            answer, reward, terminal, timeout, _ = self.env.step(action)
            following = np.array(answer, np.float32)  # a copy: some environments write into the array they gave
            recorder.add(observation, action, reward, terminal, timeout, following)
            self.observation, self.episode_return = following, self.episode_return + float(reward)
            if terminal or timeout:
                returns.append(self.episode_return)
                self._reset(first_step + t + 1)
        low, high = self.data.action_low, self.data.action_high
        return recorder.dataset(action_low=low, action_high=high, name="what was collected"), returns

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
        with open(path, "rb") as file:
            self._digest = hashlib.file_digest(file, "sha256")
        self._size = rows * width * 4

    def append(self, rows: np.ndarray) -> None:
        content = np.ascontiguousarray(rows, np.float32).tobytes()
        with open(self.path, "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(content)
        self._size += len(content)

    def record(self) -> dict[str, Any]:
        """Return the checksum of all rows."""
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

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

    def __init__(self, plan: Plan, online: OnlineOptions, trained: Trained, quiet: bool) -> None:
        super().__init__(plan, quiet)
        self.online, self.trained = online, trained
        (self.task,), (self.run_spec,) = self.tasks, self.run_specs
        data, holdout = trained.dataset, self.options.holdout
        self.learned_from = data if holdout == 0 else data.split(holdout, seed=0)[0]
        same = {field.name: getattr(self.loop, field.name) for field in dataclasses.fields(self.loop)}
        self.loop = MixedLoop(**same, offline_rows=self.task.prepared.transitions, offline_share=online.offline_share)
        self.devices = Devices(self.loop, 1)

    def _start(self, first_step: int, tables: Tables) -> tuple[Any, Runs]:
        """The offline run's state, or that of a checkpoint of our own."""
        seed = self.run_spec.seed
        if self.checkpoints.latest_step() is None:
            origin = self.plan.config["finetuned_from"]
            offline = dataclasses.replace(self.trained, run=Run(origin["run"]))
            all_seeds = offline.states([origin["step"]])[origin["step"]]
            state = at(all_seeds, jnp.asarray([offline.run.seeds.index(seed)]))
        else:
            self.progress.say("An environment's state is not part of a checkpoint: it begins with a fresh episode.")
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
        prepared, collect, updates = self.task.prepared, self.online.collect, self.online.updates
        self.held_out = [None if prepared.held_out is None else self.devices.everywhere(prepared.held_out)]
        self.log = log = RowLog(self.plan.path / ONLINE, prepared.layout.width, step)
        capacity = self.online.capacity(last_step)
        table = self.devices.everywhere(filled_table(tables.next(), log, step, capacity))
        blocks = usual_blocks(collect * updates, self.loop.block_steps)
        last_checkpoint = time.monotonic()
        if self.checkpoints.latest_step() is None:
            if self.evaluations.columns is None:
                self._evaluate(0, self._export(state, {}))  # the offline policy, to compare with
            self._save_when_evaluated(0, self._sound(0, state))
            self._collect_evaluations(wait=True)
        assert self.task.env is not None
        with collecting(self.task.env, self.trained.dataset, self.run_spec.seed, self.online.noise) as collector:
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
                    self._obey(caught[0], step, None if save else state)
        self._save_policies(step, self._export(state, {}))
        return step

    def _sizes_of_growing_files(self, step: int) -> dict[str, int]:
        return {ONLINE: step * self.task.prepared.layout.width * 4}

    def _records_of_growing_files(self) -> dict[str, dict[str, Any]]:
        return {ONLINE: self.log.record()}

    # -- rows --------------------------------------------------------------------------------------------------
    def _packed(self, collected: Dataset) -> np.ndarray:
        """One packed row for each step, made as the offline rows were."""
        prepared, algorithm = self.task.prepared, self.plan.algorithm
        transitions = transitions_of(collected, algorithm, self.options, like=self.learned_from)
        return pack(transitions, prepared.layout, prepared.normaliser, discount_of(algorithm))
