"""A dataset prepared for one algorithm: rewards, normalizer, packed rows and held-out rows, in memory or streamed."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc import minari_store
from aspc.algorithms.interface import Algorithm, PolicyExport, Spec
from aspc.data import Dataset, Transitions, is_source, load
from aspc.data.file_loader import is_pattern
from aspc.data.history import FrameStacker
from aspc.data.reward_checks import check_rewards
from aspc.data.streaming import SLAB_ROWS, StreamingDataset, is_packed
from aspc.envs import normalized_score
from aspc.errors import AspcError, printable
from aspc.history import NEWEST_ONLY, History
from aspc.policy import Policy
from aspc.tasks import normalize_score
from aspc.training.network_sizes import make_spec
from aspc.training.normalizer import ObservationNormalizer
from aspc.training.packed_table import Layout, pack
from aspc.training.run_config import DatasetFacts, TrainOptions, fingerprint

Data = Dataset | StreamingDataset


def load_source(source: Data | str | os.PathLike[str], options: Mapping[str, Any]) -> Data:
    """Load a dataset by name or path (a packed folder is opened for streaming); return a dataset unchanged."""
    if isinstance(source, Dataset | StreamingDataset):
        return source
    if not is_source(source):
        expected = "a name, a path, a data frame, or a Dataset (for arrays: aspc.data.Dataset.from_arrays)"
        raise AspcError(f"The data must be {expected}, not {type(source).__name__}.")
    if isinstance(source, str | os.PathLike) and is_packed(source):
        options = {name: value for name, value in options.items() if name != "env"}  # only used for evaluation
        if options:
            raise AspcError(f"{source} is already packed; pass {', '.join(options)} when packing it.")
        return StreamingDataset.open(source)
    return load(source, **options)


def load_recorded(source: str, options: Mapping[str, Any]) -> Data:
    """Load the dataset that a run records. A Minari dataset is not downloaded, since the name comes from a file."""
    is_minari = isinstance(source, str) and minari_store.is_id(source) and not os.path.exists(source)
    if is_minari and not minari_store.is_local(source):
        name = printable(minari_store.parse_id(source)[:80])
        raise AspcError(
            f"The Minari dataset {name} that the run was trained on is not on this machine; if you trust it, download "
            f"it first: aspc data download {shlex.quote(minari_store.PREFIX + name)}."
        )
    try:
        return load_source(source, options)
    except AspcError as error:
        if Path(source).suffix and not Path(source).exists():
            raise AspcError(f"The file {source} no longer exists; pass its new path with --dataset.") from error
        raise


def load_again(run: Path, recorded: str | None, given: Any, options: Mapping[str, Any], call: str) -> Data:
    """Load the data for continuing a run.

    Args:
        run: The folder of the run, for messages.
        recorded: The source that the run records.
        given: The dataset that the caller passed, which takes precedence.
        options: Options of `aspc.data.load`.
        call: The call that passes a dataset, for the error message if the run records no source.
    """
    if given is not None:
        return load_source(given, options)
    if recorded is None:
        raise AspcError(f"{run} was trained on arrays; pass the dataset again: {call}.")
    return load_recorded(recorded, options)


# ---------------------------------------------------------------------------------------------------------------
# Preprocessing
# ---------------------------------------------------------------------------------------------------------------


PREPROCESSING = ("normalize_observations", "reward_transform", "reward_scale", "reward_shift")


def preprocessing_key(algorithm: Algorithm[Any], options: TrainOptions) -> tuple[Any, ...]:
    """Return the settings that determine the prepared rows of a dataset; runs with equal keys share their rows."""
    values = tuple(getattr(algorithm, name) for name in PREPROCESSING)
    discount = algorithm.discount if options.n_step > 1 else None
    return (*values, options.holdout, options.n_step, discount, options.frames)


def warnings_of(data: Data, algorithm: Algorithm[Any]) -> list[str]:
    """Return warnings about the prepared rewards of user data; benchmark datasets need none."""
    if not algorithm.climbs_q or not isinstance(data, Dataset) or data.env is not None:
        return []
    return check_rewards(
        prepared_rewards(data, algorithm),
        has_terminals=bool(data.terminals.any()),
        scale=algorithm.reward_scale,
        shift=algorithm.reward_shift,
    )


def prepared_rewards(data: Dataset, algorithm: Algorithm[Any], like: Dataset | None = None) -> np.ndarray:
    """Return `reward_scale · transform(r) + reward_shift`, before any n-step sum.

    Args:
        data: The dataset.
        algorithm: The algorithm whose preprocessing is applied.
        like: The dataset whose statistics the transform uses. Default: `data`.
    """
    rewards, like = data.rewards.astype(np.float64), data if like is None else like
    if algorithm.reward_transform == "return_range":
        returns = like.complete_episode_returns
        spread = returns.max() - returns.min()
        if spread <= 1e-9 * np.abs(returns).max():
            raise AspcError(
                f"{like.name}: all episodes have the same return, so rewards cannot be divided by their range; "
                f'use another reward_transform ("standardize" or "none").'
            )
        rewards = 1000 * rewards / spread
    elif algorithm.reward_transform == "standardize":
        reference = like.rewards.astype(np.float64)
        rewards = (rewards - reference.mean()) / (reference.std() + 1e-6)
    return (algorithm.reward_scale * rewards + algorithm.reward_shift).astype(np.float32)


def transitions_of(
    data: Dataset, algorithm: Algorithm[Any], options: TrainOptions, like: Dataset | None = None
) -> Transitions:
    """Return the transitions of a dataset with prepared rewards (see `prepared_rewards` for `like`)."""
    data = dataclasses.replace(data, rewards=prepared_rewards(data, algorithm, like))
    return data.transitions(n_step=options.n_step, discount=algorithm.discount)


# ---------------------------------------------------------------------------------------------------------------
# Prepared rows
# ---------------------------------------------------------------------------------------------------------------


def _pack_stacked(
    data: Dataset, transitions: Transitions, options: TrainOptions, pack_rows: Callable[[Transitions], np.ndarray]
) -> np.ndarray:
    """Return the packed rows of a dataset's transitions with stacked observations."""
    if options.history == 1:
        return pack_rows(transitions)
    stacker, (first, final) = FrameStacker.of(data, options.frames), data.transition_rows(options.n_step)
    table = np.empty((0, 0), np.float32)
    for start in range(0, len(first), SLAB_ROWS):  # in slabs, so that memory never holds two copies of all stacked rows
        slab = slice(start, start + SLAB_ROWS)
        part = stacker.stack(Transitions(*(field[slab] for field in transitions)), first[slab], final[slab])
        rows = pack_rows(part)
        if start == 0:
            table = np.empty((len(first), rows.shape[1]), np.float32)
        table[slab] = rows
    return table


