"""Online training: collect steps with the current policy, and learn from offline and online rows.

    table      [ offline rows | ring buffer of online rows ]   on the device, allocated at its final size
    minibatch  a fraction offline_share of offline rows, the rest from the filled part of the ring buffer

Two phases alternate: the host collects steps with the current policy, then the same compiled loop as in offline
training computes updates on minibatches of offline and online rows. Nothing is recompiled as the ring buffer fills. The
normalizer and the reward transformation of the offline data are kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from aspc.data import Dataset
from aspc.data.collect import Recorder, explore
from aspc.envs import make_env
from aspc.envs.choices import with_choice_columns
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.policy_memory import memory_parts, split_memory, stack_observations, update_memory
from aspc.training.callbacks import Callback
from aspc.training.checksums import GrowingFile
from aspc.training.compiled_loop import (
    Loop,
    RowRange,
    Runs,
    crosses_multiple,
    full_blocks_per_chunk,
    plan_chunk,
    run_chunk,
    tree_index,
)
from aspc.training.packed_table import pack
from aspc.training.policy_export import RunStates
from aspc.training.prepared_data import transitions_of
from aspc.training.run_config import OnlineOptions, Origin
from aspc.training.run_folder import ONLINE, Run
from aspc.training.trainer import Chunk, Trainer
from aspc.training.training_plan import TrainingPlan

if TYPE_CHECKING:
    from aspc.assessment.trained_runs import Trained

DEFAULT_NOISE = 0.1
ONLINE_KEY = 2  # folded into the seed's key, so that draws differ from offline training


# ---------------------------------------------------------------------------------------------------------------
# Collecting
# ---------------------------------------------------------------------------------------------------------------


class Collector:
    """A collector that steps an environment with a policy, across episodes."""

    def __init__(self, env: str | Callable[[], Any], data: Dataset, seed: int, noise: float | None) -> None:
        self.env: Any = make_env(env) if isinstance(env, str) else with_choice_columns(env(), "The environment")
        self.data, self.seed, self.noise = data, seed, noise
        self.observation: np.ndarray | None = None
        self.memory: np.ndarray | None = None  # the policy's memory; None at the start of an episode
        self.episode_return = 0.0

    def _reset(self, step: int) -> None:
        (seed,) = np.random.SeedSequence((self.seed, step)).generate_state(1)
        self.observation, self.memory = np.array(self.env.reset(seed=int(seed))[0], np.float32), None
        self.episode_return = 0.0

    def collect(self, policy: Policy, first_step: int, steps: int) -> tuple[Dataset, list[float]]:
        """Collect `steps` steps; return them, and the returns of the episodes that ended during these steps.

        Random draws depend only on the seed and the step, so a checkpoint needs no generator state.
        """
        rng = np.random.default_rng((self.seed, first_step))
        noise = self.noise if self.noise is not None else 0.0 if policy.noise() else DEFAULT_NOISE
        spread = noise * (policy.action_high - policy.action_low) / 2
        if self.data.action_space is not None:
            spread = np.where(self.data.action_space.is_choice, 0, spread).astype(np.float32)
        if self.observation is None:
            self._reset(first_step)
        recorder, returns = Recorder(), list[float]()
        for t in range(steps):
            observation = self.observation
            assert observation is not None
            if not np.isfinite(observation).all():
                raise AspcError(
                    f"The environment returned the observation {observation}, which is not finite. Policies need "
                    "finite observations. Fix the environment, or make it end the episode before an observation "
                    "becomes non-finite."
                )
            memory = policy.initial_memory(1) if self.memory is None else self.memory
            (action,), _ = policy.step(observation[None], memory, rng)
            if self.data.action_space is not None:
                action = explore(self.data.action_space, action, observation, noise, rng)
            if noise:
                noisy = action + spread * rng.standard_normal(action.shape, np.float32)
                action = np.clip(noisy, policy.action_low, policy.action_high)
            # The memory that `step` returns cannot be used, because noise was added to the action.
            parts = memory_parts(policy)
            self.memory = update_memory(parts, memory, observation[None], action[None]) if parts else memory
            returned, reward, terminal, timeout, _ = self.env.step(action)
            following = np.array(returned, np.float32)  # a copy: some environments reuse the returned array
            seen, seen_next = _stack(policy, observation, memory), _stack(policy, following, self.memory)
            recorder.add(seen, action, reward, terminal, timeout, seen_next)
            self.observation, self.episode_return = following, self.episode_return + float(reward)
            if terminal or timeout:
                returns.append(self.episode_return)
                self._reset(first_step + t + 1)
        low, high = self.data.action_low, self.data.action_high
        space = self.data.action_space
        return recorder.dataset(action_low=low, action_high=high, action_space=space, name="collected steps"), returns

    def close(self) -> None:
        self.env.close()


def _stack(policy: Policy, observation: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Return an observation with its history."""
    (row,) = stack_observations(policy, observation[None], split_memory(memory_parts(policy), memory))
    return np.asarray(row)


