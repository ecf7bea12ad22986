"""A look at a dataset: sizes, returns, and the warnings that a practitioner would want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aspc.data.dataset import Dataset, bounds_from_data, shown_bounds
from aspc.data.streaming import StreamingDataset
from aspc.errors import printable

SATURATED = 0.999  # of the way to a bound
MANY_SATURATED = 0.05  # share of rows
MANY_DUPLICATES = 0.001
JUMP = 5.0  # times the 99th percentile of the steps between rows
SAME = 1e-3  # of a column's standard deviation
MANY_OUT_OF_STEP = 0.05  # share of rows
MANY_IN_NEXT_EPISODE = 0.95  # share of the timeouts
LEAP = 2.0  # times the usual step: a step that leads into another episode
FAR = 1_000.0  # times the range of the middle 98 % of a column
ALONE = 5.0  # times that range: the gap between a value that stands for none and all others
FEW_ALONE = 0.01  # share of rows
STAND_FOR_NONE = (999, 9_999, 99_999, 999_999, 9_999_999, 32_767, 32_768, 65_535)  # with either sign
OUTWEIGHED = 3.0  # times what is gained
FEW_ROWS = 1_000
LOOKED_AT = 100_000  # rows that quantiles are taken of
MOST_NAMES = 20  # columns that are listed


@dataclass(frozen=True)
class Summary:
    """What `aspc data info` prints."""

    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    def text(self) -> str:
        width = max(len(label) for label, _ in self.facts)
        lines = [f"{label:<{width}}  {value}" for label, value in self.facts]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _named(size: int, names: Sequence[str]) -> str:
    """How many numbers, and which: a policy wants them in this order."""
    shown = ", ".join((*names[:MOST_NAMES], "…") if len(names) > MOST_NAMES else names)
    return _counted(size, "number") + (f": {printable(shown)}" if names else "")


def summarise(dataset: Dataset) -> Summary:
    """Sizes, episodes, returns, bounds and warnings of a dataset."""
    lengths, returns = dataset.episode_lengths, dataset.episode_returns
    terminals, timeouts = int(dataset.terminals.sum()), int(dataset.timeouts.sum())
    score = dataset.behaviour_score()
    behaviour = f"{dataset.behaviour_return():,.2f}"
    facts = [
        ("dataset", dataset.name),
        ("rows", f"{len(dataset):,} ({dataset.nbytes / 1e6:,.1f} MB)"),
        ("transitions", f"{len(dataset.transition_rows()[0]):,}"),
        *_sizes(dataset),
        ("episodes", f"{len(lengths):,} ({terminals:,} ended by terminal, {timeouts:,} by timeout)"),
        ("episode length", _spread(lengths.astype(float), digits=0)),
        ("episode return", _spread(returns, digits=2)),
        ("reward", _spread(dataset.rewards.astype(np.float64), digits=3)),
        ("behaviour return", behaviour if score is None else f"{behaviour} (score {score:.1f})"),
        ("environment", dataset.env or "none"),
    ]
    if dataset.next_observations is not None:
        facts.append(("next observations", "logged: rows that a timeout cut are kept"))
    return Summary(tuple(facts), (*dataset.notes, *find_warnings(dataset)))


def summarise_packed(packed: StreamingDataset) -> Summary:
    """What is known of a packed folder without reading its rows."""
    facts = (
        ("dataset", f"{packed.name} (packed, to be streamed)"),
        ("transitions", f"{len(packed):,} ({len(packed) * packed.row_bytes / 1e9:,.2f} GB)"),
        *_sizes(packed),
        ("mean reward", f"{packed.mean_reward:.4g}"),
        ("environment", packed.env or "none"),
    )
    return Summary(facts, packed.notes)


def _sizes(data: Dataset | StreamingDataset) -> tuple[tuple[str, str], ...]:
    return (
        ("observation", _named(data.observation_size, data.observation_names)),
        ("action", _named(data.action_size, data.action_names)),
        ("action bounds", shown_bounds(data.action_low, data.action_high)),
    )


def _spread(values: np.ndarray, digits: int) -> str:
    low, middle, high = (float(np.quantile(values, q)) for q in (0.0, 0.5, 1.0))
    return (
        f"{low:,.{digits}f} to {high:,.{digits}f}, median {middle:,.{digits}f}, mean {float(values.mean()):,.{digits}f}"
    )


def find_warnings(dataset: Dataset) -> list[str]:
    """What looks wrong or hard to learn from."""
    checks = (
        _constant_dimensions,
        _odd_values,
        _duplicated_rows,
        _saturated_actions,
        _constant_rewards,
        _costs,
        _endless_episodes,
        _episodes_of_one_row,
        _jumps,
        _out_of_step,
        _into_the_next_episode,
        _little_data,
    )
    return [warning for check in checks for warning in check(dataset)]


def _constant_dimensions(dataset: Dataset) -> list[str]:
    found = []
    columns = (
        ("observation", dataset.observations, dataset.observation_names),
        ("action", dataset.actions, dataset.action_names),
    )
    for what, values, names in columns:
        still = np.flatnonzero(values.min(axis=0) == values.max(axis=0))
        if len(still):
            which = f"dimension{'s' * (len(still) > 1)} {_dimensions(still, names)}"
            found.append(f"{what} {which} never change{'s' * (len(still) == 1)}.")
    return found


def _odd_values(dataset: Dataset) -> list[str]:
    """Numbers so far from the others of their column that they look like a mistake of the log."""
    columns = (
        ("observation dimension", dataset.observations, dataset.observation_names),
        ("action dimension", dataset.actions, dataset.action_names),
        ("reward", dataset.rewards[:, None], ()),
    )
    found = []
    for what, values, names in columns:
        for i in range(values.shape[1]):
            which = what if what == "reward" else f"{what} {_which(i, names)}"
            column = np.ascontiguousarray(values[:, i])
            lone = _lone_value(column, only_known=what == "reward")
            if lone is not None:
                bounds = _bounds_that_come_from(lone.value, dataset, i) if what == "action dimension" else ""
                found.append(
                    f"{which} is {lone.value:.7g} in {_counted(lone.rows, 'row')}, far from all others "
                    f"({_usual(lone.low, lone.high)}): if it stands for a missing value, put a real one there{bounds}."
                )
            else:
                found += _far_away(column, which)
    return found


class _Lone(NamedTuple):
    """A value apart from all others of its column, and between which 98 % of these are."""

    value: float
    rows: int
    low: float
    high: float


def _lone_value(column: np.ndarray, only_known: bool) -> _Lone | None:
    """The smallest or the largest value, if it is far from the rest and one that logs write for a missing one, or
    comes again and again: the tails of a measured quantity do not. A reward may do so (a goal's): `only_known`."""
    for value in (column.min(), column.max()):
        rest = column[column != value]
        if value == 0 or len(rest) == 0:  # 0 is what things are that are off
            continue
        low, high = np.quantile(_some(rest), (0.01, 0.99))
        gap = min(abs(float(end) - float(value)) for end in (rest.min(), rest.max()))
        rows = len(column) - len(rest)
        known = abs(value) in STAND_FOR_NONE and gap > high - low
        repeated = 2 <= rows <= FEW_ALONE * len(column) and gap > ALONE * (high - low)
        if high > low and (known or (repeated and not only_known)):
            return _Lone(float(value), rows, float(low), float(high))
    return None


def _bounds_that_come_from(action: float, dataset: Dataset, dimension: int) -> str:
    """What to add where a bound was guessed from an action that is none."""
    low, high = bounds_from_data(dataset.actions[:, [dimension]])
    at_low = action == dataset.actions[:, dimension].min()
    bound, guessed = (dataset.action_low, low) if at_low else (dataset.action_high, high)
    if not np.isclose(bound[dimension], guessed[0]):
        return ""
    return f" (the guessed action bounds come from it: state yours with --action-{'low' if at_low else 'high'})"


def _far_away(column: np.ndarray, which: str) -> list[str]:
    low, middle, high = np.quantile(_some(column).astype(np.float64), (0.01, 0.5, 0.99))
    far = np.abs(column - middle) > FAR * (high - low)
    if high == low or not far.any():
        return []
    first = int(far.argmax())
    return [
        f"{which} is {column[first]:.4g} in row {first + 1:,} ({_counted(int(far.sum()), 'such row')}), where "
        f"{_usual(low, high)}: look whether that is a mistake."
    ]


def _some(rows: np.ndarray) -> np.ndarray:
    """Rows from everywhere, as many as quantiles need."""
    return rows[:: -(-len(rows) // LOOKED_AT) or 1]


def _usual(low: float, high: float) -> str:
    return f"98 % of the rows are between {low:.4g} and {high:.4g}"


def _which(dimension: int, names: Sequence[str]) -> str:
    """A dimension's number, and its column's name where it has one."""
    return f"{dimension} ({printable(names[dimension])})" if names else str(dimension)


def _dimensions(indices: np.ndarray, names: Sequence[str]) -> str:
    shown = ", ".join(_which(i, names) for i in indices[:10].tolist())
    return shown + (f" and {len(indices) - 10} more" if len(indices) > 10 else "")


def _duplicated_rows(dataset: Dataset) -> list[str]:
    # Equal rows have equal projections; two different rows with equal random projections are not to be expected.
    rng = np.random.default_rng(0)
    key = dataset.observations.astype(np.float64) @ rng.standard_normal(dataset.observation_size)
    key += dataset.actions.astype(np.float64) @ rng.standard_normal(dataset.action_size)
    repeated = len(key) - len(np.unique(key))
    if repeated <= MANY_DUPLICATES * len(key):
        return []
    return [f"{repeated:,} of {len(key):,} rows repeat the observation and action of another row."]


def _saturated_actions(dataset: Dataset) -> list[str]:
    # Bounds that were guessed are wider than the data: there the data's own ends may be the real ones.
    actions = dataset.actions
    low, high = actions.min(axis=0), actions.max(axis=0)
    edge = (1 - SATURATED) * (high - low)
    at_its_ends = ((actions <= low + edge) | (actions >= high - edge)) & (high > low)
    shares = (at_its_ends | (np.abs(dataset.scale_actions(actions)) >= SATURATED)).mean(axis=0)
    worst = int(shares.argmax())
    if shares[worst] <= MANY_SATURATED:
        return []
    which = _which(worst, dataset.action_names)
    return [f"actions sit at a bound: in dimension {which} in {100 * shares[worst]:.0f} % of the rows."]


def _constant_rewards(dataset: Dataset) -> list[str]:
    if dataset.rewards.min() != dataset.rewards.max():
        return []
    return [f"the reward is {dataset.rewards[0]:g} in every row: there is nothing to prefer one action by."]


def _costs(dataset: Dataset) -> list[str]:
    return costs(dataset.rewards, ends=bool(dataset.terminals.any()))


def costs(rewards: np.ndarray, *, ends: bool, shift: float = 0.0) -> list[str]:
    """Critics start near 0, so with rewards below 0 all that was never tried looks better than all that was.

    `ends`: whether terminals end episodes; `shift`: what the rewards have been shifted by already.
    """
    lowest, highest = float(rewards.min()), float(rewards.max())
    share = float((rewards < 0).mean())
    lost, gained = -rewards.clip(max=0).sum(dtype=np.float64), rewards.clip(min=0).sum(dtype=np.float64)
    if lowest == highest or (highest > 0 and (share <= 0.5 or lost <= OUTWEIGHED * gained)):
        return []
    which = (
        "no reward is above 0" if highest <= 0 else f"rewards are mostly below 0 (in {100 * share:.0f} % of the rows)"
    )
    # With terminals a shift would pay for staying alive.
    cure = "--algo iql" if ends else f"--reward-shift {shift - lowest:.3g}"
    return [f"{which}: actions that nobody tried can look better than any that was logged; train with {cure}."]


def _endless_episodes(dataset: Dataset) -> list[str]:
    if not dataset.never_ends or len(dataset) < FEW_ROWS:
        return []
    return ["no episode ever ends: if there were ends, their flags are missing; if not, all is well."]


def _episodes_of_one_row(dataset: Dataset) -> list[str]:
    lengths = dataset.episode_lengths
    single = int((lengths == 1).sum())
    if len(lengths) == 1 or single <= len(lengths) / 2:
        return []
    if dataset.terminals.all():
        return [
            "every row is terminal, so nothing is learned of what follows an action: flag only the rows that end an "
            "episode (if each row is a decision of its own, all is well)."
        ]
    return [
        f"{single:,} of {len(lengths):,} episodes have only one row: look whether terminals, timeouts or episode "
        "numbers mark more than the ends of episodes."
    ]


def _jumps(dataset: Dataset) -> list[str]:
    """Steps between rows of one episode that are far larger than usual look like an unmarked episode end."""
    if len(dataset) < 100:
        return []
    inside = ~(dataset.terminals | dataset.timeouts)[:-1]
    steps = _steps(dataset)[inside]
    usual = np.quantile(steps, 0.99) if len(steps) else 0.0
    where = np.flatnonzero(inside)[steps > JUMP * usual] if usual > 0 else np.zeros(0, dtype=int)
    if len(where) == 0:
        return []
    steps_jump = f"{_counted(len(where), 'step')} jump{'s' * (len(where) == 1)}"
    return [
        f"{steps_jump} more than {JUMP:g} times as far as 99 % of steps do, "
        f"first after row {where[0] + 1:,} of {len(dataset):,}: episode ends may be missing there."
    ]


def _steps(dataset: Dataset) -> np.ndarray:
    """How far each row's observation is from that of the row below."""
    return np.linalg.norm(np.diff(dataset.observations, axis=0) / _scale(dataset), axis=1)


def _scale(dataset: Dataset) -> np.ndarray:
    return dataset.observations.std(axis=0, dtype=np.float64) + 1e-9


def _differs_from_below(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """Whether the next observation of each of these rows is another than the observation of the row below."""
    assert dataset.next_observations is not None
    apart = np.abs(dataset.next_observations[rows] - dataset.observations[rows + 1])
    return (apart > SAME * _scale(dataset)).any(axis=1)


def _out_of_step(dataset: Dataset) -> list[str]:
    """Next observations that are not what the row below them, in the same episode, observed."""
    if dataset.next_observations is None:
        return []
    inside = np.flatnonzero(~(dataset.terminals | dataset.timeouts)[:-1])
    some = _some(inside)
    apart = _differs_from_below(dataset, some)
    if len(some) == 0 or apart.mean() <= MANY_OUT_OF_STEP:
        return []
    return [
        f"in {100 * apart.mean():.0f} % of the rows inside episodes the next observation is not the observation of the "
        "row below: look whether rows are in order of time, and the next observation's columns in the order of the "
        "observation's."
    ]


def _into_the_next_episode(dataset: Dataset) -> list[str]:
    """Next observations that were made of the row below, whichever episode that is of.

    A log that goes on from one episode to the next without a leap really has these.
    """
    cut = np.flatnonzero(dataset.timeouts[:-1])
    if dataset.next_observations is None or len(cut) < 2:
        return []
    same = 1 - _differs_from_below(dataset, cut).mean()
    if same < MANY_IN_NEXT_EPISODE:
        return []
    steps, inside = _steps(dataset), ~(dataset.terminals | dataset.timeouts)[:-1]
    usual = float(np.median(steps[inside])) if inside.any() else 0.0
    if np.median(steps[cut]) <= LEAP * usual:
        return []
    return [
        f"at {100 * same:.0f} % of the timeouts the next observation is the first one of the next episode: log the "
        "true next observation there, or leave next observations out."
    ]


def _little_data(dataset: Dataset) -> list[str]:
    are = "is" if len(dataset) == 1 else "are"
    return [f"there {are} only {_counted(len(dataset), 'row')}."] if len(dataset) < FEW_ROWS else []
