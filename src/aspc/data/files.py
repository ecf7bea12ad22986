"""Reading and writing datasets as files: HDF5 (D4RL's layout or a key map), NPZ, Parquet, Arrow, CSV, folders.

Nothing is unpickled. Sizes that a header states are checked before memory is taken. Every file is parsed in a child
process with a memory limit and a timeout (`LimitedReader`), so that a damaged file ends in a sentence, not a crash.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import json
import math
import os
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from aspc import tasks
from aspc.data import cache
from aspc.data.dataset import Dataset, checked_flags
from aspc.data.readers import hdf5
from aspc.data.readers.array_files import ArrayFile
from aspc.data.readers.limited_reader import LimitedReader
from aspc.data.readers.limits import ReadLimits, memory_budget, size_text, too_large
from aspc.errors import AspcError

Arrays = dict[str, Any]  # NumPy arrays by name
KeyMap = Mapping[str, str | Sequence[str]]  # which stored names hold which array: `checked_map` makes sure

FACTS_KEY = "aspc"  # attribute of HDF5 files that we write: environment, bounds and scores, as JSON
FACTS_PREFIX = "aspc_"  # of the arrays that say the same in an NPZ file: numbers, or text as NumPy's unicode
MAX_FACT_BYTES = 1_000_000  # of each of these
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
UNNEEDED_ARRAYS = ("infos", "infos/*", "metadata/*", "qpos", "qvel")  # of D4RL's and OGBench's files

MAX_MEMBERS = 10_000  # of an NPZ file
MAX_NPY_HEADER = 65_536  # bytes; NumPy itself parses no more than 10,000
PART_BYTES = 4_000_000  # of an array that are read at once
UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT, errno.EISDIR)
OUT_OF_MEMORY = re.compile(
    r"(can't|unable to|could not|failed to) (allocate|reserve)|allocation failed|out of memory", re.I
)
Result = TypeVar("Result")


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


def completed(arrays: Arrays, notes: Sequence[str], facts: dict[str, Any], name: str) -> Extracted:
    """Return what a reader found, with whole flags."""
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


def _read_hdf5(path: Path, key_map: KeyMap, one_episode: bool, limits: ReadLimits) -> Extracted:
    import h5py

    with h5py.File(path, "r") as file:
        stored = hdf5.stored_arrays(file, path.name, limits)
        found, notes = resolve_keys(stored, key_map, path.name, one_episode)
        needed = decoding = 0
        for source in found.values():
            dataset = file[source]
            stated = hdf5.check_dataset(dataset, f"{path.name}: {source!r}")
            needed += hdf5.loading_bytes(dataset.dtype, stated // dataset.dtype.itemsize)
            decoding = max(decoding, hdf5.decoding_bytes(dataset))
        limits.require(needed + decoding, path.name)
        arrays = {key: hdf5.copy_dataset(file[source], limits) for key, source in found.items()}
        notes += notes_on_unused_arrays({key: file[key].shape or () for key in stored}, found)
        facts = read_facts(file.attrs.get(FACTS_KEY))
    return completed(arrays, notes, facts, path.name)


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
    return {**numbers, **names, **({"env": env} if isinstance(env, str) else {})}


def without_refused_env(facts: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Drop the environment that a file states if a file cannot choose it; and a note that says so."""
    from aspc.envs.allowed import problem_with_name

    env = facts.get("env")
    problem = None if env is None else problem_with_name(env)
    if problem is None:
        return facts, []
    kept = {key: value for key, value in facts.items() if key != "env"}
    shown = str(env)[:80]
    return kept, [
        f"the environment {shown!r} that the file states is not used: {problem}; if you trust it, give --env."
    ]


def _read_npz(path: Path, key_map: KeyMap, one_episode: bool, limits: ReadLimits) -> Extracted:
    with zipfile.ZipFile(path) as archive:
        members = _npz_members(archive, path.name)
        stored = list(members)
        found, notes = resolve_keys(stored, key_map, path.name, one_episode)
        notes += notes_on_unused_arrays(_npz_shapes(archive, members, limits), found)
        wanted = {**found, **{key: key for key in STORED_FACTS if key in stored}}
        arrays = _read_members(archive, {key: members[source] for key, source in wanted.items()}, path.name, limits)
    stated = {STORED_FACTS[key]: arrays.pop(key) for key in STORED_FACTS if key in arrays}
    facts = checked_facts({key: _listed_values(array) for key, array in stated.items()})
    return completed(arrays, notes, facts, path.name)


