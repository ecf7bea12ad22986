"""Read dataset files, and folders of episode files, through the resource-limited child process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aspc.data.action_choices import merge_categories
from aspc.data.metadata import ALL_NAME_KEYS
from aspc.data.read_options import ReadOptions
from aspc.data.readers.contents import Arrays, FileContents
from aspc.data.readers.formats import SUFFIXES
from aspc.data.readers.hdf5 import loading_bytes
from aspc.data.readers.limited_reader import LimitedReader
from aspc.data.row_preparation import prepare_rows
from aspc.data.validation import check_flags
from aspc.errors import AspcError
from aspc.text import natural_sort_key
from aspc.ui import progress_bar


def read_path(reader: LimitedReader, path: Path, options: ReadOptions | None = None) -> FileContents:
    """Read a file, or a folder with one file per episode, and prepare the rows."""
    options = options or ReadOptions()
    if path.is_dir():
        files = [file for file in path.iterdir() if file.name.lower().endswith(SUFFIXES)]
        files.sort(key=lambda file: natural_sort_key(file.name))
        if not files:
            raise AspcError(f"{path} contains no episodes; it needs files that end in {', '.join(SUFFIXES)}.")
        return read_files(reader, files, options, path)
    return prepare_rows(_read_file(reader, path, options), options, path.name)


def _read_file(reader: LimitedReader, path: Path, options: ReadOptions, taken_bytes: int = 0) -> FileContents:
    if path.exists() and not path.name.lower().endswith(SUFFIXES):
        raise AspcError(f"{path}: unknown file format; choose from {', '.join(SUFFIXES)}, or a folder of such files.")
    value, arrays = reader.call("read_file", path, taken_bytes=taken_bytes, options=options.to_json())
    return FileContents(arrays, value["notes"], value["metadata"])


def read_files(reader: LimitedReader, files: Sequence[Path], options: ReadOptions, path: Path) -> FileContents:
    """Read files in order; the last row of each file ends an episode. `path` names the files in messages."""
    parts, notes, names, taken = list[Arrays](), list[str](), dict[str, list[str]](), 0
    coded: list[tuple[np.ndarray, list[str], dict[str, list[str]]]] = []
    with progress_bar(f"Reading {path.name}", len(files), unit="files") as advance:
        for i, file in enumerate(files):
            arrays, file_notes, metadata = _read_episode(reader, file, options, taken)
            parts.append({key: array.copy() for key, array in arrays.items()})  # a memory map would keep its file open
            taken += sum(loading_bytes(array.dtype, array.size) for array in arrays.values())
            notes += [note for note in file_notes if note not in notes]
            if "action_categories" in metadata:
                coded.append((parts[-1]["actions"], metadata["action_names"], metadata["action_categories"]))
            file_names = {key: metadata[key] for key in ALL_NAME_KEYS if key in metadata}
            names = names or file_names
            if file_names != names:
                raise AspcError(f"{file} has other columns than {files[0].name}, or another order; make them equal.")
            advance(i + 1)
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            (key, *_) = sorted(part.keys() ^ parts[0].keys())
            without = file if key in parts[0] else files[0]
            raise AspcError(f"{path}: {without.name} has no {key}, but other files have; make them equal.")
    categories = {"action_categories": merge_categories(coded)} if coded else {}
    try:
        arrays = {key: np.concatenate([part.pop(key) for part in parts]) for key in list(parts[0])}
    except ValueError as error:
        raise AspcError(f"{path}: its files differ in observation or action size.") from error
    return FileContents(arrays, notes, {**names, **categories})


def _read_episode(reader: LimitedReader, path: Path, options: ReadOptions, taken_bytes: int) -> FileContents:
    """Read one file of a folder; its last row ends the episode, by timeout unless it is terminal."""
    options = replace(options, single_episode=True)
    arrays, notes, metadata = prepare_rows(_read_file(reader, path, options, taken_bytes), options, path.name)
    length = len(arrays["rewards"])
    timeouts = check_flags("timeouts", arrays.get("timeouts", np.zeros(length)), path.name).copy()
    if length == 0 or len(timeouts) != length or len(arrays["terminals"]) != length:
        raise AspcError(f"{path}: the episode is empty or its arrays differ in length.")
    timeouts[-1] = not np.asarray(arrays["terminals"]).reshape(-1)[-1]
    return FileContents({**arrays, "timeouts": timeouts}, notes, metadata)
