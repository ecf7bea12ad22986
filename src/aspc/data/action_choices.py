"""Find the categorical columns of logged actions, and encode each as one column per option (see `aspc.action_space`).

An action column is categorical if it holds text or Booleans, or if it is an array of integers. In a table, a column of
numbers is categorical if it holds at most `MAX_WHOLE_CHOICES` distinct integers, with at least `ROWS_PER_CHOICE` rows
per integer on average. All other columns are continuous. The options `categorical` and `continuous` override this.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from aspc import envs
from aspc.action_space import MAX_CHOICES, ActionSpace, Factor
from aspc.data import validation
from aspc.data.validation import check_matrix
from aspc.errors import AspcError, printable
from aspc.text import join_limited, natural_sort_key

MAX_WHOLE_CHOICES = 16  # maximum number of distinct integers in a categorical table column
MAX_INTEGER_CHOICES = 256  # maximum number of distinct integers in a categorical integer array
ROWS_PER_CHOICE = 10
MAX_SHOWN = 8
MASK_PREFIX = "mask_"
QUANTITY = re.compile(r"[+-]?\d[\d.,' ]*(\D*)")  # a quantity such as 12.5 % or 1,250
ALL = "*"

Categories = Mapping[str, Sequence[str]]  # for each text column, the strings that its codes stand for


class ChoiceOptions(NamedTuple):
    """The action columns that the user declared categorical or continuous, as names or patterns."""

    categorical: tuple[str, ...] = ()
    continuous: tuple[str, ...] = ()

    @classmethod
    def of(cls, categorical: str | Sequence[str], continuous: str | Sequence[str]) -> ChoiceOptions:
        """Create the options; each argument is one name or several names."""
        return cls(*(tuple([names] if isinstance(names, str) else names) for names in (categorical, continuous)))

    def decide(self, column: str, name: str) -> bool | None:
        """Return whether a column is declared categorical, or None if the options do not list it."""
        is_choice, is_number = (any(fnmatch.fnmatchcase(column, p) for p in patterns) for patterns in self)
        if is_choice and is_number and column not in self.categorical:
            raise AspcError(f"{name}: {column!r} is listed in both --categorical and --continuous; choose one.")
        return True if is_choice else False if is_number else None


class EncodedActions(NamedTuple):
    """Encoded actions, their space, their masks [N, masked] with names, and notes."""

    actions: np.ndarray
    space: ActionSpace
    masks: np.ndarray | None = None
    mask_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def encode_actions(
    actions: ArrayLike,
    names: Sequence[str],
    *,
    options: ChoiceOptions,
    name: str,
    categories: Categories | None = None,
    env: str | None = None,
    masks: ArrayLike | None = None,
    mask_names: Sequence[str] = (),
) -> EncodedActions | None:
    """Encode the categorical columns of actions, or return None if all columns are continuous.

    Args:
        actions: [N, factors], or [N] for one categorical action: numbers, Booleans or text.
        names: The names of the columns; can be empty.
        options: The columns that the user declared categorical or continuous.
        name: Name of the dataset, for messages.
        categories: For a table, the strings that the codes of its text columns stand for; None for arrays.
        env: Name of the environment, which can define the options as a range of integers, or None.
        masks: [N, masks] flags of the allowed options.
        mask_names: The names of the masks. Without them, there is one mask per option.

    Raises:
        AspcError: A categorical column has only one option or too many, or a mask is invalid.
    """
    raw = _to_table(actions)
    if raw is None:
        return None
    columns = list(names) if len(names) == raw.shape[1] else [f"action_{i}" for i in range(raw.shape[1])]
    if raw.shape[1] == 1 and not names:
        columns = ["action"]
    for pattern in (*options.categorical, *options.continuous):
        if pattern != ALL and not fnmatch.filter(columns, pattern):
            raise AspcError(f"{name}: there is no action {pattern!r}; the actions are {', '.join(columns)}.")
    can_be_choice = raw.dtype.kind in "iub" or options.categorical or categories is not None
    known = envs.choices(env) if env is not None and can_be_choice else None
    in_env = known.factors if known is not None and len(known.factors) == len(columns) else (None,) * len(columns)
    factors, values, notes = list[Factor](), list[np.ndarray](), list[str]()
    for i, column in enumerate(columns):
        codes, choices, is_guess = _read_factor(raw[:, i], column, options, name, categories, in_env[i])
        factors.append(Factor(column, choices))
        values.append(codes)
        if is_guess:
            notes.append(_guess_note(column, choices))
    space = ActionSpace(tuple(factors))
    if not space.has_choices:
        return None
    found = None
    if masks is not None:
        space, found = _match_masks(space, check_matrix("masks", masks, name), mask_names, name)
    encoded = space.encode(np.stack(values, axis=1).astype(np.float64))
    if found is not None:
        _check_masks(space, encoded, found, name)
    labels = tuple(mask_names) or tuple(f"{MASK_PREFIX}{space.columns[i]}" for i in space.masked)
    return EncodedActions(encoded, space, found, labels, tuple(notes))


def _to_table(actions: ArrayLike) -> np.ndarray | None:
    """Return actions as [N, factors], or None if their shape or type is invalid, which `validation` reports later."""
    try:
        array = np.asarray(actions)
    except ValueError:  # ragged nested lists
        return None
    if array.ndim == 1 and array.dtype.kind != "f":
        array = array[:, None]
    is_known = array.dtype.kind in "fiubUO" or array.dtype.kind == "T"
    return array if is_known and array.ndim == 2 and array.size else None


def _read_factor(
    cells: np.ndarray,
    column: str,
    options: ChoiceOptions,
    name: str,
    categories: Categories | None,
    in_env: Factor | None,
) -> tuple[np.ndarray, tuple[str, ...], bool]:
    """Return a column's codes, its options (none if it is continuous), and whether it was guessed to be categorical."""
    wanted = options.decide(column, name)
    if categories is not None and column in categories:
        if wanted is False:
            raise AspcError(f"{name}: column {column!r} holds text, which cannot be continuous. Encode it as numbers.")
        units = {found and found[1] for found in map(QUANTITY.fullmatch, categories[column])}
        if wanted is None and len(categories[column]) > MAX_WHOLE_CHOICES and len(units) == 1 and None not in units:
            raise AspcError(
                f"{name}: the actions in column {column!r} are text that looks like numbers. Write plain numbers, "
                "without units or thousands separators; if they are category labels, pass --categorical."
            )
        return _sorted_codes(cells, categories[column], column, name)
    if cells.dtype.kind == "O" and not any(isinstance(cell, str) for cell in cells):
        cells = np.array(cells.tolist())  # a numeric column, stored as objects because another column holds text
    is_text, is_integer = cells.dtype.kind not in "fiub", cells.dtype.kind in "iub"
    if is_text:
        found, codes = np.unique(cells.astype(str), return_inverse=True)
        return _sorted_codes(codes.reshape(-1), found.tolist(), column, name)
    if wanted is False:
        return cells, (), False
    distinct = np.unique(cells[~np.isnan(cells)] if cells.dtype.kind == "f" else cells)
    is_whole = bool(np.isfinite(distinct).all() and (distinct == np.round(distinct)).all())
    if wanted and not is_whole:
        raise AspcError(f"{name}: column {column!r} is listed in --categorical, but holds numbers other than integers.")
    if in_env is not None and in_env.choices and is_whole and (is_integer or wanted or categories is not None):
        return _environment_codes(cells, distinct, in_env, column, name)
    is_few = 2 <= len(distinct) <= MAX_WHOLE_CHOICES and len(cells) >= ROWS_PER_CHOICE * len(distinct)
    is_guess = wanted is None and categories is not None and is_whole and is_few
    if not (wanted or is_guess or (is_integer and categories is None)):
        return cells, (), False
    if len(distinct) < 2:
        raise AspcError(
            f"{name}: the action column {column!r} ({cells.dtype}) is discrete, but all its values are "
            f"{distinct[0]}. Leave the column out with --map, or declare it continuous with --continuous."
        )
    limit = MAX_CHOICES if wanted else MAX_INTEGER_CHOICES
    if len(distinct) > limit:
        raise AspcError(
            f"{name}: column {column!r} holds {len(distinct):,} distinct integers, too many for discrete actions. "
            "If they are quantities, pass --continuous."
        )
    label = str if cells.dtype.kind == "b" else int
    return np.searchsorted(distinct, cells), tuple(str(label(value)).lower() for value in distinct), is_guess


