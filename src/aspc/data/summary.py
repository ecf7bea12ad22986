"""A look at a dataset: sizes, returns, and the warnings that a practitioner would want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aspc.data.dataset import Dataset, shown_bounds
from aspc.data.streaming import StreamingDataset
from aspc.errors import printable

SATURATED = 0.999  # of the way to a bound
MANY_SATURATED = 0.05  # share of rows
MANY_DUPLICATES = 0.001
JUMP = 5.0  # times the 99th percentile of the steps between rows
SAME = 1e-3  # of a column's standard deviation
MANY_OUT_OF_STEP = 0.05  # share of rows
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
        _far_away,
        _duplicated_rows,
        _saturated_actions,
        _constant_rewards,
        costs,
        _endless_episodes,
        _jumps,
        _out_of_step,
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
            rows = _counted(int(far.sum()), "such row")
            found.append(
                f"{what}{which} is {values[first, i]:.4g} in row {first + 1:,} ({rows}), where "
                f"98 % of the rows are between {low[i]:.4g} and {high[i]:.4g}: look whether that is a mistake."
            )
    return found


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


def costs(dataset: Dataset) -> list[str]:
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
    steps_jump = f"{_counted(len(where), 'step')} jump{'s' * (len(where) == 1)}"
    return [
        f"{steps_jump} more than {JUMP:g} times as far as 99 % of steps do, "
        f"first after row {where[0] + 1:,} of {len(dataset):,}: episode ends may be missing there."
    ]


def _out_of_step(dataset: Dataset) -> list[str]:
    """Next observations that are not what the row below them, in the same episode, observed."""
    if dataset.next_observations is None:
        return []
    inside = np.flatnonzero(~(dataset.terminals | dataset.timeouts)[:-1])
    some = inside[:: -(-len(inside) // LOOKED_AT) or 1]
    scale = dataset.observations.std(axis=0, dtype=np.float64) + 1e-9
    apart = (np.abs(dataset.next_observations[some] - dataset.observations[some + 1]) > SAME * scale).any(axis=1)
    if len(some) == 0 or apart.mean() <= MANY_OUT_OF_STEP:
        return []
    return [
        f"in {100 * apart.mean():.0f} % of the rows inside episodes the next observation is not the observation of the "
        "row below: look whether rows are in order of time, and the next observation's columns in the order of the "
        "observation's."
    ]


def _little_data(dataset: Dataset) -> list[str]:
    are = "is" if len(dataset) == 1 else "are"
    return [f"there {are} only {_counted(len(dataset), 'row')}."] if len(dataset) < FEW_ROWS else []