def _listed_values(array: np.ndarray) -> Any:
    """Return an array as lists. Raises ValueError for text that no Unicode string can hold."""
    if array.dtype.kind == "U":
        codes = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if codes.max(initial=0) > sys.maxunicode:
            raise ValueError("its text is not Unicode")
    return array.tolist()


def extract_npz(path: Path, required: Sequence[str], optional: Sequence[str], limits: ReadLimits) -> Arrays:
    """Read named arrays of an NPZ file in this process."""
    with zipfile.ZipFile(path) as archive:
        members = _npz_members(archive, path.name)
        missing = [key for key in required if key not in members]
        if missing:
            raise AspcError(f"{path.name}: {missing[0]!r} is missing; there are {_listed(list(members))}.")
        wanted = {key: members[key] for key in (*required, *optional) if key in members}
        return _read_members(archive, wanted, path.name, limits)


def _npz_members(archive: zipfile.ZipFile, name: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an NPZ file by the names of their arrays."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise AspcError(
            f"{name} holds {len(members):,} arrays, more than {MAX_MEMBERS:,}; save one array for each quantity, with "
            "a row per time step."
        )
    return {info.filename.removesuffix(".npy"): info for info in members}


class _NpyHeader(NamedTuple):
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


def _read_members(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, limits: ReadLimits
) -> Arrays:
    """Read arrays of an NPZ file, once their headers are known to be true and all of them to fit in memory."""
    needed = 0
    for key, info in members.items():
        with _open_member(archive, info, name) as file:
            header = _check_npy_header(file, info, f"{name}: {info.filename.removesuffix('.npy')!r}", key)
            needed += hdf5.loading_bytes(header.dtype, math.prod(header.shape))
    limits.require(needed + 2 * PART_BYTES, name)
    return {key: _read_member(archive, info, name, limits) for key, info in members.items()}


def _open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Any:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise AspcError(f"{name}: {info.filename!r} is compressed in a way that NumPy does not write; save it again.")
    return archive.open(info)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, limits: ReadLimits) -> np.ndarray:
    result = ArrayFile()
    with _open_member(archive, info, name) as file:
        shape, is_fortran, dtype = _npy_header(file)
        left = math.prod(shape) * dtype.itemsize
        part = np.empty(min(PART_BYTES, left), np.uint8)
        while left:
            limits.progress()
            count = file.readinto(part[:left])
            if not count:
                raise EOFError(f"{info.filename} ends too early")
            result.write(part[:count])
            left -= count
        file.read(1)  # at the end of the member its checksum is compared
    return result.array(dtype, shape, "F" if is_fortran else "C")


def read_npz(path: Path, *, required: Sequence[str], optional: Sequence[str] = ()) -> Arrays:
    """Read named arrays of an NPZ file, with the same limits and checks as a dataset's."""
    with cache.notify_if_slow(f"Reading {path.name} …"), LimitedReader() as reader:
        return reader.call("read_npz", path, required=list(required), optional=list(optional)).arrays


def _npy_header(file: Any) -> _NpyHeader:
    """Read the header of an array. Its length is checked first: NumPy would take as much memory as that states."""
    start = file.read(8)
    version = np.lib.format.read_magic(io.BytesIO(start))
    digits = file.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(digits, "little")
    if length > MAX_NPY_HEADER:
        raise ValueError(f"the header of an array states a length of {length:,} bytes")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return _NpyHeader(*read_header(io.BytesIO(digits + file.read(length))))


def _npz_shapes(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], limits: ReadLimits
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the headers of an NPZ file state; what has no valid header is not an array."""
    shapes = {}
    for key, info in members.items():
        limits.progress()
        try:
            with _open_member(archive, info, key) as file:
                shapes[key] = _npy_header(file).shape
        except Exception:  # a boundary: a damaged array that nobody needs does no harm
            continue
    return shapes


def _check_npy_header(file: Any, info: zipfile.ZipInfo, name: str, key: str) -> _NpyHeader:
    """Return the header of an array, once it is known to state values of the right kind that the file really holds."""
    header = _npy_header(file)
    shape, _, dtype = header
    if dtype.hasobject:
        raise AspcError(
            f"{name} holds pickled Python objects, which are never loaded; save plain number arrays instead."
        )
    if dtype.kind not in ("fiubU" if key in STORED_FACTS else "fiub"):
        raise AspcError(f"{name} must hold numbers, not {dtype}.")
    stated = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or stated > info.file_size:
        raise AspcError(f"{name} claims shape {shape}, but the file holds {info.file_size:,} bytes of it.")
    if stated > hdf5.MAX_COMPRESSION * info.compress_size + 4096:
        raise AspcError(f"{name} claims shape {shape}, but the file holds {info.compress_size:,} bytes of it.")
    if key in STORED_FACTS and stated > MAX_FACT_BYTES:
        raise AspcError(f"{name} has {stated:,} bytes, too large for metadata; remove it.")
    return header


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


def extract(path: Path, key_map: KeyMap, one_episode: bool = False, limits: ReadLimits | None = None) -> Extracted:
    """Read one file in this process. Raises whatever a format's library does where the file is damaged."""
    from aspc.data.readers import tables

    readers = {
        HDF5_SUFFIXES: _read_hdf5,
        (".npz",): _read_npz,
        TABLE_SUFFIXES: tables.read_arrow,
        CSV_SUFFIXES: tables.read_csv,
    }
    reader = next(read for suffixes, read in readers.items() if path.name.lower().endswith(suffixes))
    return reader(path, key_map, one_episode, limits or ReadLimits(memory_budget()))