def _sorted_codes(
    codes: np.ndarray, names: Sequence[str], column: str, name: str
) -> tuple[np.ndarray, tuple[str, ...], bool]:
    """Number the options in natural order, so that the codes do not depend on the order of rows."""
    if len(names) < 2:
        raise AspcError(f"{name}: column {column!r} has only one option, {names[0]!r}. Leave it out with --map.")
    if len(names) > MAX_CHOICES:
        raise AspcError(f"{name}: column {column!r} has {len(names):,} options, more than {MAX_CHOICES:,}.")
    if not np.isfinite(np.asarray(codes, np.float64)).all():
        row = int(np.flatnonzero(~np.isfinite(np.asarray(codes, np.float64)))[0])
        raise AspcError(
            f"{name}: column {column!r} is empty in row {row + 1:,}. Fill it, or pass --missing split or ffill."
        )
    order = sorted(range(len(names)), key=lambda i: natural_sort_key(names[i]))
    rank = np.argsort(order)
    return rank[np.asarray(codes, np.int64)], tuple(names[i] for i in order), False


def _environment_codes(
    cells: np.ndarray, distinct: np.ndarray, in_env: Factor, column: str, name: str
) -> tuple[np.ndarray, tuple[str, ...], bool]:
    """Return the codes of the options, counted from the first option of the environment."""
    first, last = int(in_env.choices[0]), int(in_env.choices[-1])
    if distinct[0] < first or distinct[-1] > last:
        raise AspcError(
            f"{name}: column {column!r} holds options from {int(distinct[0])} to {int(distinct[-1])}, but the "
            f"environment only has options {first} to {last}. Choose another environment (--env) or none (--env none)."
        )
    return cells - first, in_env.choices, False


