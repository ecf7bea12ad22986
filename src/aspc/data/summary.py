"""A look at a dataset: sizes, returns, and the warnings that a practitioner would want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aspc.data.dataset import Dataset
from aspc.errors import printable

SATURATED = 0.999  # of the way to a bound
MANY_SATURATED = 0.05  # share of rows
MANY_DUPLICATES = 0.001
JUMP = 5.0  # times the 99th percentile of the steps between rows
FAR = 1_000.0  # times the range of the middle 98 % of a column
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


def _named(size: int, names: Sequence[str]) -> str:
    """How many numbers, and which: a policy wants them in this order."""
    shown = ", ".join((*names[:MOST_NAMES], "…") if len(names) > MOST_NAMES else names)
    return f"{size} numbers" + (f": {printable(shown)}" if names else "")


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
        ("observation", _named(dataset.observation_size, dataset.observation_names)),
        ("action", _named(dataset.action_size, dataset.action_names)),
        ("action bounds", _bounds(dataset)),
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


def _spread(values: np.ndarray, digits: int) -> str:
    low, middle, high = (float(np.quantile(values, q)) for q in (0.0, 0.5, 1.0))
    return (
        f"{low:,.{digits}f} to {high:,.{digits}f}, median {middle:,.{digits}f}, mean {float(values.mean()):,.{digits}f}"
    )


def _bounds(dataset: Dataset) -> str:
    pairs = [f"[{low:.4g}, {high:.4g}]" for low, high in zip(dataset.action_low, dataset.action_high, strict=True)]
    if len(set(pairs)) == 1:
        return f"{pairs[0]} in every dimension"
    return " ".join(pairs[:8]) + (f" and {len(pairs) - 8} more" if len(pairs) > 8 else "")


def find_warnings(dataset: Dataset) -> list[str]:
    """What looks wrong or hard to learn from."""
    checks = (
        _constant_dimensions,
        _far_away,
        _duplicated_rows,
        _saturated_actions,
        _constant_rewards,
        _costs,
        _endless_episodes,
        _jumps,
        _little_data,
    )
    return [warning for check in checks for warning in check(dataset)]


def _constant_dimensions(dataset: Dataset) -> list[str]:
    found = []
    for what, values in (("observation", dataset.observations), ("action", dataset.actions)):
        still = np.flatnonzero(values.min(axis=0) == values.max(axis=0))
        if len(still):
            found.append(
                f"{what} dimension{'s' * (len(still) > 1)} {_numbers(still)} never change{'s' * (len(still) == 1)}."
            )
    return found


def _far_away(dataset: Dataset) -> list[str]:
    """Numbers so far from the others of their column that they look like a mistake of the log."""
    found = []
    some = slice(None, None, -(-len(dataset) // LOOKED_AT))
    columns = (
        ("observation dimension", dataset.observations, dataset.observation_names),
        ("action dimension", dataset.actions, dataset.action_names),
        ("reward", dataset.rewards[:, None], ()),
    )
    for what, values, names in columns:
        low, middle, high = np.quantile(values[some].astype(np.float64), (0.01, 0.5, 0.99), axis=0)
        furthest = np.maximum(values.max(axis=0) - middle, middle - values.min(axis=0))
        for i in np.flatnonzero((high > low) & (furthest > FAR * (high - low))):
            far = np.abs(values[:, i] - middle[i]) > FAR * (high[i] - low[i])
            first, which = int(far.argmax()), "" if what == "reward" else f" {_which(int(i), names)}"
            found.append(
                f"{what}{which} is {values[first, i]:.4g} in row {first + 1:,} ({int(far.sum()):,} such rows), where "
                f"98 % of the rows are between {low[i]:.4g} and {high[i]:.4g}: look whether that is a mistake."
            )
    return found


def _which(dimension: int, names: Sequence[str]) -> str:
    """A dimension's number, and its column's name where it has one."""
    return f"{dimension} ({printable(names[dimension])})" if names else str(dimension)


def _numbers(indices: np.ndarray) -> str:
    shown = ", ".join(map(str, indices[:10].tolist()))
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
    """Critics start near 0, so with rewards below 0 all that was never tried looks better than all that was."""
    lowest, highest = float(dataset.rewards.min()), float(dataset.rewards.max())
    if highest > 0 or lowest == highest:
        return []
    shift = f"train with --reward-shift {-lowest:.3g}"
    if dataset.terminals.any():  # a shift would pay for staying alive
        shift = "train with --algo iql"
    return [f"no reward is above 0: actions that nobody tried can look better than any that was logged; {shift}."]


def _endless_episodes(dataset: Dataset) -> list[str]:
    if not dataset.never_ends or len(dataset) < FEW_ROWS:
        return []
    return ["no episode ever ends: if there were ends, their flags are missing; if not, all is well."]


def _jumps(dataset: Dataset) -> list[str]:
    """Steps between rows of one episode that are far larger than usual look like an unmarked episode end."""
    if len(dataset) < 100:
        return []
    inside = ~(dataset.terminals | dataset.timeouts)[:-1]
    scale = dataset.observations.std(axis=0, dtype=np.float64) + 1e-9
    steps = np.linalg.norm(np.diff(dataset.observations, axis=0) / scale, axis=1)[inside]
    usual = np.quantile(steps, 0.99) if len(steps) else 0.0
    where = np.flatnonzero(inside)[steps > JUMP * usual] if usual > 0 else np.zeros(0, dtype=int)
    if len(where) == 0:
        return []
    return [
        f"{len(where):,} steps jump more than {JUMP:g} times as far as 99 % of steps do, "
        f"first after row {where[0] + 1:,} of {len(dataset):,}: episode ends may be missing there."
    ]


def _little_data(dataset: Dataset) -> list[str]:
    return [f"there are only {len(dataset):,} rows."] if len(dataset) < FEW_ROWS else []
