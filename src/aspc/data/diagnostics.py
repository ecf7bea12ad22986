"""Summaries of datasets: sizes, returns, and warnings about data that looks wrong or is hard to learn from. This
module has more than 400 lines because it contains the checks for all warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aspc.action_space import ActionSpace
from aspc.data.action_choices import choice_counts
from aspc.data.dataset import Dataset
from aspc.data.reward_checks import check_rewards
from aspc.data.streaming import StreamingDataset
from aspc.data.validation import bounds_from_data, format_bounds, is_pinned
from aspc.errors import printable
from aspc.text import format_number, join_limited

SATURATED = 0.999  # scaled actions with at least this absolute value are at a bound
MAX_SATURATED = 0.05  # fraction of rows
MAX_DUPLICATES = 0.001  # fraction of rows
JUMP_FACTOR = 5.0  # multiple of the 99th percentile of the distances between rows
EQUAL_TOLERANCE = 1e-3  # multiple of a column's standard deviation
MAX_MISALIGNED = 0.05  # fraction of rows
MIN_CROSSING = 0.95  # fraction of timeouts
CROSSING_FACTOR = 2.0  # multiple of the median distance between rows
OUTLIER_FACTOR = 1_000.0  # multiple of the range of the middle 98 % of a column
SENTINEL_GAP = 5.0  # minimum gap between a sentinel and all other values, as a multiple of the same range
MAX_SENTINELS = 0.01  # fraction of rows
SENTINEL_VALUES = (999, 9_999, 99_999, 999_999, 9_999_999, 32_767, 32_768, 65_535)  # common with either sign
FEW_ROWS = 1_000
RARE_ROWS = 20  # an option with fewer rows is rare
QUANTILE_ROWS = 100_000  # maximum number of rows for quantiles
MAX_SHOWN_NAMES = 20
MAX_SHOWN_DIMENSIONS = 10


@dataclass(frozen=True)
class Summary:
    """Facts and warnings printed by `aspc data info`."""

    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    def text(self) -> str:
        """Return the summary as lines of text."""
        width = max(len(label) for label, _ in self.facts)
        lines = [f"{label:<{width}}  {value}" for label, value in self.facts]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def summarize(dataset: Dataset) -> Summary:
    """Summarize sizes, episodes, returns and bounds of a dataset, with warnings."""
    lengths, returns = dataset.episode_lengths, dataset.episode_returns
    terminals, timeouts = int(dataset.terminals.sum()), int(dataset.timeouts.sum())
    score = dataset.behavior_score()
    behavior = format_number(dataset.behavior_return())
    facts = [
        ("dataset", dataset.name),
        ("rows", f"{len(dataset):,} ({dataset.nbytes / 1e6:,.1f} MB)"),
        ("transitions", f"{len(dataset.transition_rows()[0]):,}"),
        *_size_facts(dataset),
        ("episodes", f"{len(lengths):,} ({terminals:,} ended by terminal, {timeouts:,} by timeout)"),
        ("episode length", _format_distribution(lengths.astype(float))),
        ("episode return", _format_distribution(returns)),
        ("reward", _format_distribution(dataset.rewards.astype(np.float64))),
        ("behavior return", behavior if score is None else f"{behavior} (score {score:.1f})"),
        ("environment", dataset.env or "none"),
    ]
    if dataset.time:
        facts.insert(1, ("time", printable(dataset.time)))
    if dataset.action_space is not None:
        facts[4:4] = _choice_facts(dataset.action_space, dataset.actions)
    if dataset.kpis is not None:
        facts += _kpi_facts(dataset.kpis, dataset.kpi_names)
    if dataset.next_observations is not None:
        facts.append(("next observations", "logged, so rows that end in a timeout are kept"))
    return Summary(tuple(facts), (*dataset.notes, *find_warnings(dataset)))


def summarize_packed(packed: StreamingDataset) -> Summary:
    """Summarize a packed folder without reading its rows."""
    facts = (
        ("dataset", f"{packed.name} (packed, to be streamed)"),
        ("transitions", f"{len(packed):,} ({len(packed) * packed.row_bytes / 1e9:,.2f} GB)"),
        *_size_facts(packed),
        ("mean reward", format_number(packed.mean_reward)),
        ("environment", packed.env or "none"),
    )
    return Summary(facts, packed.notes)


def _size_facts(data: Dataset | StreamingDataset) -> tuple[tuple[str, str], ...]:
    source = f" ({data.bounds_source})" if isinstance(data, Dataset) and data.bounds_source else ""
    return (
        ("observation", _format_size(data.observation_size, data.observation_names)),
        ("action", _format_size(data.action_size, data.action_names)),
        ("action bounds", format_bounds(data.action_low, data.action_high) + source),
    )


def _choice_facts(space: ActionSpace, actions: np.ndarray) -> list[tuple[str, str]]:
    """Return the frequency of each option, the most frequent first."""
    facts = []
    for name, counts in choice_counts(space, actions).items():
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        shares = [f"{printable(option)} {100 * count / len(actions):.3g} %" for option, count in ordered]
        facts.append((f"options of {printable(name)}", join_limited(shares, MAX_SHOWN_NAMES)))
    return facts


def _kpi_facts(kpis: np.ndarray, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the distribution of each KPI over the rows where it has a value."""
    facts = []
    for i, column in enumerate(kpis.T.astype(np.float64)):
        known = column[np.isfinite(column)]
        label = f"KPI {printable(names[i]) if names else i + 1}"
        facts.append((label, _format_distribution(known) if len(known) else "no values"))
    return facts