def _check_history(history: History, data: Data, longest: int) -> None:
    """Raise an `AspcError` if a history is longer than the longest episode."""
    if history.observations > longest:
        raise AspcError(
            f"--history {history.observations} is longer than every episode of {data.name}; the longest has "
            f"{longest:,} rows. Pass a shorter history."
        )


class Tables(NamedTuple):
    """The tables of successive chunks, and the range of rows of each dataset in them."""

    next: Callable[[], np.ndarray]
    offsets: list[int]
    sizes: list[int]
    change: bool
    """True if every chunk has a different table."""


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedDataset:
    """Packed rows or a stream of them, their layout, and the normalizer that the policy keeps."""

    spec: Spec
    layout: Layout
    normalizer: ObservationNormalizer
    """The normalizer of single observations; `row_normalizer` is for stacked ones."""
    transitions: int
    fingerprint: str
    rows: np.ndarray | None = None
    held_out: np.ndarray | None = None
    stream: tuple[StreamingDataset, Callable[[Transitions], np.ndarray]] | None = None
    history: History = NEWEST_ONLY
    observation_range: tuple[np.ndarray, np.ndarray] | None = None
    """Lowest and highest logged observation; None for a stream."""

    @classmethod
    def of(cls, data: Data, algorithm: Algorithm[Any], options: TrainOptions) -> PreparedDataset:
        """Prepare a dataset for an algorithm."""
        spec = make_spec(data, algorithm, options)
        layout = Layout(spec.obs_dim, spec.act_dim, algorithm.uses_next_actions)
        if isinstance(data, Dataset):
            return cls._in_memory(data, algorithm, options, spec, layout)
        return cls._streamed(data, algorithm, options, spec, layout)

    @classmethod
    def _in_memory(
        cls, data: Dataset, algorithm: Algorithm[Any], options: TrainOptions, spec: Spec, layout: Layout
    ) -> PreparedDataset:
        _check_history(options.frames, data, int(data.episode_lengths.max()))
        kept, held = (data, None) if options.holdout == 0 else data.split(options.holdout, seed=0)
        transitions = transitions_of(kept, algorithm, options)
        wanted = algorithm.normalize_observations
        normalizer = (
            ObservationNormalizer.of(transitions.observations)
            if wanted
            else ObservationNormalizer.identity(data.observation_size)
        ).without_masks(len(spec.masked))
        row_normalizer = normalizer.stacked(options.frames, data.action_size)
        pack_rows = partial(pack, layout=layout, normalizer=row_normalizer, discount=algorithm.discount)
        rows = _pack_stacked(kept, transitions, options, pack_rows)
        held_rows = None
        if held is not None:
            held_rows = _pack_stacked(held, transitions_of(held, algorithm, options), options, pack_rows)
        logged = data.observations.min(0), data.observations.max(0)
        return cls(
            *(spec, layout, normalizer, len(rows), fingerprint(rows), rows, held_rows),
            history=options.frames,
            observation_range=logged,
        )

    @classmethod
    def _streamed(
        cls, data: StreamingDataset, algorithm: Algorithm[Any], options: TrainOptions, spec: Spec, layout: Layout
    ) -> PreparedDataset:
        discount = algorithm.discount
        if options.holdout or algorithm.reward_transform != "none" or options.n_step != data.n_step:
            raise AspcError(
                f"{data.name} is streamed. It does not support a held-out split, reward transforms that need episode "
                f"statistics, or an n_step other than {data.n_step}, with which it was packed."
            )
        if data.n_step > 1 and abs(data.discount - discount) > 1e-6:
            raise AspcError(f"{data.name} was packed with discount {data.discount}, not {discount}; pack it again.")
        if data.n_step > 1 and algorithm.reward_shift:
            raise AspcError(
                f"{data.name} contains n-step sums, to which reward_shift cannot be applied. Shift the source rewards, "
                "pack again, and set reward_shift to 0."
            )
        if algorithm.normalize_observations:
            statistics = ObservationNormalizer.from_statistics(data.observation_mean, data.observation_std)
            normalizer = statistics.without_masks(len(spec.masked))
        else:
            normalizer = ObservationNormalizer.identity(data.observation_size)
        row_normalizer = normalizer.stacked(options.frames, data.action_size)
        if options.history > 1:
            _check_history(options.frames, data, int(np.diff(data.episode_starts(), append=data.rows).max()) + 1)

        def prepare(transitions: Transitions) -> np.ndarray:
            rewards = algorithm.reward_scale * transitions.rewards + algorithm.reward_shift
            return pack(transitions._replace(rewards=rewards), layout, row_normalizer, discount)

        if data.sha256 is not None:
            digest = data.sha256[:16]
        else:  # packed by a version that did not hash the rows
            digest = fingerprint(data.observation_mean, data.observation_std, np.asarray([data.rows, data.mean_reward]))
        return cls(spec, layout, normalizer, data.rows, digest, stream=(data, prepare), history=options.frames)

    @property
    def row_normalizer(self) -> ObservationNormalizer:
        """The normalizer of the rows' stacked observations."""
        return self.normalizer.stacked(self.history, self.spec.act_dim)

    def sample_observations(self, size: int) -> np.ndarray:
        """Return normalized observations [size, obs], evenly spaced in the data.

        For a stream, which is slow to read, sample N(0, 1) instead, which has a similar range.
        """
        if self.rows is None:
            return np.random.default_rng(0).standard_normal((size, self.spec.obs_dim), np.float32)
        chosen = np.linspace(0, len(self.rows) - 1, size).astype(int)
        observations: np.ndarray = self.layout.rows.unpack(self.rows[chosen])["observations"]
        return observations

    def policy(self, export: PolicyExport, data: Data, info: dict[str, Any]) -> Policy:
        """Return a policy with the normalizer and the action bounds of the data."""
        names = {"observation_names": list(data.observation_names), "action_names": list(data.action_names)}
        info = {**info, **{key: value for key, value in names.items() if value}}
        if isinstance(data, Dataset) and data.bounds_source:
            info["action_bounds"] = data.bounds_source
        if isinstance(data, Dataset) and data.categories:
            info["observation_categories"] = {column: list(names) for column, names in data.categories.items()}
        if data.action_space is not None:
            info["action_space"] = data.action_space.to_json()
        arrays = {name: np.asarray(array, np.float32) for name, array in export.arrays.items()}
        mean, std = self.normalizer.mean, self.normalizer.std
        bounds = data.action_low, data.action_high
        low, high = (None, None) if self.observation_range is None else self.observation_range
        return Policy(
            *(export.kind, arrays, export.settings, mean, std, *bounds, info),
            history=self.history,
            observation_low=low,
            observation_high=high,
        )