def _guess_note(column: str, choices: Sequence[str]) -> str:
    shown = join_limited(list(choices), MAX_SHOWN)
    return (
        f"action {printable(column)!r} has only {len(choices)} distinct values ({shown}) and is treated as "
        f"categorical; if it is a quantity, pass --continuous {printable(column)}."
    )


# ── masks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _match_masks(
    space: ActionSpace, masks: np.ndarray, names: Sequence[str], name: str
) -> tuple[ActionSpace, np.ndarray]:
    """Return the space with its masked columns declared, and the masks.

    A mask for an option that was never chosen adds the option to the space.
    """
    if ((masks != 0) & (masks != 1)).any():
        row = int(((masks != 0) & (masks != 1)).any(axis=1).argmax())
        raise AspcError(f"{name}: masks must be 0 or 1, but row {row + 1:,} has other values.")
    if not names:
        masked = np.flatnonzero(space.is_choice)
        if masks.shape[1] != len(masked):
            raise AspcError(
                f"{name}: there are {masks.shape[1]} masks for {len(masked)} options; pass one mask per option."
            )
        return space._replace(masked=tuple(masked.tolist())), masks
    found = [_masked_option(space, mask, name) for mask in names]
    if len(set(found)) < len(found):
        raise AspcError(f"{name}: two masks refer to the same option; remove one of {', '.join(names)}.")
    factors = list(space.factors)
    for index, choice in found:
        factor = factors[index]
        if choice not in factor.choices:
            factors[index] = factor._replace(choices=(*factor.choices, choice))
    space = ActionSpace(tuple(factors))
    starts = [columns.start for _, columns in space.blocks()]
    return space._replace(
        masked=tuple(starts[index] + factors[index].choices.index(choice) for index, choice in found)
    ), masks


def _masked_option(space: ActionSpace, mask: str, name: str) -> tuple[int, str]:
    """Return the factor and the option in a mask's name, which is "mask_OPTION" or "mask_ACTION_OPTION"."""
    label = mask.removeprefix(MASK_PREFIX)
    choices = [(i, factor) for i, factor in enumerate(space.factors) if factor.choices]
    exact = [(i, label) for i, factor in choices if label in factor.choices]
    prefixed = [
        (i, label.removeprefix(start))
        for i, factor in choices
        for stem in dict.fromkeys((factor.name, factor.name.removeprefix("action_")))
        for start in (f"{stem}_", f"{stem}=")
        if label.startswith(start)
    ]
    known = [(i, choice) for i, choice in prefixed if choice in space.factors[i].choices]
    new = prefixed or ([(choices[0][0], label)] if len(choices) == 1 else [])
    found = exact if len(exact) == 1 else known or new
    if not found:
        raise AspcError(
            f"{name}: the mask {mask!r} matches no option. Name masks mask_OPTION, or mask_ACTION_OPTION if several "
            f"actions are categorical; the options are {join_limited(list(space.columns), MAX_SHOWN)}."
        )
    return found[0]


def _check_masks(space: ActionSpace, actions: np.ndarray, masks: np.ndarray, name: str) -> None:
    """Raise an `AspcError` if a mask forbids the chosen option; every valid row therefore allows an option."""
    forbidden = (actions[:, list(space.masked)] == 1) & (masks == 0)
    if forbidden.any():
        row, column = np.argwhere(forbidden)[0]
        chosen = space.columns[space.masked[column]]
        raise AspcError(
            f"{name}: row {row + 1:,} chooses {printable(chosen)!r}, which its mask forbids "
            f"({int(forbidden.any(axis=1).sum()):,} such rows). Correct the masks, or remove these rows."
        )


