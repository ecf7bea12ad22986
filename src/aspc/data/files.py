"""Reading and writing datasets as files: HDF5 (D4RL's layout or a key map), NPZ, Parquet, Arrow, CSV, folders.

Nothing is unpickled, sizes that a header claims are checked before memory is taken, and formats that C libraries
parse (HDF5, Parquet, Arrow) are read in a child process, so that a damaged file ends in a sentence, not a crash.
"""

from __future__ import annotations

import csv
import fnmatch
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.data import cache, d4rl
from aspc.data.dataset import Dataset, checked_flags
from aspc.errors import AspcError, MissingExtra

Arrays = dict[str, Any]  # NumPy arrays by name
KeyMap = Mapping[str, str | Sequence[str]]  # which stored names hold which array: `checked_map` makes sure

FACTS_KEY = "aspc"  # attribute of HDF5 files that we write: environment, bounds and scores, as JSON
FACTS_PREFIX = "aspc_"  # of the arrays that say the same in an NPZ file: numbers, or text as NumPy's unicode
MOST_FACTS = 1_000_000  # bytes of each of these
NUMBERS = ("action_low", "action_high", "ref_min", "ref_max")
NAMES = ("observation_names", "action_names")
STORED_FACTS = {f"{FACTS_PREFIX}{key}": key for key in ("env", *NUMBERS, *NAMES)}


class Extracted(NamedTuple):
    """What a file holds."""

    arrays: Arrays
    notes: list[str]
    facts: dict[str, Any]  # env, NUMBERS and NAMES, where the file says them


# Names that other libraries give to the same things; the first is D4RL's, and what we write.
ALIASES: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "terminals": ("terminals", "terminal", "terminated", "terminations", "dones", "done"),
    "timeouts": ("timeouts", "timeout", "truncated", "truncations", "truncateds"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "new_obs", "next_states", "next_state"),
    "episodes": ("episodes", "episode", "episode_id", "episode_ids", "eps_id"),
}
# Patterns by which the columns of a table are the parts of a vector.
PARTS: dict[str, tuple[str, ...]] = {
    "observations": ("obs_*", "observation_*"),
    "actions": ("action_*", "act_*"),
    "next_observations": ("next_obs_*", "next_observation_*"),
}
# Columns of these patterns that loggers write beside a vector, and that are no part of it.
NO_PART = re.compile(r"(next_)?(obs|observation)_id|(action|act)_(id|logp|log_?probs?|probs?)")
HDF5_SUFFIXES = (".hdf5", ".h5")
TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")
CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
SUFFIXES = (*HDF5_SUFFIXES, ".npz", *TABLE_SUFFIXES, *CSV_SUFFIXES)
SEPARATORS = ",;\t"  # of a CSV's cells
TRUTHS = ("true", "false")
FLAG_WORDS = {**dict.fromkeys(("true", "t", "yes", "y"), 1.0), **dict.fromkeys(("false", "f", "no", "n"), 0.0)}
OR_DROP_LINE = "or drop that line and give the rows after it another episode"
UNNEEDED_ARRAYS = ("infos", "infos/*", "metadata/*", "qpos", "qvel")  # of D4RL's and OGBench's files
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
LARGEST = float(np.finfo(np.float32).max)

MOST_COMPRESSED = 1100  # deflate's best ratio is 1032 : 1
SLOWEST_READ = 10e6  # bytes a second: a child that takes longer than a file of this rate is given up
PATIENCE = 60.0  # seconds that any file may take


# ── sizes that a header claims ──────────────────────────────────────────────────────────────────────────────────────


def available_memory() -> int:
    """Bytes of host memory that can still be taken."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_too_large(claimed: int, name: str) -> None:
    """An error where a file claims more bytes than there is memory for."""
    if claimed > available_memory():
        raise AspcError(
            f"{name}: it claims {claimed / 1e9:,.1f} GB of arrays, more than this machine's free memory; "
            "if that is right, turn it into a packed folder with `aspc data convert` and stream it."
        )


# ── which stored name is which array ────────────────────────────────────────────────────────────────────────────────


def checked_map(key_map: Mapping[str, Any]) -> KeyMap:
    """A key map with our keys, where it may say them in the singular, as the columns of tables are called; its values
    are text or lists of text."""
    plural = {name: key for key in ALIASES for name in (key, key.removesuffix("s"))}
    unknown = [key for key in key_map if key not in plural]
    if unknown:
        raise AspcError(f"The key map names {unknown[0]!r}; it can name {', '.join(ALIASES)}.")
    twice = [key for key, count in Counter(plural[key] for key in key_map).items() if count > 1]
    if twice:
        raise AspcError(f"The key map names {twice[0]!r} twice, once in the singular; leave one of them out.")
    return {plural[key]: _checked_names(key, names) for key, names in key_map.items()}


def _checked_names(key: str, names: Any) -> str | list[str]:
    if isinstance(names, str):
        return names
    listed = list(names) if isinstance(names, Iterable) else []
    if not listed or not all(isinstance(name, str) for name in listed):
        raise AspcError(f"The key map gives {names!r} for {key!r}; give a name or a list of names.")
    return listed


def resolve_keys(
    stored: Sequence[str], key_map: KeyMap, name: str, one_episode: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Which stored name holds each array, by the key map first and then by the known names that it leaves; and notes.

    A file that is `one_episode` need not say where that ends.
    """
    found = {key: _mapped_array(stored, key, names, name) for key, names in key_map.items()}
    left = set(stored) - set(found.values())
    notes: list[str] = []
    for key, aliases in ALIASES.items():
        match = None if key in found else next((alias for alias in aliases if alias in left), None)
        if match is not None:
            found[key] = match
            notes += _notes_on(match)
    _need_all(found, stored, name, one_episode)
    return found, notes


