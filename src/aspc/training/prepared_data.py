"""A dataset made ready for one algorithm: rewards, normaliser, packed rows, held-out rows; in memory or streamed."""

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

from aspc.algorithms.interface import PolicyExport, Preprocessing, Spec
from aspc.data import Dataset, Transitions, load
from aspc.data.diagnostics import costs
from aspc.data.sources import minari
from aspc.data.streaming import StreamingDataset, is_packed
from aspc.envs import normalised_score
from aspc.errors import AspcError, printable
from aspc.policy import Policy
from aspc.training.packed_table import Layout, Normaliser, pack
from aspc.training.run_config import TrainOptions, fingerprint

Data = Dataset | StreamingDataset


def load_source(source: Data | str | os.PathLike[str], options: Mapping[str, Any]) -> Data:
    """A dataset by name or path (a packed folder is opened for streaming), or as it is."""
    if isinstance(source, Dataset | StreamingDataset):
        return source
    if not isinstance(source, str | os.PathLike):
        kinds = "a name, a path, or a Dataset (aspc.data.Dataset.from_arrays makes one of arrays)"
        raise AspcError(f"The data must be {kinds}, not {type(source).__name__}.")
    if is_packed(source):
        options = {name: value for name, value in options.items() if name != "env"}  # it is only evaluated in
        if options:
            raise AspcError(f"{source} is packed already; {', '.join(options)} can be given when it is packed.")
        return StreamingDataset.open(source)
    return load(source, **options)


def load_recorded(source: str, options: Mapping[str, Any]) -> Data:
    """Load the data that a run says it was trained on. Nothing is downloaded from Minari because a file names it."""
    is_minari = isinstance(source, str) and minari.is_id(source) and not os.path.exists(source)
    if is_minari and not minari.is_local(source):
        name = printable(minari.identifier(source)[:80])
        raise AspcError(
            f"The Minari dataset {name} that the run was trained on is not on this machine; if you trust it, download "
            f"it first: aspc data download {shlex.quote(minari.PREFIX + name)}."
        )
    try:
        return load_source(source, options)
    except AspcError as error:
        if Path(source).suffix and not Path(source).exists():
            raise AspcError(f"There is no file {source} any more; say where it is now with --dataset.") from error
        raise


def load_again(run: Path, recorded: str | None, given: Any, options: Mapping[str, Any], call: str) -> Data:
    """The data that a run goes on with: as given, or else as it says. `call` is how to give what has no name."""
    if given is not None:
        return load_source(given, options)
    if recorded is None:
        raise AspcError(f"{run} was trained on arrays: give the dataset again, {call}.")
    return load_recorded(recorded, options)


# ---------------------------------------------------------------------------------------------------------------
# What the algorithm asks of the data
# ---------------------------------------------------------------------------------------------------------------


def preprocessing_of(algorithm: Any) -> Preprocessing:
    """What the algorithm (or the one that it wraps) asks of the data."""
    return getattr(algorithm, "base", algorithm)


def discount_of(algorithm: Any) -> float:
    return getattr(preprocessing_of(algorithm), "discount", 1.0)


def preprocessing_key(algorithm: Any, options: TrainOptions) -> tuple[Any, ...]:
    """Everything besides the dataset that a problem depends on: runs with equal preprocessing_key share their rows."""
    how = preprocessing_of(algorithm)
    fields = tuple(getattr(how, field.name) for field in dataclasses.fields(Preprocessing))
    return (*fields, options.holdout, options.n_step, discount_of(algorithm) if options.n_step > 1 else None)


def warnings_of(data: Data, algorithm: Any) -> list[str]:
    """What may go wrong with this algorithm on logs of one's own; of benchmarks it is known what works."""
    how = preprocessing_of(algorithm)
    if not how.climbs_q or not isinstance(data, Dataset) or data.env is not None:
        return []
    return costs(prepared_rewards(data, how), ends=bool(data.terminals.any()), shift=how.reward_shift)


