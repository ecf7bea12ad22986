"""Match stored names to arrays by known aliases, numbered columns, patterns and a user-supplied key map."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aspc.data.formula import Formula
from aspc.data.metadata import NPZ_KEYS
from aspc.data.roles import (
    NO_TIME,
    cost_notes,
    find_time_column,
    is_named_like_cost,
    is_named_like_time,
    strip_unit,
    unchecked_order_note,
)
from aspc.errors import AspcError
from aspc.text import join_limited, natural_sort_key

if TYPE_CHECKING:
    from aspc.data.read_options import ReadOptions

KeyMap = Mapping[str, str | Sequence[str]]  # the stored names of each array, as returned by `check_key_map`

# Names that other libraries use. The first is D4RL's name, which aspc writes.
ALIASES: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "terminals": ("terminals", "terminal", "terminated", "terminations", "dones", "done"),
    "timeouts": ("timeouts", "timeout", "truncated", "truncations", "truncateds"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "new_obs", "next_states", "next_state"),
    "episodes": ("episodes", "episode", "episode_id", "episode_ids", "eps_id"),
    "kpis": ("kpis",),
    "masks": ("action_masks", "action_mask"),
    "costs": (),  # never guessed: safe-RL datasets have a column of costs next to the rewards
    "times": (),  # found by content, see `aspc.data.roles.find_time_column`
}
REQUIRED = ("observations", "actions", "rewards")
# Patterns of table columns that form a vector.
COMPONENT_PATTERNS: dict[str, tuple[str, ...]] = {
    "observations": ("obs_*", "observation_*"),
    "actions": ("action_*", "act_*"),
    "next_observations": ("next_obs_*", "next_observation_*"),
    "masks": ("mask_*",),
}
# Columns that match `COMPONENT_PATTERNS` but are not components of the vector.
NOT_COMPONENTS = re.compile(r"(next_)?(obs|observation)_id|(action|act)_(id|logp|log_?probs?|probs?)")
UNNEEDED_ARRAYS = ("infos", "infos/*", "metadata/*", "qpos", "qvel")  # additional arrays in D4RL's and OGBench's files
MAX_LISTED_NAMES = 20
COST_REMEDY = "pass --map costs={0} instead of --map rewards; costs are negated"


def check_key_map(key_map: Mapping[str, Any]) -> KeyMap:
    """Return a key map with plural keys; each value is a name or a list of names.

    The given keys can also be singular, like the names of many table columns.
    """
    plural = {name: key for key in ALIASES for name in (key, key.removesuffix("s"))}
    unknown = [key for key in key_map if key not in plural]
    if unknown:
        raise AspcError(f"Unknown key {unknown[0]!r} in the key map; choose from {', '.join(ALIASES)}.")
    duplicates = [key for key, count in Counter(plural[key] for key in key_map).items() if count > 1]
    if duplicates:
        raise AspcError(f"Duplicate key {duplicates[0]!r} in the key map (singular and plural); remove one of them.")
    return {plural[key]: _check_names(key, names) for key, names in key_map.items()}


def _check_names(key: str, names: Any) -> str | list[str]:
    if isinstance(names, str):
        return names
    listed = list(names) if isinstance(names, Iterable) else []
    if not listed or not all(isinstance(name, str) for name in listed):
        raise AspcError(f"Invalid value {names!r} for {key!r} in the key map; give a name or a list of names.")
    return listed


def list_names(names: Sequence[str]) -> str:
    """Return at most `MAX_LISTED_NAMES` of the names as text, each quoted."""
    return join_limited([repr(name) for name in names], MAX_LISTED_NAMES) or "none"


def canonical_keys(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the arrays keyed by D4RL's names.

    An array keeps its stored name if that name is unknown, or if another array already has the D4RL name.

    Raises:
        AspcError: Two stored names refer to the same array.
    """
    known = {alias: key for key, aliases in ALIASES.items() for alias in aliases}
    found: dict[str, Any] = {}
    for stored, array in arrays.items():
        key = known.get(stored, stored)
        key = stored if key in arrays else key
        if key in found:
            raise AspcError(f"{name}: {stored!r} is another name for {key!r}; remove one of them.")
        found[key] = array
    return found