def add_masks(
    encoded: EncodedActions, arrays: dict[str, np.ndarray], names: Sequence[str]
) -> tuple[dict[str, np.ndarray], Sequence[str]]:
    """Append the masks to the observations of validated arrays, and the masks' names to the observations' names.

    Logged next observations get the masks of the next row. At the end of an episode there is no next row, and every
    option counts as allowed.
    """
    masks = encoded.masks
    if masks is None:
        return arrays, names
    arrays = {**arrays, "observations": np.concatenate([arrays["observations"], masks], axis=1)}
    if "next_observations" in arrays:
        ends = arrays["terminals"] | arrays.get("timeouts", np.zeros(len(masks), bool))
        following = np.where(ends[:, None], 1, np.concatenate([masks[1:], np.ones_like(masks[:1])]))
        arrays["next_observations"] = np.concatenate([arrays["next_observations"], following], axis=1)
    return arrays, [*names, *encoded.mask_names] if names else ()


def bounds_of(
    space: ActionSpace | None,
    actions: np.ndarray,
    low: ArrayLike | None,
    high: ArrayLike | None,
    env: str | None,
    name: str,
    margin: float | None,
) -> validation.ActionBounds:
    """Return the bounds of all columns: 0 and 1 for options, the result of `validation.action_bounds` for the rest."""
    if space is None:
        return validation.action_bounds(actions, low, high, env, name, margin)
    is_number = ~space.is_choice
    known = None if env is None else envs.action_bounds(env)
    if known is not None and len(known[0]) != len(is_number):
        raise AspcError(
            f"{name}: the actions have the columns {join_limited(list(space.columns), MAX_SHOWN)}, but the environment "
            f"{env} has different actions. Choose another environment (--env) or none (--env none)."
        )
    lows, highs = np.zeros(len(is_number), np.float32), np.ones(len(is_number), np.float32)
    if not is_number.any():
        return validation.ActionBounds(lows, highs, "options: 0 or 1", ())
    low, high = (_of_numbers(bound, is_number) for bound in (low, high))
    if known is not None:
        low, high = known[0][is_number] if low is None else low, known[1][is_number] if high is None else high
    numbers = validation.action_bounds(actions[:, is_number], low, high, None, name, margin)
    lows[is_number], highs[is_number] = numbers.low, numbers.high
    return validation.ActionBounds(lows, highs, numbers.source, numbers.notes)


def _of_numbers(bound: ArrayLike | None, is_number: np.ndarray) -> ArrayLike | None:
    """Return the bounds of the continuous columns, given bounds for these columns or for all columns."""
    return np.asarray(bound)[is_number] if bound is not None and np.size(bound) == len(is_number) > 1 else bound


def check_encoded(actions: np.ndarray, observations: np.ndarray, space: ActionSpace, name: str) -> EncodedActions:
    """Check that actions are correctly encoded, and that the observations have enough columns for the masks.

    Raises:
        AspcError: The actions have the wrong shape, a row does not select exactly one option of each categorical
            action, or the observations have too few columns.
    """
    width = sum(factor.size for factor in space.factors)
    if observations.ndim != 2 or observations.shape[1] <= len(space.masked):
        raise AspcError(f"{name}: each observation needs {len(space.masked)} masks and at least one other number.")
    if actions.ndim != 2 or actions.shape[1] != width:
        raise AspcError(f"{name}: actions have shape {actions.shape}, but their space has {width} columns.")
    for factor, columns in space.blocks():
        block = actions[:, columns]
        if factor.choices and not (((block == 0) | (block == 1)).all() and (block.sum(axis=1) == 1).all()):
            raise AspcError(
                f"{name}: in each row, exactly one option of the action {factor.name!r} must be 1 and the others 0."
            )
    return EncodedActions(actions, space)


def merge_categories(parts: Sequence[tuple[np.ndarray, Sequence[str], Categories]]) -> dict[str, list[str]]:
    """Give the text columns of several files the same codes.

    Args:
        parts: For each file, its actions (changed in place), their columns, and its categories.

    Returns:
        The merged categories.
    """
    merged: dict[str, dict[str, int]] = {}
    for actions, columns, categories in parts:
        for column, names in categories.items():
            codes = merged.setdefault(column, {})
            new = np.array([codes.setdefault(option, len(codes)) for option in names], np.float64)
            cells = actions[:, list(columns).index(column)]
            known = ~np.isnan(cells)
            cells[known] = new[cells[known].astype(np.int64)]
    return {column: list(codes) for column, codes in merged.items()}


def choice_counts(space: ActionSpace, actions: np.ndarray) -> dict[str, dict[str, int]]:
    """Return the number of rows per option of each categorical action."""
    return {
        factor.name: dict(zip(factor.choices, actions[:, columns].sum(0).astype(int).tolist(), strict=True))
        for factor, columns in space.blocks()
        if factor.choices
    }