def _mapped_array(stored: Sequence[str], key: str, names: str | Sequence[str], name: str) -> str:
    """The one stored array that a key map says."""
    listed = [names] if isinstance(names, str) else names
    if len(listed) > 1:
        raise AspcError(f"{name}: {key!r} is one array, but the key map says {_listed(listed)}; name one.")
    if listed[0] not in stored:
        raise AspcError(f"{name}: the key map says {listed[0]!r}, but there are {_listed(stored)}.")
    return listed[0]


def _notes_on(name: str) -> list[str]:
    """What to say of a stored name that was taken for an array without being asked to."""
    if name.lower() not in ("dones", "done"):
        return []
    return [f"{name!r} was read as terminals: if it also marks time limits, map those to timeouts."]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:20])) or "none"
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _need_all(found: Mapping[str, Any], stored: Sequence[str], name: str, one_episode: bool) -> None:
    for key in ("observations", "actions", "rewards"):
        if key not in found:
            raise AspcError(
                f"{name}: {key!r} is missing; there are {_listed(stored)} ({_mapped(key)} says which it is)."
            )
    if not one_episode and not any(key in found for key in ("terminals", "timeouts", "episodes")):
        raise AspcError(
            f"{name}: nothing says where episodes end; add a column 'episode' that numbers the stretches, or flags "
            f"'terminal' or 'timeout', or say which of {_listed(stored)} it is with {_mapped('episode')}."
        )


def _mapped(key: str) -> str:
    """How the user says which stored name is which array."""
    return f"--map {key}=NAME, in Python key_map={{{key!r}: 'NAME'}}"


def _extracted(arrays: Arrays, notes: Sequence[str], facts: dict[str, Any], name: str) -> Extracted:
    """What a reader found, with whole flags."""
    whole, more = complete_flags(arrays, len(arrays["observations"]), name)
    return Extracted(whole, [*notes, *more], facts)


def _notes_on_order(numbers: np.ndarray) -> list[str]:
    """A warning where a number of an episode comes back after another has begun."""
    stretches = np.concatenate([numbers[:1], numbers[1:][numbers[1:] != numbers[:-1]]])
    if len(np.unique(stretches)) == len(stretches):
        return []
    return [
        "episode numbers come back after they had changed, and each time counts as an episode of its own: "
        "sort the rows by episode and time, or give each stretch a number of its own."
    ]


def complete_flags(arrays: Arrays, length: int, name: str) -> tuple[Arrays, list[str]]:
    """Terminals where none were logged, and timeouts from episode numbers; and a note where these are out of order."""
    notes: list[str] = []
    if "terminals" not in arrays:
        arrays["terminals"] = np.zeros(length, dtype=bool)
    numbers = arrays.pop("episodes", None)
    if numbers is not None:
        if numbers.shape != (length,):
            raise AspcError(f"{name}: episode numbers must be one a row, but their shape is {numbers.shape}.")
        notes = _notes_on_order(numbers)
        ends = np.append(numbers[1:] != numbers[:-1], True) if length else np.zeros(0, dtype=bool)
        if "timeouts" in arrays:
            ends = ends | checked_flags("timeouts", arrays["timeouts"], name)
        terminals = checked_flags("terminals", arrays["terminals"], name)
        if len(terminals) == len(ends):
            arrays["timeouts"] = ends & ~terminals
    return arrays, notes


# ── readers, one a format: path and key map in, arrays and notes out ────────────────────────────────────────────────


def _read_hdf5(path: Path, key_map: KeyMap, one_episode: bool) -> Extracted:
    import h5py

    with h5py.File(path, "r") as file:
        stored: list[str] = []
        file.visititems(lambda key, item: stored.append(key) if isinstance(item, h5py.Dataset) else None)
        found, notes = resolve_keys(stored, key_map, path.name, one_episode)
        total = 0
        for source in found.values():
            total += check_hdf5_dataset(file[source], f"{path.name}: {source!r}")
        refuse_too_large(total, path.name)
        arrays = {key: np.asarray(file[source][()]) for key, source in found.items()}
        notes += notes_on_unused_arrays({key: file[key].shape or () for key in stored}, found)
        facts = read_facts(file.attrs.get(FACTS_KEY))
    return _extracted(arrays, notes, facts, path.name)


def read_facts(text: Any) -> dict[str, Any]:
    """The facts that a file states, so far as they have the right form."""
    try:
        return checked_facts(json.loads(text))
    except (TypeError, ValueError):
        return {}