@contextmanager
def shared_tables(datasets: Sequence[PreparedDataset], first_chunk: int, budget_mb: int) -> Iterator[Tables]:
    """Yield tables from chunk `first_chunk` on, with the rows of all datasets; datasets with equal rows share them.

    Window k of a stream belongs to chunk k, so a resumed run sees the same windows as an uninterrupted one.
    """
    if any(prepared.stream is not None for prepared in datasets):
        (prepared,) = datasets
        assert prepared.stream is not None
        data, prepare = prepared.stream
        rows = data.window_rows(budget_mb * 2**20, prepared.history)
        with data.windows(rows, seed=0, start=first_chunk, prepare=prepare, history=prepared.history) as windows:
            yield Tables(lambda: next(windows), [0], [windows.rows], change=True)
        return
    distinct = {prepared.fingerprint: prepared.rows for prepared in datasets if prepared.rows is not None}
    starts = dict(zip(distinct, np.cumsum([0, *map(len, distinct.values())]).tolist(), strict=False))
    tables = list(distinct.values())
    yield Tables(
        lambda: tables[0] if len(tables) == 1 else np.concatenate(tables),
        [starts[prepared.fingerprint] for prepared in datasets],
        [prepared.transitions for prepared in datasets],
        change=False,
    )


# ---------------------------------------------------------------------------------------------------------------
# Records and scores
# ---------------------------------------------------------------------------------------------------------------