def prepared_rewards(data: Dataset, how: Preprocessing, like: Dataset | None = None) -> np.ndarray:
    """`reward_scale · transform(r) + reward_shift`, before any n-step sum; with the statistics of the dataset `like`,
    if it is not the same."""
    rewards, like = data.rewards.astype(np.float64), data if like is None else like
    if how.reward_transform == "return_range":
        returns = like.whole_episode_returns
        spread = returns.max() - returns.min()
        if spread <= 1e-9 * np.abs(returns).max():
            raise AspcError(
                f"{like.name}: all its episodes have the same return, so rewards cannot be divided by their range; "
                f'use another reward_transform ("standardize" or "none").'
            )
        rewards = 1000 * rewards / spread
    elif how.reward_transform == "standardize":
        reference = like.rewards.astype(np.float64)
        rewards = (rewards - reference.mean()) / (reference.std() + 1e-6)
    return (how.reward_scale * rewards + how.reward_shift).astype(np.float32)


def transitions_of(data: Dataset, algorithm: Any, options: TrainOptions, like: Dataset | None = None) -> Transitions:
    """The Q-learning view, with the rewards that the algorithm asks for (see `prepared_rewards` for `like`)."""
    data = dataclasses.replace(data, rewards=prepared_rewards(data, preprocessing_of(algorithm), like))
    return data.transitions(n_step=options.n_step, discount=discount_of(algorithm))


# ---------------------------------------------------------------------------------------------------------------
# The data, ready
# ---------------------------------------------------------------------------------------------------------------


class Tables(NamedTuple):
    """Where the rows of each chunk come from, and which of them belong to each problem."""

    next: Callable[[], np.ndarray]
    offsets: list[int]
    sizes: list[int]
    change: bool
    """Whether every chunk has a table of its own; otherwise there is one for all."""


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedDataset:
    """Packed rows (or the means to stream them), their layout, and the normaliser that travels with the policy."""

    spec: Spec
    layout: Layout
    normaliser: Normaliser
    transitions: int
    fingerprint: str
    rows: np.ndarray | None = None
    held_out: np.ndarray | None = None
    stream: tuple[StreamingDataset, Callable[[Transitions], np.ndarray]] | None = None

    @classmethod
    def of(cls, data: Data, algorithm: Any, options: TrainOptions) -> PreparedDataset:
        spec = Spec(data.observation_size, data.action_size)
        layout = Layout(spec.obs_dim, spec.act_dim, bool(getattr(algorithm, "uses_next_actions", False)))
        make = cls._in_memory if isinstance(data, Dataset) else cls._streamed
        return make(data, algorithm, options, spec, layout)  # type: ignore[arg-type]

    @classmethod
    def _in_memory(
        cls, data: Dataset, algorithm: Any, options: TrainOptions, spec: Spec, layout: Layout
    ) -> PreparedDataset:
        kept, held = (data, None) if options.holdout == 0 else data.split(options.holdout, seed=0)
        transitions = transitions_of(kept, algorithm, options)
        wanted = preprocessing_of(algorithm).normalize_observations
        normaliser = Normaliser.of(transitions.observations) if wanted else Normaliser.identity(spec.obs_dim)
        rows = pack(transitions, layout, normaliser, discount_of(algorithm))
        held_rows = None
        if held is not None:
            held_rows = pack(transitions_of(held, algorithm, options), layout, normaliser, discount_of(algorithm))
        return cls(spec, layout, normaliser, len(rows), fingerprint(rows), rows, held_rows)

    @classmethod
    def _streamed(
        cls, data: StreamingDataset, algorithm: Any, options: TrainOptions, spec: Spec, layout: Layout
    ) -> PreparedDataset:
        how, discount = preprocessing_of(algorithm), discount_of(algorithm)
        if options.holdout or how.reward_transform != "none" or options.n_step != data.n_step:
            raise AspcError(
                f"{data.name} is streamed, so it cannot be held out of, its rewards cannot be transformed by "
                f"statistics of episodes, and its n-step returns are those it was packed with (n = {data.n_step})."
            )
        if data.n_step > 1 and abs(data.discount - discount) > 1e-6:
            raise AspcError(f"{data.name} was packed with a discount of {data.discount}, but it is {discount} here.")
        if data.n_step > 1 and how.reward_shift:
            raise AspcError(f"{data.name} holds n-step sums; shift its rewards when you pack it.")
        if how.normalize_observations:
            normaliser = Normaliser.from_statistics(data.observation_mean, data.observation_std)
        else:
            normaliser = Normaliser.identity(spec.obs_dim)

        def prepare(transitions: Transitions) -> np.ndarray:
            rewards = how.reward_scale * transitions.rewards + how.reward_shift
            return pack(transitions._replace(rewards=rewards), layout, normaliser, discount)

        if data.sha256 is not None:
            mark = data.sha256[:16]
        else:  # a folder that was packed before its rows were hashed
            mark = fingerprint(data.observation_mean, data.observation_std, np.asarray([data.rows, data.mean_reward]))
        return cls(spec, layout, normaliser, data.rows, mark, stream=(data, prepare))

    def policy(self, export: PolicyExport, data: Data, info: dict[str, Any]) -> Policy:
        """What acts, with what it needs of the data: the normaliser, and the bounds of its actions."""
        mean, std = self.normaliser.mean, self.normaliser.std
        names = {key: list(getattr(data, key, ())) for key in ("observation_names", "action_names")}
        info = {**info, **{key: value for key, value in names.items() if value}}
        return Policy(export.kind, export.arrays, export.settings, mean, std, data.action_low, data.action_high, info)  # type: ignore[arg-type]