def checked_facts(stated: Any) -> dict[str, Any]:
    """Those of stated facts that we know, if they have the right form; else none."""
    try:
        numbers = {
            key: [float(x) for x in stated[key]] if key.startswith("action") else float(stated[key])
            for key in NUMBERS
            if stated.get(key) is not None
        }
        names = {key: [str(name) for name in stated[key]] for key in NAMES if stated.get(key)}
        env = stated.get("env")
    except (TypeError, ValueError, AttributeError):
        return {}
    # "module:Name" would have Gymnasium import a module that a file names: never.
    safe = isinstance(env, str) and ":" not in env.removeprefix("minari:")
    return {**numbers, **names, **({"env": env} if safe else {})}


def check_hdf5_dataset(dataset: Any, name: str) -> int:
    """The bytes of a dataset, once it is known to be numbers that the file really holds."""
    if dataset.dtype.kind not in "fiub":
        raise AspcError(f"{name} must hold numbers, not {dataset.dtype}.")
    if dataset.shape is None or len(dataset.shape) not in (1, 2):
        raise AspcError(f"{name} must have one or two axes, but its shape is {dataset.shape}.")
    if dataset.external or dataset.is_virtual:
        raise AspcError(f"{name} lies in another file; copy the data into this one.")
    claimed = int(np.prod(dataset.shape, dtype=object)) * dataset.dtype.itemsize
    held = int(dataset.id.get_storage_size())
    if claimed > MOST_COMPRESSED * held + 4096:
        raise AspcError(f"{name} claims {dataset.shape[0]:,} rows, but the file holds {held:,} bytes of them.")
    return claimed


def _read_npz(path: Path, key_map: KeyMap, one_episode: bool) -> Extracted:
    def choose(stored: list[str]) -> tuple[dict[str, str], list[str]]:
        found, notes = resolve_keys(stored, key_map, path.name, one_episode)
        notes += notes_on_unused_arrays(_npz_shapes(path), found)
        return {**found, **{key: key for key in STORED_FACTS if key in stored}}, notes

    arrays, notes = _npz_members(path, choose)
    stated = {STORED_FACTS[key]: arrays.pop(key) for key in STORED_FACTS if key in arrays}
    for key, array in stated.items():
        if array.nbytes > MOST_FACTS:
            raise AspcError(f"{path.name}: {key!r} has {array.nbytes:,} bytes, which is no such fact; take it out.")
    facts = checked_facts({key: array.tolist() for key, array in stated.items()})
    return _extracted(arrays, notes, facts, path.name)


def _npz_members(
    path: Path, choose: Callable[[list[str]], tuple[dict[str, str], list[str]]]
) -> tuple[Arrays, list[str]]:
    """The arrays that `choose` picks of the stored names, once their headers are known to be honest."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        found, notes = choose(list(members))
        total = 0
        for source in found.values():
            with archive.open(members[source]) as file:
                kinds = "fiubU" if source in STORED_FACTS else "fiub"
                total += _check_npy_header(file, members[source].file_size, f"{path.name}: {source!r}", kinds)
        refuse_too_large(total, path.name)
    with np.load(path, allow_pickle=False) as data:
        return {key: data[source] for key, source in found.items()}, notes


def read_npz(path: Path, *, required: Sequence[str], optional: Sequence[str] = ()) -> Arrays:
    """Named arrays of an NPZ file, with the same checks as a dataset's."""

    def choose(stored: list[str]) -> tuple[dict[str, str], list[str]]:
        missing = [key for key in required if key not in stored]
        if missing:
            raise AspcError(f"{path.name}: {missing[0]!r} is missing; there are {_listed(stored)}.")
        return {key: key for key in (*required, *optional) if key in stored}, []

    return _one_sentence(path, lambda: Extracted(*_npz_members(path, choose), {})).arrays


def _npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    return shape, dtype


def _npz_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes that the headers of an NPZ file claim; what has no sound header is no array."""
    shapes = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            try:
                with archive.open(info) as file:
                    shapes[info.filename.removesuffix(".npy")] = _npy_header(file)[0]
            except Exception:  # a boundary: a damaged array that nobody needs does no harm
                continue
    return shapes


def _check_npy_header(file: Any, size: int, name: str, kinds: str) -> int:
    """The bytes of an array, once its header is known to claim values of these kinds that the file really holds."""
    shape, dtype = _npy_header(file)
    if dtype.hasobject:
        raise AspcError(
            f"{name} holds pickled Python objects, which are never loaded; save plain number arrays instead."
        )
    if dtype.kind not in kinds:
        raise AspcError(f"{name} must hold numbers, not {dtype}.")
    claimed = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if claimed > size:
        raise AspcError(f"{name} claims shape {shape}, but the file holds {size:,} bytes of it.")
    return claimed


def natural(text: str) -> list[Any]:
    """A sort key by which obs_2 comes before obs_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def _matching(columns: Sequence[str], pattern: str) -> list[str]:
    """The column of that name, or else those of a pattern: numbered ones (obs_0, obs_1, …) by their numbers, others as
    they stand in the file."""
    if pattern in columns:  # also one with brackets in its name, which are a pattern's too
        return [pattern]
    matches = [column for column in columns if fnmatch.fnmatchcase(column, pattern)]
    star = len(pattern.partition("*")[0])
    return sorted(matches, key=natural) if all(column[star:].isdigit() for column in matches) else matches