@contextmanager
def collecting(env: str | Callable[[], Any], data: Dataset, seed: int, noise: float | None) -> Iterator[Collector]:
    """Open a collector; raise an `AspcError` if the sizes of its environment differ from those of the data."""
    collector = Collector(env, data, seed, noise)
    try:
        size = collector.env.observation_space.shape[-1]
        if size != data.observation_size or collector.env.action_space.shape != data.action_low.shape:
            raise AspcError(
                f"The environment has {size} observation and {collector.env.action_space.shape[-1]} action dimensions, "
                f"but the policy has {data.observation_size} and {data.action_size}; choose another --env."
            )
        yield collector
    finally:
        collector.close()


class RowLog:
    """An append-only file of packed rows. Opening it drops rows after the checkpoint's step, as for the CSV files."""

    def __init__(self, path: Path, width: int, rows: int) -> None:
        self.path, self.width = path, width
        size = path.stat().st_size if path.exists() else 0
        if size < rows * width * 4:
            raise AspcError(f"{path} is damaged: it has fewer rows than the checkpoint of step {rows:,}.")
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
        """Return the size and the checksum of the file."""
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def read(self, first: int, last: int) -> np.ndarray:
        values = np.fromfile(self.path, np.float32, (last - first) * self.width, offset=first * self.width * 4)
        return values.reshape(last - first, self.width)


# ---------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MixedLoop(Loop):
    """A loop whose minibatches mix the first `offline_rows` rows of the table with rows of the run's source."""

    offline_rows: int = 0
    offline_share: float = 0.0

    def sample_minibatch_indices(
        self, key: PRNGKeyArray, source: RowRange, shape: tuple[int, ...]
    ) -> Int[Array, "..."]:
        key_offline, key_online, key_which = jax.random.split(key, 3)
        offline = jax.random.randint(key_offline, shape, 0, self.offline_rows)
        online = super().sample_minibatch_indices(key_online, source, shape)
        return jnp.where(jax.random.uniform(key_which, shape) < self.offline_share, offline, online)


def filled_table(offline: np.ndarray, log: RowLog, step: int, capacity: int) -> np.ndarray:
    """Return the offline rows followed by the ring buffer at `step`, where row i has index i % capacity."""
    ring = np.zeros((capacity, offline.shape[1]), np.float32)
    first = max(step - capacity, 0)
    ring[np.arange(first, step) % capacity] = log.read(first, step)
    return np.concatenate([offline, ring])


def with_new_rows(table: jax.Array, rows: np.ndarray, step: int, capacity: int, collect: int) -> jax.Array:
    """Return the table with the rows collected after `step`. A short last collection is padded to `collect` rows."""
    filled = np.zeros((collect, rows.shape[1]), np.float32)
    filled[: len(rows)] = rows
    indices = np.full(collect, len(table), np.int32)
    indices[: len(rows)] = len(table) - capacity + np.arange(step, step + len(rows)) % capacity
    updated: jax.Array = put_rows(table, jnp.asarray(filled), jnp.asarray(indices))
    return updated


@partial(jax.jit, donate_argnums=0)
def put_rows(
    table: Float[Array, "rows width"], rows: Float[Array, "new width"], indices: Int[Array, "new"]
) -> Float[Array, "rows width"]:
    """Return the table with new rows at `indices`; indices beyond its end are ignored."""
    return table.at[indices].set(rows, mode="drop")