def in_one_sentence(path: Path, limits: ReadLimits, read: Callable[[], Result]) -> Result:
    """Call a reader; whatever a damaged file makes its library raise becomes an `AspcError`."""
    try:
        if path.is_file() and path.stat().st_size == 0:
            raise AspcError(f"{path}: the file is empty.")
        return read()
    except AspcError:
        raise
    except Exception as error:  # a boundary: each library has errors of its own, and of Python's
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            raise too_large(path.name, f"more than {size_text(limits.budget_bytes)}", limits.budget_bytes) from error
        if isinstance(error, OSError) and error.errno in UNREADABLE:
            raise AspcError(f"{path} cannot be read: {os.strerror(error.errno)}.") from error
        raise AspcError(f"{path}: the file is damaged, cut short or not what its name says ({detail}).") from error


def read_arrays(path: Path, key_map: Mapping[str, Any] | None = None) -> Extracted:
    """The arrays of a file or of a folder of episodes, by D4RL's names; and notes."""
    with cache.notify_if_slow(f"Reading {path.name} …"), LimitedReader() as reader:
        return read_with(reader, path, checked_map(key_map or {}))


def read_with(
    reader: LimitedReader, path: Path, key_map: KeyMap, one_episode: bool = False, taken_bytes: int = 0
) -> Extracted:
    """Read a file, or a folder of episodes, with a reader that is there already."""
    if path.is_dir():
        return _read_folder(path, key_map, reader)
    if path.exists() and not path.name.lower().endswith(SUFFIXES):
        raise AspcError(
            f"{path}: files of this kind are not read; known are {', '.join(SUFFIXES)} and folders of them."
        )
    value, arrays = reader.call(
        "read_file", path, taken_bytes=taken_bytes, key_map=dict(key_map), one_episode=one_episode
    )
    return Extracted(arrays, value["notes"], value["facts"])


def _read_folder(path: Path, key_map: KeyMap, reader: LimitedReader) -> Extracted:
    """Read a folder of files, each an episode, in the order of their names."""
    files = sorted((p for p in path.iterdir() if p.name.lower().endswith(SUFFIXES)), key=lambda p: natural(p.name))
    if not files:
        raise AspcError(f"{path} holds no episodes; it needs files that end in {', '.join(SUFFIXES)}.")
    parts, notes, names, taken = list[Arrays](), list[str](), dict[str, list[str]](), 0
    with cache.progress(f"Reading {path.name}", len(files), unit="files") as advance:
        for i, file in enumerate(files):
            arrays, found, facts = _read_episode(file, key_map, reader, taken)
            parts.append({key: array.copy() for key, array in arrays.items()})  # a mapping would keep its file open
            taken += sum(hdf5.loading_bytes(array.dtype, array.size) for array in arrays.values())
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
        arrays = {key: np.concatenate([part.pop(key) for part in parts]) for key in list(parts[0])}
    except ValueError as error:
        raise AspcError(f"{path}: its files differ in observation or action size.") from error
    return Extracted(arrays, notes, {**names})


def _read_episode(path: Path, key_map: KeyMap, reader: LimitedReader, taken_bytes: int) -> Extracted:
    """Read one file of a folder; its last row ends the episode, by timeout unless it is terminal."""
    arrays, notes, facts = read_with(reader, path, key_map, one_episode=True, taken_bytes=taken_bytes)
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
    if env is None:
        facts, refused = without_refused_env(facts)
        notes = [*notes, *refused]
    if env is None and "env" not in facts:
        shapes = np.shape(arrays["observations"]), np.shape(arrays["actions"])
        if len(shapes[0]) == 2 and len(shapes[1]) == 2:
            env = tasks.name_from_stem(stem, shapes[0][1], shapes[1][1])
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