def _parted(text: str, columns: Sequence[str]) -> list[str]:
    """Names and patterns with commas between; a column with commas in its own name stays whole."""
    parts, names = text.split(","), list[str]()
    most = 1 + max((column.count(",") for column in columns), default=0)
    while parts:
        whole = (n for n in range(most, 1, -1) if ",".join(parts[:n]).strip() in columns)
        count = next(whole, 1)
        names.append(",".join(parts[:count]).strip())
        parts = parts[count:]
    return names


def _mapped_columns(columns: Sequence[str], names: str | Sequence[str], name: str) -> list[str]:
    """The columns that a key map says, each once."""
    found: dict[str, None] = {}
    for pattern in _parted(names, columns) if isinstance(names, str) else names:
        matches = _matching(columns, pattern)
        if not matches:
            raise AspcError(f"{name}: the key map says {pattern!r}, but there are {_listed(columns)}.")
        found |= dict.fromkeys(matches)
    return list(found)


def _plain(column: str) -> str:
    """What a column of an observation is of: temp for temp, obs_temp, next_temp and next_obs_temp."""
    return re.sub("(next_)?(obs_|observation_)?", "", column, count=1, flags=re.IGNORECASE)


def _in_step(found: dict[str, list[str]], given: bool, name: str) -> dict[str, list[str]]:
    """The columns with those of the next observation in the order of the observation's. Names that do not say which
    belong together are in order only where they were `given` so, or are counted."""
    now, then = found["observations"], found.get("next_observations", [])
    after = {_plain(column): column for column in then}
    if len(now) == len(then) == len(after) and {_plain(column) for column in now} == after.keys():
        found["next_observations"] = [after[_plain(column)] for column in now]
    elif len(then) > 1 and len(then) == len(now) and not (given or all(word.isdigit() for word in after)):
        raise AspcError(
            f"{name}: the names {_listed(then)} do not say which of {_listed(now)} comes next in each; call them "
            f"next_obs_* as these are called, or give both in order with --map."
        )
    return found


def resolve_columns(
    columns: Sequence[str], key_map: KeyMap, name: str, one_episode: bool = False
) -> tuple[dict[str, list[str]], list[str]]:
    """Which columns make each array, by the key map first and then by known names among the others; and notes.

    A key map's value is a list of names and patterns, or a text with commas between them. A file that is
    `one_episode` need not say where that ends.
    """
    twice = [column for column, count in Counter(columns).items() if count > 1]
    if twice:
        raise AspcError(f"{name}: the column {twice[0]!r} is there twice; give each column a name of its own.")
    found = {key: _mapped_columns(columns, names, name) for key, names in key_map.items()}
    taken = {column for names in found.values() for column in names}
    left = [column for column in columns if column not in taken]
    notes: list[str] = []
    for key in ALIASES:
        matches = _guessed_columns(left, key, name) or _in_any_case(left, key, name) if key not in key_map else []
        if matches:
            found[key] = matches
            notes += _notes_on(matches[0])
    _need_all(found, columns, name, one_episode)
    found = _in_step(found, "next_observations" in key_map, name)
    return found, [*notes, *_notes_on_unused(columns, found)]


def _guessed_columns(columns: Sequence[str], key: str, name: str) -> list[str]:
    """The columns that make an array by their names. A known name comes before a pattern, for `action_logprob` says
    something of the `action`; but parts that are counted (action_0, action_1) are the vector, whatever else there is.
    """
    exact = next((alias for alias in ALIASES[key] if alias in columns), None)
    for pattern in PARTS.get(key, ()):
        parts = _matching([column for column in columns if not NO_PART.fullmatch(column)], pattern)
        stem = pattern.removesuffix("_*")
        if exact is None and parts:
            return parts
        counted = [column for column in parts if column.removeprefix(f"{stem}_").isdigit()]
        if len(counted) > 1:
            return sorted(counted, key=natural)
        if len(parts) > 1 and exact != stem:  # `state` beside obs_temp and obs_flow may be either's name for a mode
            raise AspcError(
                f"{name}: {key!r} may be {exact!r}, or {_listed(parts)}; say which with --map {key}=NAMES, "
                f"in Python key_map={{{key!r}: [NAMES]}}."
            )
    return [] if exact is None else [exact]


def _in_any_case(columns: Sequence[str], key: str, name: str) -> list[str]:
    """The same by `Reward` and `OBS_0`. What differs in nothing but capitals from another is not guessed about."""
    alike = Counter(column.lower() for column in columns)
    by_lower = {column.lower(): column for column in columns if alike[column.lower()] == 1}
    return [by_lower[column] for column in _guessed_columns(list(by_lower), key, name)]


def _notes_on_unused(columns: Sequence[str], found: Mapping[str, list[str]]) -> list[str]:
    """Which columns are left out: a misspelt name is seen nowhere else. Those without a name are an index."""
    used = {column for names in found.values() for column in names}
    unused = [column for column in columns if column and column not in used]
    if not unused:
        return []
    return [
        f"columns that are not used: {_listed(unused)}; if one should be, call it obs_* or action_*, "
        "or name it with --map."
    ]