def _map_option(*keys: str) -> str:
    words, entries = " ".join(f"{key}=NAME" for key in keys), ", ".join(f"{key!r}: 'NAME'" for key in keys)
    return f"--map {words} (in Python: key_map={{{entries}}})"


def _check_complete(found: Mapping[str, Any], stored: Sequence[str], name: str, needs_no_ends: bool) -> None:
    if missing := [key for key in REQUIRED if key not in found and not (key == "rewards" and "costs" in found)]:
        costs = list(filter(is_named_like_cost, stored)) if "rewards" in missing else []
        hint = f" If {costs[0]!r} is a cost, pass --map costs={costs[0]}, which negates it." if costs else ""
        problem = f"{name}: {list_names(missing)} not found among {list_names(stored)}"
        raise AspcError(f"{problem}. Pass {_map_option(*missing)}; separate multiple columns with commas.{hint}")
    if not needs_no_ends and not any(key in found for key in ("terminals", "timeouts", "episodes", "times")):
        times = next((column for column in stored if is_named_like_time(column)), "NAME")
        raise AspcError(
            f"{name}: nothing marks the ends of episodes. Add a column 'episode' with episode numbers, or flags "
            f"'terminal' or 'timeout', or name one of {list_names(stored)} with {_map_option('episode')}. A time "
            f"column (--map time={times}) or a step limit (--max-episode-steps) also ends episodes."
        )


def _alias_notes(stored_name: str) -> list[str]:
    """Return a note on an ambiguous name that was matched by an alias."""
    if stored_name.lower() not in ("dones", "done"):
        return []
    return [f"{stored_name!r} was read as terminals: if it also marks time limits, log those separately as timeouts."]


# ── files with one array per name ───────────────────────────────────────────────────────────────────────────────────


