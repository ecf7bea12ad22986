"""Read dataset files, and folders of episode files, through the resource-limited child process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aspc.data.action_choices import merge_categories
from aspc.data.joined_logs import join_logs
from aspc.data.metadata import ALL_NAME_KEYS
from aspc.data.read_options import ReadOptions
from aspc.data.readers.contents import Arrays, FileContents, concatenate
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
    """Read several files and prepare their rows; `path` names the files in messages.

    Files whose absolute times follow one another are joined into one log (see `join_logs`). Otherwise each file is a
    separate log, in the given order. Its last row ends an episode, by timeout unless the row is terminal.
    """
    contents, taken = list[FileContents](), 0
    read_options = replace(options, single_episode=True)
    with progress_bar(f"Reading {path.name}", len(files), unit="files") as advance:
        for i, file in enumerate(files):
            arrays, notes, metadata = _read_file(reader, file, read_options, taken)
            arrays = {key: array.copy() for key, array in arrays.items()}  # a memory map would keep its file open
            contents.append(FileContents(arrays, notes, metadata))
            _check_equal_names(contents, files)
            taken += sum(loading_bytes(array.dtype, array.size) for array in arrays.values())
            advance(i + 1)
    share_action_categories(contents)
    joined, join_notes = join_logs(contents, [file.name for file in files], path.name)
    if joined is not None:
        return prepare_rows(joined, read_options, path.name)
    logs = list[FileContents]()
    for file in files:
        logs.append(_prepare_log(contents.pop(0), read_options, file))
        _check_equal_names(logs, files)
    notes = list(dict.fromkeys([*join_notes, *(note for log in logs for note in log.notes)]))
    categories = {key: logs[0].metadata[key] for key in ("action_categories",) if key in logs[0].metadata}
    arrays = _concatenate([log.arrays for log in logs], files, path)
    return FileContents(arrays, notes, {**_names_of(logs[0]), **categories})


def share_action_categories(contents: list[FileContents]) -> None:
    """Give the text columns of all files the same codes, in place."""
    coded = [file for file in contents if "action_categories" in file.metadata]
    if coded:
        merged = merge_categories(
            [
                (file.arrays["actions"], file.metadata["action_names"], file.metadata["action_categories"])
                for file in coded
            ]
        )
        for file in coded:
            file.metadata["action_categories"] = merged


def _names_of(contents: FileContents) -> dict[str, list[str]]:
    return {key: contents.metadata[key] for key in ALL_NAME_KEYS if key in contents.metadata}


def _check_equal_names(contents: Sequence[FileContents], files: Sequence[Path]) -> None:
    """Raise an `AspcError` if the last file's columns differ from those of the first file that names its columns."""
    expected = next((names for names in map(_names_of, contents) if names), {})
    if _names_of(contents[-1]) != expected:
        raise AspcError(
            f"{files[len(contents) - 1]}: the columns differ from those of {files[0].name} in name or order. Use the "
            "same columns in all files."
        )


def _prepare_log(contents: FileContents, options: ReadOptions, path: Path) -> FileContents:
    """Prepare the rows of a file that is a separate log."""
    arrays, notes, metadata = prepare_rows(contents, options, path.name)
    length = len(arrays["rewards"])
    timeouts = check_flags("timeouts", arrays.get("timeouts", np.zeros(length)), path.name).copy()
    if length == 0 or len(timeouts) != length or len(arrays["terminals"]) != length:
        raise AspcError(f"{path}: the episode is empty or its arrays differ in length.")
    timeouts[-1] = not np.asarray(arrays["terminals"]).reshape(-1)[-1]
    return FileContents({**arrays, "timeouts": timeouts}, notes, metadata)


def _concatenate(parts: list[Arrays], files: Sequence[Path], path: Path) -> Arrays:
    """Concatenate the arrays of all files.

    Raises:
        AspcError: The files have different arrays, or arrays of different sizes.
    """
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            (key, *_) = sorted(part.keys() ^ parts[0].keys())
            without = file if key in parts[0] else files[0]
            raise AspcError(
                f"{path}: {without.name} has no {key}, but other files do. Use the same arrays in all files."
            )
    return {key: concatenate([part.pop(key) for part in parts], f"{path}: its files") for key in list(parts[0])}