def score_of(data: Data, env: str | Callable[[], Any] | None) -> Callable[[float], float | None]:
    """Return a function that maps a return to its normalized score, or to None without reference scores.

    A named environment other than the data's is scored with its own reference scores. An environment made by a function
    is scored with those of the data.
    """
    if isinstance(env, str) and env != data.env:
        return partial(normalized_score, env)
    if isinstance(data, Dataset):
        return data.normalized_score
    return (lambda value: None) if data.env is None else partial(normalized_score, data.env)


def recorded_score_of(facts: DatasetFacts | None, env: str) -> Callable[[float], float | None]:
    """Return the scoring function of a recorded dataset or, if it has no scores for `env`, of the environment."""
    if facts is None or facts.ref_env != env:
        return partial(normalized_score, env)
    low, high = facts.ref_min, facts.ref_max
    if low is None or high is None or low == high:
        return partial(normalized_score, env)
    return partial(normalize_score, ref_min=low, ref_max=high)


def dataset_facts(
    data: Data, source: str | None, options: Mapping[str, Any], prepared: PreparedDataset
) -> DatasetFacts:
    """Return the facts about a dataset that a config records."""
    if source is not None and (Path(source).exists() or is_pattern(source)):
        source = str(Path(source).absolute())
    ref_min = ref_max = behavior_return = behavior_score = None
    if isinstance(data, Dataset):  # a stream does not keep its episodes
        ref_min, ref_max = data.ref_min, data.ref_max
        behavior_return, behavior_score = data.behavior_return(), data.behavior_score()
    return DatasetFacts(
        name=data.name,
        source=source,
        options=dict(options),
        fingerprint=prepared.fingerprint,
        transitions=prepared.transitions,
        observation_size=data.observation_size,
        action_size=prepared.spec.act_dim,
        ref_env=data.env,
        ref_min=ref_min,
        ref_max=ref_max,
        behavior_return=behavior_return,
        behavior_score=behavior_score,
        has_choices=data.action_space is not None,
        notes=list(data.notes),
    )