def resolve_arrays(
    stored: Sequence[str], key_map: KeyMap, name: str, needs_no_ends: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Match stored arrays, by the key map first and then by aliases.

    Args:
        stored: Names of the stored arrays.
        key_map: The user-supplied key map.
        name: Name of the file, for messages.
        needs_no_ends: True if the file does not have to mark the ends of episodes.

    Returns:
        The stored name of each array, and notes.
    """
    key_map = _without_ignored_time(key_map)
    found = {key: _mapped_array(stored, key, names, name) for key, names in key_map.items()}
    unmapped = set(stored) - set(found.values())
    notes: list[str] = []
    for key, aliases in ALIASES.items():
        is_given = key in found or (key == "rewards" and "costs" in found)
        match = None if is_given else next((alias for alias in aliases if alias in unmapped), None)
        if match is not None:
            found[key] = match
            notes += _alias_notes(match)
    _check_complete(found, stored, name, needs_no_ends)
    if "rewards" in found:
        notes += cost_notes([found["rewards"]], COST_REMEDY)
    return found, notes


def _without_ignored_time(key_map: KeyMap) -> KeyMap:
    """Return a key map without `time=none`, which declares that a file has no times."""
    return {key: names for key, names in key_map.items() if key != "times" or names != NO_TIME}


def _mapped_array(stored: Sequence[str], key: str, names: str | Sequence[str], name: str) -> str:
    listed = [names] if isinstance(names, str) else names
    if len(listed) > 1:
        raise AspcError(f"{name}: {key!r} is one array, but the key map names {list_names(listed)}; choose one.")
    if listed[0] not in stored:
        raise _not_found(listed[0], stored, name)
    return listed[0]


def _not_found(wanted: str, stored: Sequence[str], name: str) -> AspcError:
    return AspcError(f"{name}: {wanted!r}, named in the key map, does not exist. Available: {list_names(stored)}.")


def unused_array_notes(shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, str]) -> list[str]:
    """Return notes on unused arrays that have one entry per row."""
    rows = shapes.get(found["observations"], ())[:1]
    unused = [
        stored
        for stored, shape in shapes.items()
        if rows
        and shape[:1] == rows
        and stored not in (*found.values(), *NPZ_KEYS)
        and not any(fnmatch.fnmatchcase(stored, pattern) for pattern in UNNEEDED_ARRAYS)
    ]
    times = [] if "times" in found else [stored for stored in unused if is_named_like_time(stored)]
    others = [stored for stored in unused if stored not in times]
    return [
        *unchecked_order_note(times),
        *([f"unused arrays: {list_names(others)}; to use one, select it with --map."] if others else []),
    ]


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def resolve_columns(
    columns: Sequence[str],
    options: ReadOptions,
    name: str,
    is_time: Callable[[str], bool] = lambda column: False,
    is_date: Callable[[str], bool] = lambda column: False,
    is_choice: Callable[[str], bool] = lambda column: False,
) -> tuple[dict[str, list[str]], list[str]]:
    """Match table columns, by the key map first and then by known names.

    A value of the key map is a list of names and patterns, or a comma-separated string of them.

    Args:
        columns: Names of all columns.
        options: Options for reading the log.
        name: Name of the file, for messages.
        is_time: Returns whether a column holds dates or seconds since 1970.
        is_date: Returns whether a column holds dates.
        is_choice: Returns whether a column can be categorical, so that columns `mask_*` can be masks of its options.

    Returns:
        The columns of each array in order, and notes. With a reward formula, "rewards" has the formula's columns.
    """
    key_map = _without_ignored_time(options.key_map)
    formula = None if options.reward is None else Formula.parse(options.reward)
    formula_columns = () if formula is None else formula.columns
    duplicates = [column for column, count in Counter(columns).items() if count > 1]
    if duplicates:
        raise AspcError(f"{name}: duplicate column {duplicates[0]!r}; rename one of them.")
    for column in (*formula_columns, *options.one_hot):
        if column not in columns:
            raise AspcError(f"{name}: column {column!r} does not exist. Available: {list_names(columns)}.")
    found = {key: _mapped_columns(columns, names, name) for key, names in key_map.items()}
    if options.kpis:
        found["kpis"] = _mapped_columns(columns, options.kpis, name)
    mapped = {column for names in found.values() for column in names}
    unmapped = [column for column in columns if column not in mapped]
    notes: list[str] = []
    has_rewards = "costs" in found or formula is not None
    for key in ALIASES:
        if key in found or (key == "rewards" and has_rewards):
            continue
        if key == "masks" and not any(map(is_choice, found.get("actions", ()))):
            continue
        matches = _guess_columns(unmapped, key, name) or _guess_ignoring_case(unmapped, key, name)
        if matches:
            found[key] = matches
            notes += _alias_notes(matches[0])
    if formula is not None:
        found["rewards"] = list(formula.columns)
    used = {column for names in found.values() for column in names}
    free = [column for column in unmapped if column not in used and "times" not in options.key_map]
    times = find_time_column(free, is_time, is_date)
    found |= {} if times is None else {"times": [times]}
    unordered = [column for column in free if times is None and (is_named_like_time(column) or is_date(column))]
    _check_complete(found, columns, name, options.needs_no_ends)
    if formula is not None:
        notes += cost_notes(list(filter(formula.increases_with, formula.columns)), "subtract it in --reward")
    elif "rewards" in found:
        notes += cost_notes(found["rewards"][:1], COST_REMEDY)
    unused = [column for column in options.one_hot if column not in found["observations"]]
    if unused:
        raise AspcError(
            f"{name}: --one-hot names {unused[0]!r}, which is not an observation. Add it with --map observations=NAMES."
        )
    found = _align_next_observations(found, "next_observations" in key_map, name)
    unused = [column for column in columns if column not in unordered]
    return found, [*notes, *unchecked_order_note(unordered), *_unused_column_notes(unused, found)]


def _mapped_columns(columns: Sequence[str], names: str | Sequence[str], name: str) -> list[str]:
    found: dict[str, None] = {}
    for pattern in _split_names(names, columns) if isinstance(names, str) else names:
        matches = _match_pattern(columns, pattern)
        if not matches:
            raise _not_found(pattern, columns, name)
        found |= dict.fromkeys(matches)
    return list(found)


def _split_names(text: str, columns: Sequence[str]) -> list[str]:
    """Split text at commas, except those inside the name of a column."""
    parts, names = text.split(","), list[str]()
    longest = 1 + max((column.count(",") for column in columns), default=0)
    while parts:
        whole = (n for n in range(longest, 1, -1) if ",".join(parts[:n]).strip() in columns)
        count = next(whole, 1)
        names.append(",".join(parts[:count]).strip())
        parts = parts[count:]
    return names


def _match_pattern(columns: Sequence[str], pattern: str) -> list[str]:
    """Return the column with exactly this name, or otherwise all columns that match the pattern.

    Numbered columns (obs_0, obs_1, …) are sorted by number; others keep their order in the file.
    """
    if pattern in columns:  # a name with brackets looks like a pattern
        return [pattern]
    matches = [column for column in columns if fnmatch.fnmatchcase(column, pattern)]
    prefix_length = len(pattern.partition("*")[0])
    is_numbered = all(column[prefix_length:].isdigit() for column in matches)
    return sorted(matches, key=natural_sort_key) if is_numbered else matches


def _guess_columns(columns: Sequence[str], key: str, name: str) -> list[str]:
    """Guess the columns of an array from their names.

    An alias takes precedence over a pattern, because `action_logprob` describes the `action`. Numbered columns
    (action_0, action_1) take precedence over both, because they are always the components of the vector.
    """
    alias = next((alias for alias in ALIASES[key] if alias in columns), None)
    for pattern in COMPONENT_PATTERNS.get(key, ()):
        components = _match_pattern([column for column in columns if not NOT_COMPONENTS.fullmatch(column)], pattern)
        stem = pattern.removesuffix("_*")
        if alias is None and components:
            return components
        numbered = [column for column in components if column.removeprefix(f"{stem}_").isdigit()]
        if len(numbered) > 1:
            return sorted(numbered, key=natural_sort_key)
        if len(components) > 1 and alias != stem:  # next to obs_temp, `state` can be an operating mode
            raise AspcError(
                f"{name}: {key!r} is ambiguous: {alias!r}, or {list_names(components)}. Choose with --map {key}=NAMES "
                f"(in Python: key_map={{{key!r}: [NAMES]}})."
            )
    return [] if alias is None else [alias]


def _guess_ignoring_case(columns: Sequence[str], key: str, name: str) -> list[str]:
    """Match names regardless of case and unit (`Reward`, `reward [EUR]`), except where this makes two names equal."""
    plain = {column: strip_unit(column).lower() for column in columns}
    counts = Counter(plain.values())
    by_lower = {lower: column for column, lower in plain.items() if counts[lower] == 1}
    return [by_lower[column] for column in _guess_columns(list(by_lower), key, name)]


def _quantity(column: str) -> str:
    """Return the quantity in a column's name: temp for temp, obs_temp, next_temp and next_obs_temp."""
    return re.sub("(next_)?(obs_|observation_)?", "", column, count=1, flags=re.IGNORECASE)


def _align_next_observations(found: dict[str, list[str]], is_mapped: bool, name: str) -> dict[str, list[str]]:
    """Order the columns of the next observation like those of the observation.

    Raises:
        AspcError: Neither the names nor a key map determines the order.
    """
    now, then = found["observations"], found.get("next_observations", [])
    by_quantity = {_quantity(column): column for column in then}
    if len(now) == len(then) == len(by_quantity) and {_quantity(column) for column in now} == by_quantity.keys():
        found["next_observations"] = [by_quantity[_quantity(column)] for column in now]
    elif len(then) > 1 and len(then) == len(now) and not (is_mapped or all(word.isdigit() for word in by_quantity)):
        raise AspcError(
            f"{name}: cannot match the next-observation columns {list_names(then)} to the observation columns "
            f"{list_names(now)}. Rename the former to next_obs_* with matching suffixes, or list both in the same "
            "order with --map."
        )
    return found


def _unused_column_notes(columns: Sequence[str], found: Mapping[str, list[str]]) -> list[str]:
    """Return a note on unused columns, to reveal misspelled names. A column without a name is an index."""
    used = {column for names in found.values() for column in names}
    unused = [column for column in columns if column and column not in used]
    if not unused:
        return []
    hint = "to use one, rename it to obs_* or action_*, or select it with --map."
    return [f"unused columns: {list_names(unused)}; {hint}"]