def notes_on_unused_arrays(shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, str]) -> list[str]:
    """Which stored arrays with an entry for each row are left out, as `_notes_on_unused` says of columns."""
    rows = shapes.get(found["observations"], ())[:1]
    unused = [
        stored
        for stored, shape in shapes.items()
        if rows
        and shape[:1] == rows
        and stored not in (*found.values(), *STORED_FACTS)
        and not any(fnmatch.fnmatchcase(stored, pattern) for pattern in UNNEEDED_ARRAYS)
    ]
    return [f"arrays that are not used: {_listed(unused)}; if one should be, name it with --map."] if unused else []


def _names(found: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Which number of an observation and of an action is which column."""
    return {"observation_names": found["observations"], "action_names": found["actions"]}


def _table_arrays(found: Mapping[str, list[str]], column: Callable[[str], np.ndarray], name: str) -> Arrays:
    """Columns stacked into arrays: vectors as matrices, the rest as they are."""
    arrays = {}
    for key, names in found.items():
        parts = [column(source) for source in names]
        truths = [source for source, part in zip(names, parts, strict=True) if part.dtype == bool]
        if key == "actions" and truths:  # beside floats they would pass for numbers
            raise AspcError(
                f"{name}: column {truths[0]!r} holds truth values, so discrete actions; this library is for continuous "
                "ones (leave that column out with --map)."
            )
        is_vector = key in ("observations", "actions", "next_observations")
        arrays[key] = np.stack(parts, axis=1) if is_vector else parts[0]
        if not is_vector and len(parts) > 1:
            raise AspcError(f"{name}: {key!r} is one column, but {len(parts)} match: {', '.join(names)}.")
    return arrays


def _no_numbers(name: str, column: str, held: str) -> AspcError:
    return AspcError(
        f"{name}: column {column!r} holds {held}, not numbers; code it as numbers, or name other columns with --map."
    )


def _read_arrow(path: Path, key_map: KeyMap, one_episode: bool) -> Extracted:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra(f"Reading {path.name}", "tables") from error
    if path.suffix.lower() == ".parquet":
        with pq.ParquetFile(path) as file:
            found, notes = resolve_columns(file.schema_arrow.names, key_map, path.name, one_episode)
            wanted = [column for names in found.values() for column in names]
            refuse_too_large(file.metadata.num_rows * len(wanted) * 16, path.name)
            table = file.read(columns=wanted, use_threads=False)
    else:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
            found, notes = resolve_columns(table.column_names, key_map, path.name, one_episode)

    parsers = {column: parse for key, parse in PARSERS.items() for column in found.get(key, ())}

    def column(source: str) -> np.ndarray:
        values = table.column(source)
        if values.null_count:
            cells, them, rows = ("cell", "it", "its row") if values.null_count == 1 else ("cells", "them", "their rows")
            raise AspcError(
                f"{path.name}: column {source!r} has {values.null_count:,} empty {cells}; fill {them}, or drop {rows} "
                "and give the rows after another episode."
            )
        is_text = "string" in str(values.type)
        if is_text and source in parsers:
            return _parsed(values.to_pylist(), parsers[source], f"{path.name}: column {source!r}")
        if not (
            pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)
        ):
            raise _no_numbers(path.name, source, "text" if is_text else str(values.type))
        return values.to_numpy()

    arrays = _table_arrays(found, column, path.name)
    return _extracted(arrays, notes, _names(found), path.name)


def _flag(text: str) -> float:
    """A number or a truth value, as spreadsheets and people write it."""
    word = text.strip().strip('"').lower()
    return FLAG_WORDS[word] if word in FLAG_WORDS else float(word)


def _episode_number(text: str) -> float:
    """A number, or a number for a text that no other text and no whole number has."""
    word = text.strip().strip('"')
    try:
        return float(word)
    except ValueError:
        if not word:
            raise
        return 0.5 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())


Parsers = dict[int | str, Callable[[str], float]]  # by column
PARSERS: dict[str, Callable[[str], float]] = {"terminals": _flag, "timeouts": _flag, "episodes": _episode_number}


def _parsed(cells: Sequence[str], parse: Callable[[str], float], name: str) -> np.ndarray:
    """The cells of a column of text that can be read as flags or as names of episodes."""
    for i, cell in enumerate(cells):
        fault = _fault(cell, parse)
        if fault:
            raise AspcError(f"{name}, row {i + 1:,} {fault}.")
    return np.array([parse(cell) for cell in cells])


class _Layout(NamedTuple):
    """How the lines of a CSV are to be read."""

    separator: str
    columns: list[str]
    wanted: list[int]  # columns that are used, in order
    parsers: Parsers  # of those of them whose cells may be other than plain numbers


def _split_header(line: str) -> tuple[str, list[str]]:
    """The separator that parts a CSV's first line into the most names, and these names."""
    parted = {separator: next(csv.reader([line], delimiter=separator), []) for separator in SEPARATORS}
    separator = max(parted, key=lambda separator: len(parted[separator]))
    return separator, [column.strip() for column in parted[separator]]


def _read_csv(path: Path, key_map: KeyMap, one_episode: bool) -> Extracted:
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            return _read_lines(file, path.name, key_map, one_episode)
    except UnicodeDecodeError as error:
        raise _not_utf8(path.name) from error


def _not_utf8(name: str) -> AspcError:
    return AspcError(f"{name}: its text is not in UTF-8; save it as UTF-8 and load it again.")


def _read_lines(file: Any, name: str, key_map: KeyMap, one_episode: bool) -> Extracted:
    """The table of an open CSV."""
    header = file.readline()
    if "\0" in header:  # UTF-16 of which the first two bytes do not say so
        raise _not_utf8(name)
    separator, columns = _split_header(header)
    found, notes = resolve_columns(columns, key_map, name, one_episode)
    if not any(line.strip() for line in file):
        raise AspcError(f"{name}: no row follows the header, so the dataset is empty.")
    wanted = sorted({columns.index(source) for names in found.values() for source in names})
    parsers: Parsers = {columns.index(n): parse for key, parse in PARSERS.items() for n in found.get(key, ())}
    file.seek(0)
    table, truths = _read_cells(file, _Layout(separator, columns, wanted, parsers), name)

    def column(source: str) -> np.ndarray:
        index = columns.index(source)
        return table[:, wanted.index(index)].astype(bool if index in truths else np.float64, copy=False)

    arrays = _table_arrays(found, column, name)
    return _extracted(arrays, notes, _names(found), name)


def _read_cells(file: Any, layout: _Layout, name: str) -> tuple[np.ndarray, set[int]]:
    """The columns that are used, and which of them hold truth values; only where one holds what is no number, the file
    is read again to find out what."""
    try:
        table = _parse_cells(file, layout)
    except ValueError:
        file.seek(0)
        truths = _truth_columns(file, layout, name)
        file.seek(0)
        if truths:
            parsers = layout.parsers | dict.fromkeys(truths, _flag)
            return _read_cells(file, layout._replace(parsers=parsers), name)[0], truths
        _refuse_bad_cell(file, layout, name)
        raise
    flags = table[:, [i for i, column in enumerate(layout.wanted) if layout.parsers.get(column) is _flag]]
    in_range = table.min() >= -LARGEST and table.max() <= LARGEST  # no NaN is
    if not in_range or not ((flags == 0) | (flags == 1)).all():
        file.seek(0)
        _refuse_bad_cell(file, layout, name)
    file.seek(0)
    found = sum(block.count(layout.separator) for block in iter(partial(file.read, 1 << 20), ""))
    if found != (len(layout.columns) - 1) * (len(table) + 1):  # more cells, or fewer, or quoted separators
        file.seek(0)
        _refuse_more_cells(file, layout, name)
    return table, set()


def _parse_cells(file: Any, layout: _Layout) -> np.ndarray:
    """All cells as numbers. A parser costs as much as all the rest, so it is asked only where a cell is no number."""
    parse = partial(
        np.loadtxt,
        delimiter=layout.separator,
        skiprows=1,
        usecols=layout.wanted,
        ndmin=2,
        dtype=np.float64,
        quotechar='"',
        comments=None,
    )
    try:
        return parse(file)
    except ValueError:
        file.seek(0)
        return parse(file, converters=layout.parsers)


def _truth_columns(file: Iterable[str], layout: _Layout, name: str) -> set[int]:
    """The columns that hold truth values and nothing else; an error for one that holds text and no number at all."""
    rows = csv.reader(file, delimiter=layout.separator)
    next(rows)
    undecided = [i for i in layout.wanted if i not in layout.parsers]
    kinds: dict[int, set[str]] = {i: set() for i in undecided}
    for row in rows:
        for i in undecided:
            if i < len(row) and row[i].strip():
                kinds[i].add(_kind(row[i].strip()))
        undecided = [i for i in undecided if "number" not in kinds[i]]
        if not undecided:
            return set()
    text = [i for i in undecided if "text" in kinds[i]]
    if text:
        raise _no_numbers(name, layout.columns[text[0]], "text")
    return {i for i in undecided if kinds[i]}


def _kind(cell: str) -> str:
    if cell.lower() in TRUTHS:
        return "truth"
    try:
        float(cell)
    except ValueError:
        return "number" if DECIMAL_COMMA.fullmatch(cell) else "text"
    return "number"


def _refuse_more_cells(file: Iterable[str], layout: _Layout, name: str) -> None:
    """An error for the first line with more cells than the header; empty ones at its end are none."""
    rows = csv.reader(file, delimiter=layout.separator)
    for row in rows:
        if any(cell.strip() for cell in row[len(layout.columns) :]):
            decimals = " (write decimals with a point, not with a comma)" if layout.separator == "," else ""
            raise _wrong_count(f"{name}, line {rows.line_num}", row, layout, decimals)


def _wrong_count(at: str, row: list[str], layout: _Layout, hint: str = "") -> AspcError:
    return AspcError(
        f"{at}: it has {len(row)} cells, but the header {len(layout.columns)}; mend it, {OR_DROP_LINE}{hint}."
    )


def _refuse_bad_cell(file: Iterable[str], layout: _Layout, name: str) -> None:
    """An error that names the first cell of a CSV that cannot be used; none where no such cell is found."""
    rows = csv.reader(file, delimiter=layout.separator)
    next(rows)
    for row in rows:
        at = f"{name}, line {rows.line_num}"
        if row and len(row) <= layout.wanted[-1]:
            raise _wrong_count(at, row, layout)
        for i in layout.wanted if row else ():
            fault = _fault(row[i], layout.parsers.get(i, float))
            if fault:
                raise AspcError(f"{at}: the cell of column {layout.columns[i]!r} {fault}.")


def _fault(cell: str, parse: Callable[[str], float]) -> str:
    """What is wrong with a cell and what to do, or nothing."""
    if not cell.strip():
        return f"is empty; fill it, {OR_DROP_LINE}"
    held = f"holds {cell[:40]!r}"
    is_flag = parse is _flag
    try:
        value = parse(cell)
    except ValueError:
        if DECIMAL_COMMA.fullmatch(cell.strip()):
            return f"{held}, not a number; write decimals with a point, not with a comma"
        return f"{held}, not a {'flag' if is_flag else 'number'}; mend it, {OR_DROP_LINE}"
    if not abs(value) <= LARGEST:
        return f"{held}, which is NaN, infinite or too large; mend it, {OR_DROP_LINE}"
    return f"{held}, but must be 0 or 1; mend it, {OR_DROP_LINE}" if is_flag and value not in (0, 1) else ""


def extract(path: Path, key_map: KeyMap, one_episode: bool = False) -> Extracted:
    """Read one file in this process; whatever a format's library raises becomes one sentence."""
    name = path.name.lower()
    readers = {HDF5_SUFFIXES: _read_hdf5, (".npz",): _read_npz, TABLE_SUFFIXES: _read_arrow, CSV_SUFFIXES: _read_csv}
    reader = next((read for suffixes, read in readers.items() if name.endswith(suffixes)), None)
    if reader is None:
        raise AspcError(
            f"{path}: files of this kind are not read; known are {', '.join(SUFFIXES)} and folders of them."
        )
    return _one_sentence(path, lambda: reader(path, key_map, one_episode))


def _one_sentence(path: Path, read: Callable[[], Extracted]) -> Extracted:
    """Call a reader; whatever a damaged file makes its library raise becomes an `AspcError`."""
    try:
        if path.stat().st_size == 0:
            raise AspcError(f"{path}: the file is empty.")
        return read()
    except AspcError:
        raise
    except Exception as error:  # a boundary: each library has errors of its own, and of Python's
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise AspcError(f"{path}: the file is damaged, cut short or not what its name says ({detail}).") from error


class ChildReader:
    """`extract` in another process: a crash or a hang inside a C library becomes the same clean error.

    The process starts with the first file and reads them all, since starting one takes longer than most episodes.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of the arrays on their way

    def __enter__(self) -> ChildReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._folder is not None:
            self._folder.cleanup()

    def extract(self, path: Path, key_map: KeyMap, one_episode: bool = False) -> Extracted:
        """Read one file."""
        request = {"path": os.fspath(path), "how": {"key_map": key_map, "one_episode": one_episode}}
        late = threading.Event()
        try:
            patience = self._patience + path.stat().st_size / SLOWEST_READ
            child, folder = self._started()
            alarm = threading.Timer(patience, self._end_late, [child, late])
            alarm.start()
            try:
                answer = self._answer(child, json.dumps(request))
            finally:
                alarm.cancel()
        except OSError as error:
            raise AspcError(f"{path} could not be read: {error.strerror or error}.") from error
        if late.is_set():
            raise AspcError(f"{path}: reading it did not end; the file is probably damaged.")
        if not answer:
            raise AspcError(f"{path}: the file is damaged (its reader stopped with status {child.wait()}).")
        report = json.loads(answer)
        if "error" in report:
            raise AspcError(report["error"])
        arrays = {key: np.load(folder / f"{key}.npy", allow_pickle=False) for key in report["keys"]}
        return Extracted(arrays, report["notes"], report["facts"])

    def _started(self) -> tuple[subprocess.Popen[str], Path]:
        """The process, and the folder where it leaves arrays."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="aspc-read-")
        if self._process is None:
            # -P: a module that lies beside a log, in the folder where we are, is nobody's to import.
            command = [sys.executable, "-P", "-m", "aspc.data._reader", self._folder.name]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        return self._process, Path(self._folder.name)

    @staticmethod
    def _end_late(child: subprocess.Popen[str], late: threading.Event) -> None:
        late.set()  # first: who waits for an answer may see the end of the child before this thread ends
        child.kill()

    @staticmethod
    def _answer(child: subprocess.Popen[str], request: str) -> str:
        """What the child says; nothing where it has ended instead."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            print(request, file=child.stdin, flush=True)
        except BrokenPipeError:
            return ""
        return child.stdout.readline()


def read_arrays(path: Path, key_map: Mapping[str, Any] | None = None) -> Extracted:
    """The arrays of a file or of a folder of episodes, by D4RL's names; and notes."""
    with cache.said_if_slow(f"Reading {path.name} …"), ChildReader() as reader:
        return _read(path, checked_map(key_map or {}), reader)


def _read(path: Path, key_map: KeyMap, reader: ChildReader, one_episode: bool = False) -> Extracted:
    if not path.exists():
        raise AspcError(f"There is no file {path}.")
    if path.is_dir():
        return _read_folder(path, key_map, reader)
    if path.name.lower().endswith((*HDF5_SUFFIXES, *TABLE_SUFFIXES)):
        return reader.extract(path, key_map, one_episode)
    return extract(path, key_map, one_episode)


def _read_folder(path: Path, key_map: KeyMap, reader: ChildReader) -> Extracted:
    """A folder of files, each an episode, in the order of their names."""
    files = sorted((p for p in path.iterdir() if p.name.lower().endswith(SUFFIXES)), key=lambda p: natural(p.name))
    if not files:
        raise AspcError(f"{path} holds no episodes; it needs files that end in {', '.join(SUFFIXES)}.")
    parts, notes, names = list[Arrays](), list[str](), dict[str, list[str]]()
    with cache.progress(f"Reading {path.name}", len(files), unit="files") as advance:
        for i, file in enumerate(files):
            arrays, found, facts = _read_episode(file, key_map, reader)
            parts.append(arrays)
            notes += [note for note in found if note not in notes]
            own = {key: facts[key] for key in NAMES if key in facts}
            names = names or own
            if own != names:
                raise AspcError(f"{file} has other columns than {files[0].name}, or in another order; make them alike.")
            advance(i + 1)
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            (key, *_) = sorted(part.keys() ^ parts[0].keys())
            without = file if key in parts[0] else files[0]
            raise AspcError(f"{path}: {without.name} has no {key}, which other files have; make them alike.")
    try:
        arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    except ValueError as error:
        raise AspcError(f"{path}: its files differ in observation or action size.") from error
    return Extracted(arrays, notes, {**names})


def _read_episode(path: Path, key_map: KeyMap, reader: ChildReader) -> Extracted:
    """One file of a folder; its last row ends the episode, by timeout unless it is terminal."""
    arrays, notes, facts = _read(path, key_map, reader, one_episode=True)
    length = len(arrays["rewards"])
    timeouts = checked_flags("timeouts", arrays.get("timeouts", np.zeros(length)), path.name).copy()
    if length == 0 or len(timeouts) != length or len(arrays["terminals"]) != length:
        raise AspcError(f"{path}: the episode is empty or its arrays differ in length.")
    timeouts[-1] = not np.asarray(arrays["terminals"]).reshape(-1)[-1]
    return Extracted({**arrays, "timeouts": timeouts}, notes, facts)


# ── from a path to a dataset ────────────────────────────────────────────────────────────────────────────────────────


def load(
    path: str | os.PathLike[str],
    *,
    key_map: KeyMap | None = None,
    env: str | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """A dataset from a file or a folder of episodes.

    `key_map` says which stored name holds which array, e.g. `{"observations": "obs"}`, and of a table which columns
    make it, e.g. `{"observations": ["temp", "flow_*"]}`. A file whose name and sizes are a D4RL dataset's gets that
    dataset's environment and scores; `env="none"` turns that off and another `env` overrides it. Further options are
    those of `Dataset.from_arrays`.
    """
    path = Path(path)
    stem = path.name
    for suffix in SUFFIXES:
        stem = stem[: -len(suffix)] if stem.lower().endswith(suffix) else stem
    arrays, notes, facts = read_arrays(path, key_map)
    if env is None and "env" not in facts:
        shapes = np.shape(arrays["observations"]), np.shape(arrays["actions"])
        if len(shapes[0]) == 2 and len(shapes[1]) == 2:
            env = d4rl.name_from_stem(stem, shapes[0][1], shapes[1][1])
    given = {key: value for key, value in {**options, "env": env}.items() if value is not None}
    settings = {**facts, **given, "name": name or stem}
    dataset = Dataset.from_arrays(**arrays, **settings)
    return dataset.with_notes(notes)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_hdf5(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any] | None = None) -> None:
    """Write arrays in D4RL's layout, whole or not at all; facts go into an attribute that other readers ignore."""
    import h5py

    with cache.replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
        if facts:
            file.attrs[FACTS_KEY] = json.dumps(facts)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any] | None = None) -> None:
    """Write arrays as an NPZ file, whole or not at all; facts become arrays of their own, which others ignore."""
    stated = {f"{FACTS_PREFIX}{key}": np.asarray(fact) for key, fact in (facts or {}).items() if fact not in (None, [])}
    with cache.replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **{**arrays, **stated})  # type: ignore[arg-type]


def read_trusted_hdf5(path: Path) -> Arrays:
    """Read a file that this library wrote itself, in this process."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return {key: np.asarray(item[()]) for key, item in file.items()}
    except (OSError, KeyError, ValueError) as error:
        raise AspcError(f"The cached file {path} is damaged; delete it and it will be made again.") from error


def dataset_arrays(dataset: Dataset) -> Arrays:
    """A dataset's arrays by D4RL's names."""
    keys: Iterable[str] = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    return {key: getattr(dataset, key) for key in keys if getattr(dataset, key) is not None}


def dataset_facts(dataset: Dataset) -> dict[str, Any]:
    """What a file of this dataset should say besides its arrays."""
    return {
        "env": dataset.env,
        "action_low": dataset.action_low.tolist(),
        "action_high": dataset.action_high.tolist(),
        "ref_min": dataset.ref_min,
        "ref_max": dataset.ref_max,
        "observation_names": list(dataset.observation_names),
        "action_names": list(dataset.action_names),
    }