def _format_size(size: int, names: Sequence[str]) -> str:
    """Return a vector's size and its column names, in the order that a policy expects."""
    shown = ", ".join((*names[:MAX_SHOWN_NAMES], "…") if len(names) > MAX_SHOWN_NAMES else names)
    return _count(size, "number") + (f": {printable(shown)}" if names else "")


def _format_distribution(values: np.ndarray) -> str:
    low, median, high = (format_number(float(np.quantile(values, q))) for q in (0.0, 0.5, 1.0))
    return f"{low} to {high}, median {median}, mean {format_number(float(values.mean()))}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def dimension_label(dimension: int, names: Sequence[str]) -> str:
    """Return a dimension's number, counted from 1 like rows, and its name."""
    return f"{dimension + 1} ({printable(names[dimension])})" if names else str(dimension + 1)


def _subsample(rows: np.ndarray) -> np.ndarray:
    """Return at most `QUANTILE_ROWS` evenly spaced rows."""
    return rows[:: -(-len(rows) // QUANTILE_ROWS) or 1]


# ── warnings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_warnings(dataset: Dataset) -> list[str]:
    """Return warnings about data that looks wrong or is hard to learn from."""
    checks = (
        _check_choices,
        _check_constant_dimensions,
        _check_outliers,
        _check_duplicate_rows,
        _check_saturated_actions,
        _check_constant_rewards,
        _check_rewards,
        _check_missing_ends,
        _check_single_row_episodes,
        _check_jumps,
        _check_next_observations,
        _check_next_observations_at_timeouts,
        _check_row_count,
    )
    return [warning for check in checks for warning in check(dataset)]


def _check_choices(dataset: Dataset) -> list[str]:
    """Find options that occur in no row, or in too few rows to estimate their values."""
    warnings = []
    space = dataset.action_space
    for name, counts in ({} if space is None else choice_counts(space, dataset.actions)).items():
        never = [printable(option) for option, count in counts.items() if count == 0]
        rare = [f"{printable(option)} ({count:,})" for option, count in counts.items() if 0 < count < RARE_ROWS]
        if never:
            warnings.append(
                f"action {printable(name)}: no row of the log has the option "
                f"{join_limited(never, MAX_SHOWN_DIMENSIONS)}, so its value is unknown."
            )
        if rare:
            warnings.append(
                f"action {printable(name)}: fewer than {RARE_ROWS} rows of the log have the option "
                f"{join_limited(rare, MAX_SHOWN_DIMENSIONS)}, too few to estimate its value."
            )
    return warnings


def _check_constant_dimensions(dataset: Dataset) -> list[str]:
    warnings = []
    columns = (
        ("observation", dataset.observations, dataset.observation_names),
        ("action", dataset.actions, dataset.action_names),
    )
    for kind, values, names in columns:
        constant = np.flatnonzero(values.min(axis=0) == values.max(axis=0))
        if kind == "action" and dataset.action_space is not None:  # `_check_choices` reports options
            constant = constant[~dataset.action_space.is_choice[constant]]
        if len(constant):
            shown = join_limited([dimension_label(i, names) for i in constant.tolist()], MAX_SHOWN_DIMENSIONS)
            plural = len(constant) > 1
            warnings.append(f"{kind} dimension{'s' * plural} {shown} never change{'s' * (not plural)}.")
    return warnings


def _check_outliers(dataset: Dataset) -> list[str]:
    """Find values so far from the rest of their column that they look like logging errors."""
    columns = (
        ("observation dimension", dataset.observations, dataset.observation_names),
        ("action dimension", dataset.actions, dataset.action_names),
        ("reward", dataset.rewards[:, None], ()),
    )
    warnings = []
    for kind, values, names in columns:
        for i in range(values.shape[1]):
            label = kind if kind == "reward" else f"{kind} {dimension_label(i, names)}"
            column = np.ascontiguousarray(values[:, i])
            sentinel = _find_sentinel(column, known_only=kind == "reward")
            if sentinel is not None:
                hint = _bound_hint(sentinel.value, dataset, i) if kind == "action dimension" else ""
                warnings.append(
                    f"{label} is {sentinel.value:.7g} in {_count(sentinel.rows, 'row')}, far from all other values "
                    f"({_format_range(sentinel.low, sentinel.high)}): if it marks a missing value, replace it with a "
                    f"measured value{hint}."
                )
            else:
                warnings += _check_distant_values(column, label)
    return warnings


class _Sentinel(NamedTuple):
    """A value that marks missing data, the number of rows with it, and the range of 98 % of the other rows."""

    value: float
    rows: int
    low: float
    high: float


def _find_sentinel(column: np.ndarray, known_only: bool) -> _Sentinel | None:
    """Return the smallest or largest value if it looks like a sentinel.

    A sentinel is far from all other values, and it is either a common sentinel value or repeated; the tails of a
    measured quantity rarely repeat. Rewards can repeat a distant value at a goal, so for rewards `known_only` accepts
    only common sentinel values.
    """
    for value in (column.min(), column.max()):
        rest = column[column != value]
        if value == 0 or len(rest) == 0:  # 0 usually means that a device is off
            continue
        low, high = np.quantile(_subsample(rest), (0.01, 0.99))
        gap = min(abs(float(end) - float(value)) for end in (rest.min(), rest.max()))
        rows = len(column) - len(rest)
        is_known = abs(value) in SENTINEL_VALUES and gap > high - low
        is_repeated = 2 <= rows <= MAX_SENTINELS * len(column) and gap > SENTINEL_GAP * (high - low)
        if high > low and (is_known or (is_repeated and not known_only)):
            return _Sentinel(float(value), rows, float(low), float(high))
    return None


def _bound_hint(action: float, dataset: Dataset, dimension: int) -> str:
    """Return a hint if an action bound was guessed from a sentinel."""
    low, high = bounds_from_data(dataset.actions[:, [dimension]])
    is_lowest = action == dataset.actions[:, dimension].min()
    bound, guessed = (dataset.action_low, low) if is_lowest else (dataset.action_high, high)
    if not np.isclose(bound[dimension], guessed[0]):
        return ""
    return f" (the guessed action bounds include it: set them with --action-{'low' if is_lowest else 'high'})"


def _check_distant_values(column: np.ndarray, label: str) -> list[str]:
    low, median, high = np.quantile(_subsample(column).astype(np.float64), (0.01, 0.5, 0.99))
    is_distant = np.abs(column - median) > OUTLIER_FACTOR * (high - low)
    if high == low or not is_distant.any():
        return []
    first = int(is_distant.argmax())
    return [
        f"{label} is {column[first]:.4g} in row {first + 1:,} ({_count(int(is_distant.sum()), 'such row')}), but "
        f"{_format_range(low, high)}: check whether it is an error."
    ]


def _format_range(low: float, high: float) -> str:
    return f"98 % of the rows are between {low:.4g} and {high:.4g}"


def _check_duplicate_rows(dataset: Dataset) -> list[str]:
    # Equal rows have equal random projections; different rows almost never do.
    rng = np.random.default_rng(0)
    key = dataset.observations.astype(np.float64) @ rng.standard_normal(dataset.observation_size)
    key += dataset.actions.astype(np.float64) @ rng.standard_normal(dataset.action_size)
    duplicates = len(key) - len(np.unique(key))
    if duplicates <= MAX_DUPLICATES * len(key):
        return []
    return [f"{duplicates:,} of {len(key):,} rows duplicate the observation and action of another row."]


def saturation(dataset: Dataset, actions: np.ndarray) -> np.ndarray:
    """Return the fraction of actions at a bound, per dimension.

    It is 0 for options, and for dimensions whose bounds are equal because the logged action never changes.

    Args:
        dataset: The log, for its bounds and options.
        actions: Actions in [-1, 1].
    """
    fractions = np.asarray((np.abs(actions) >= SATURATED).mean(axis=0))
    is_choice = False if dataset.action_space is None else dataset.action_space.is_choice
    return np.where(is_pinned(dataset.action_low, dataset.action_high) | is_choice, 0.0, fractions)


def _check_saturated_actions(dataset: Dataset) -> list[str]:
    fractions = saturation(dataset, dataset.scale_actions(dataset.actions))
    fractions[dataset.actions.min(axis=0) == dataset.actions.max(axis=0)] = 0.0  # reported as constant
    worst = int(fractions.argmax())
    if fractions[worst] <= MAX_SATURATED:
        return []
    label = dimension_label(worst, dataset.action_names)
    return [f"actions are at a bound: dimension {label} in {100 * fractions[worst]:.0f} % of the rows."]


def _check_constant_rewards(dataset: Dataset) -> list[str]:
    if dataset.rewards.min() != dataset.rewards.max():
        return []
    return [f"the reward is {dataset.rewards[0]:g} in every row: no action is better than another."]


def _check_rewards(dataset: Dataset) -> list[str]:
    return check_rewards(dataset.rewards, has_terminals=bool(dataset.terminals.any()))


def _check_missing_ends(dataset: Dataset) -> list[str]:
    if not dataset.is_endless or len(dataset) < FEW_ROWS:
        return []
    return ["no episode ends: if the log has several episodes, flag their ends; otherwise, ignore this."]


def _check_single_row_episodes(dataset: Dataset) -> list[str]:
    lengths = dataset.episode_lengths
    single = int((lengths == 1).sum())
    if len(lengths) == 1 or single <= len(lengths) / 2:
        return []
    if dataset.terminals.all():
        return [
            "every row is terminal, so critics never bootstrap: flag only the rows that end an episode. If each row is "
            "a separate decision, ignore this."
        ]
    return [
        f"{single:,} of {len(lengths):,} episodes have only one row: check whether terminals, timeouts or episode "
        "numbers mark more than the ends of episodes."
    ]


def _check_jumps(dataset: Dataset) -> list[str]:
    """Find steps that are so large that an episode end is probably missing."""
    if len(dataset) < 100:
        return []
    is_inside = ~(dataset.terminals | dataset.timeouts)[:-1]
    distances = _step_distances(dataset)[is_inside]
    usual = np.quantile(distances, 0.99) if len(distances) else 0.0
    jumps = np.flatnonzero(is_inside)[distances > JUMP_FACTOR * usual] if usual > 0 else np.zeros(0, dtype=int)
    if len(jumps) == 0:
        return []
    verb = "is" if len(jumps) == 1 else "are"
    return [
        f"{_count(len(jumps), 'step')} {verb} more than {JUMP_FACTOR:g} times as large as 99 % of steps, "
        f"first after row {jumps[0] + 1:,} of {len(dataset):,}: episode ends may be missing there."
    ]


def _step_distances(dataset: Dataset) -> np.ndarray:
    """Return the distance from each observation to the next row's observation, in standard deviations."""
    return np.asarray(np.linalg.norm(np.diff(dataset.observations, axis=0) / _scale(dataset), axis=1))


def _scale(dataset: Dataset) -> np.ndarray:
    return np.asarray(dataset.observations.std(axis=0, dtype=np.float64) + 1e-9)


def _differs_from_next_row(dataset: Dataset, next_observations: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return whether the next observation of each row differs from the observation of the row after it."""
    difference = np.abs(next_observations[rows] - dataset.observations[rows + 1])
    return np.asarray((difference > EQUAL_TOLERANCE * _scale(dataset)).any(axis=1))


def _check_next_observations(dataset: Dataset) -> list[str]:
    """Find next observations that contradict the next row of the same episode."""
    if dataset.next_observations is None:
        return []
    inside = np.flatnonzero(~(dataset.terminals | dataset.timeouts)[:-1])
    sample = _subsample(inside)
    differs = _differs_from_next_row(dataset, dataset.next_observations, sample)
    if len(sample) == 0 or differs.mean() <= MAX_MISALIGNED:
        return []
    return [
        f"in {100 * differs.mean():.0f} % of the rows inside episodes, the next observation is not the observation of "
        "the next row: check that the rows and the columns of both arrays are in the right order."
    ]


def _check_next_observations_at_timeouts(dataset: Dataset) -> list[str]:
    """Find next observations that were copied from the next row across episode ends.

    Logs that continue from one episode to the next without a jump are valid and not reported.
    """
    cut = np.flatnonzero(dataset.timeouts[:-1])
    if dataset.next_observations is None or len(cut) < 2:
        return []
    fraction = 1 - _differs_from_next_row(dataset, dataset.next_observations, cut).mean()
    if fraction < MIN_CROSSING:
        return []
    distances, is_inside = _step_distances(dataset), ~(dataset.terminals | dataset.timeouts)[:-1]
    usual = float(np.median(distances[is_inside])) if is_inside.any() else 0.0
    if np.median(distances[cut]) <= CROSSING_FACTOR * usual:
        return []
    return [
        f"at {100 * fraction:.0f} % of the timeouts, the next observation is the first observation of the next "
        "episode: log the true next observation there, or omit next observations."
    ]


def _check_row_count(dataset: Dataset) -> list[str]:
    verb = "is" if len(dataset) == 1 else "are"
    return [f"there {verb} only {_count(len(dataset), 'row')}."] if len(dataset) < FEW_ROWS else []