class OnlineTrainer(Trainer):
    """A trainer that collects steps before every chunk."""

    def __init__(
        self,
        plan: TrainingPlan,
        first_step: int | None,
        last_step: int,
        online: OnlineOptions,
        origin: Origin,
        trained: Trained,
        quiet: bool,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.online, self.origin, self.trained = online, origin, trained
        (self.task,), (self.run_spec,) = plan.tasks, plan.run_specs
        data, holdout = trained.dataset, plan.options.holdout
        # Online rewards are transformed with the reward statistics of this dataset.
        self.reference = data if holdout == 0 else data.split(holdout, seed=0)[0]
        super().__init__(plan, first_step, last_step, quiet, callbacks=callbacks)

    def _build_loop(self) -> Loop:
        loop = super()._build_loop()
        shared = {field.name: getattr(loop, field.name) for field in dataclasses.fields(loop)}
        offline_rows = self.task.prepared.transitions
        return MixedLoop(**shared, offline_rows=offline_rows, offline_share=self.online.offline_share)

    def _growing_file_sizes(self) -> dict[str, int]:
        return {ONLINE: self.first_step * self.task.prepared.layout.width * 4}

    def _open_growing_files(self) -> dict[str, GrowingFile]:
        self.row_log = RowLog(self.plan.path / ONLINE, self.task.prepared.layout.width, self.first_step)
        return {ONLINE: self.row_log}

    def _initial_state(self) -> tuple[PyTree, Runs]:
        """Return the state of the offline run, or of the newest online checkpoint."""
        seed = self.run_spec.seed
        if self.checkpoints.latest_step() is None:
            offline = dataclasses.replace(self.trained, run=Run(self.origin.run))
            all_seeds = offline.states([self.origin.step])[self.origin.step]
            state = tree_index(all_seeds, jnp.asarray([offline.run.seeds.index(seed)]))
        else:
            self.progress.print("A checkpoint does not contain the environment's state; a new episode starts.")
            state = self.checkpoints.restore(self.first_step, self._state_shapes())
        key = jax.random.fold_in(jax.random.key(seed), ONLINE_KEY)
        source = RowRange(jnp.asarray(self.tables.sizes, jnp.int32), jnp.zeros(1, jnp.int32))
        return jax.tree.map(jnp.asarray, state), Runs(None, key[None], source, {})

    def _state_shapes(self) -> PyTree:
        """Return the shapes of the state, with a leading axis for the run."""
        one = jax.eval_shape(lambda: self.plan.algorithm.init(jax.random.key(0), self.loop.spec))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), one)  # type: ignore[no-untyped-call]

    def _run_chunks(self) -> int:
        """Alternate between collecting on the host and updating on the device; return the last step."""
        state, runs = self._initial_state()
        self.exporter.check(self.first_step, state, {})
        step, last_step, collect, updates = self.first_step, self.last_step, self.online.collect, self.online.updates
        capacity = self.online.capacity(last_step)
        table = self.devices.replicate(filled_table(self.tables.next(), self.row_log, step, capacity))
        blocks = full_blocks_per_chunk(collect * updates, self.loop.block_steps)
        if self.checkpoints.latest_step() is None:
            if self.evaluations_table.columns is None:
                # Evaluate the offline policy for comparison.
                self._submit_evaluations(0, self.exporter.export_arrays(state, {}))
            self.writer.submit(0, self._fetch_state(0, state))
            self._collect_evaluations(wait=True)
        assert self.task.env is not None
        with collecting(self.task.env, self.trained.dataset, self.run_spec.seed, self.online.noise) as collector:
            while step < last_step:
                end = min((step // collect + 1) * collect, last_step)
                ((_, policy),) = self.exporter.build_policies(step, self.exporter.export_arrays(state, {}), [0])
                collected, returns = collector.collect(policy, step, end - step)
                rows = self._pack(collected)
                self.row_log.append(rows)
                table = with_new_rows(table, rows, step, capacity, collect)
                online_rows = min(end, capacity)
                runs = runs._replace(source=runs.source._replace(size=jnp.full(1, online_rows, jnp.int32)))
                pieces = plan_chunk(step * updates, end * updates, self.loop.block_steps, blocks)
                state, results = run_chunk(self.devices, state, runs, table, pieces, self.loop.block_steps)
                stop = end == last_step or self.shutdown.signal_number is not None
                evaluate = end == last_step or crosses_multiple(self.online.eval_every, step, end)
                save = self.writer.is_due(step, end, force=stop)
                online_metrics = {"online_rows": online_rows, "online_return": np.mean(returns) if returns else np.nan}
                chunk = Chunk(
                    end,
                    results,
                    held_out={
                        **self.held_out.compute(state, runs),
                        **{name: np.asarray([value]) for name, value in online_metrics.items()},
                    },
                    theory={},
                    policies=self.exporter.export_arrays(state, {}) if evaluate else None,
                    state=state if save else None,
                    live=self._states_for_callbacks(end, state),
                )
                step = end
                self._process_chunk(chunk)
                self._collect_evaluations(wait=True)
                if self._should_end_early(step):
                    self._end_early(step, state, {}, is_saved=save, is_evaluated=evaluate)
                    break
        self.final_states = RunStates(self.exporter, step, state)
        self._save_policies(step, self.exporter.export_arrays(state, {}))
        return step

    def _pack(self, collected: Dataset) -> np.ndarray:
        """Return one packed row per step, preprocessed like the offline rows."""
        prepared, algorithm = self.task.prepared, self.plan.algorithm
        transitions = transitions_of(collected, algorithm, self.options, like=self.reference)
        return pack(transitions, prepared.layout, prepared.row_normalizer, algorithm.discount)