@contextmanager
def shared_tables(problems: Sequence[PreparedDataset], first_chunk: int, budget_mb: int) -> Iterator[Tables]:
    """The table of each chunk, from `first_chunk` on, with the rows of all problems; equal ones share theirs.

    Window k of a stream belongs to chunk k, so a resumed run sees the same windows as one that was never interrupted.
    """
    if any(problem.stream is not None for problem in problems):
        (problem,) = problems
        assert problem.stream is not None
        data, prepare = problem.stream
        rows = data.window_rows(budget_mb * 2**20)
        with data.windows(rows, seed=0, start=first_chunk, prepare=prepare) as windows:
            yield Tables(lambda: next(windows), [0], [windows.rows], change=True)
        return
    different = {problem.fingerprint: problem.rows for problem in problems if problem.rows is not None}
    starts = dict(zip(different, np.cumsum([0, *map(len, different.values())]).tolist(), strict=False))
    tables = list(different.values())
    yield Tables(
        lambda: tables[0] if len(tables) == 1 else np.concatenate(tables),
        [starts[problem.fingerprint] for problem in problems],
        [problem.transitions for problem in problems],
        change=False,
    )


# ---------------------------------------------------------------------------------------------------------------
# What a run says about its data
# ---------------------------------------------------------------------------------------------------------------


def score_of(data: Data, env: Any) -> Callable[[float], float | None]:
    """Return → normalised score, or None where no reference scores are known.

    Another environment than the data's has scores of its own; one that a function makes is taken for the data's.
    """
    if isinstance(env, str) and env != data.env:
        return partial(normalised_score, env)
    if isinstance(data, Dataset):
        return data.normalise
    return (lambda value: None) if data.env is None else partial(normalised_score, data.env)


def recorded_score_of(facts: Mapping[str, Any], env: str) -> Callable[[float], float | None]:
    """`score_of` for a run's own record of its data; one of an older version has the environment's scores alone."""
    low, high = facts.get("ref_min"), facts.get("ref_max")
    if facts.get("ref_env") != env or low is None or high is None or low == high:
        return partial(normalised_score, env)
    return lambda value: 100.0 * (value - low) / (high - low)


def dataset_facts(
    data: Data, source: str | None, options: Mapping[str, Any], problem: PreparedDataset
) -> dict[str, Any]:
    if source is not None and Path(source).exists():
        source = str(Path(source).absolute())
    # Episodes of a stream are not kept apart, so its behaviour is not scored.
    behaviour = (data.behaviour_return(), data.behaviour_score()) if isinstance(data, Dataset) else (None, None)
    return {
        "name": data.name,
        "source": source,
        "options": dict(options),
        "fingerprint": problem.fingerprint,
        "transitions": problem.transitions,
        "observation_size": problem.spec.obs_dim,
        "action_size": problem.spec.act_dim,
        # The data's own reference scores, and the environment that they are of: `recorded_score_of` takes them up.
        "ref_env": data.env,
        "ref_min": getattr(data, "ref_min", None),
        "ref_max": getattr(data, "ref_max", None),
        "behaviour_return": behaviour[0],
        "behaviour_score": behaviour[1],
        "notes": list(data.notes),
    }
