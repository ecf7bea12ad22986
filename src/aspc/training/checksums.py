"""Checksums of a run folder, stored in checksums.json to detect damaged files.

    {"format": 1, "step": 8000, "finished": false,
     "files":    {"config.json": SHA256, …},                    files that do not change
     "tables":   {"metrics.csv": {"rows": 8, …}, …},            rows up to `step`, and their columns
     "prefixes": {"online.f32": {"bytes": 512, "sha256": …}}}   the first bytes of a file that grows

Checksums are written before each checkpoint and at the end of a run, once the recorded content is on disk. New rows and
columns do not change them, so a process killed at any time leaves a folder with valid checksums. Checkpoints have
separate checksums (see aspc.training.checkpoints).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from aspc.errors import AspcError, ExternalFailure
from aspc.io import read_json, write_json
from aspc.training.run_folder import (
    CHECKSUMS,
    CONFIG,
    EVALUATIONS,
    METRICS,
    POLICY,
    RESULT,
    STATUS,
    RowDigest,
    check_form,
    read_rows,
)

FORMAT = 1
Records = Mapping[str, Mapping[str, Any]]


class Verified(NamedTuple):
    """The result of a successful verification."""

    files: int
    """The number of files that match."""
    step: int
    """The last step covered by the table checksums."""
    finished: bool


class GrowingFile(Protocol):
    """A file that grows during training, other than the tables."""

    def record(self) -> dict[str, Any]:
        """Return the size and checksum of the content, for checksums.json."""


class Checksums:
    """The checksums of a run, updated during training."""

    def __init__(self, path: Path, first_step: int, prefixes: Mapping[str, int] | None = None) -> None:
        """Verify existing files, and record their checksums up to the step from which training continues.

        Args:
            path: The run folder.
            first_step: The step of the checkpoint, 0 for a new run.
            prefixes: The names of other growing files, with their sizes in bytes at `first_step`.

        Raises:
            ExternalFailure: A file does not match its checksum.
        """
        self.path = path
        if (path / CHECKSUMS).exists():
            verify(path)
        self.files = {CONFIG: _digest_file(path / CONFIG)}
        tables = {name: _digest_rows(path / name, first_step).record() for name in (METRICS, EVALUATIONS)}
        recorded = {name: _prefix(path / name, size) for name, size in (prefixes or {}).items()}
        # These checksums cover the rows up to `first_step`, so they stay valid when later rows are dropped.
        self.record(first_step, tables, {name: prefix for name, prefix in recorded.items() if prefix is not None})

    def record(self, step: int, tables: Records, prefixes: Records) -> None:
        """Write the checksums of all data up to `step`, which must already be on disk."""
        content = {"format": FORMAT, "step": step, "finished": False}
        write_json(self.path / CHECKSUMS, {**content, "files": self.files, "tables": tables, "prefixes": prefixes})


def finish(path: Path) -> None:
    """Add the checksums of a finished run's result, status and policies."""
    content = read_json(path / CHECKSUMS)
    written = [path / RESULT, path / STATUS, *sorted((path / POLICY).glob("*/*"))]
    files = {file.relative_to(path).as_posix(): _digest_file(file) for file in written if file.is_file()}
    write_json(path / CHECKSUMS, {**content, "finished": True, "files": {**content["files"], **files}})


def verify(path: Path) -> Verified:
    """Compare a run's files with its checksums.

    Raises:
        ExternalFailure: A file is missing or damaged.
        AspcError: checksums.json is missing or cannot be read.
    """
    if not (path / CHECKSUMS).is_file():
        raise AspcError(
            f"{path} has no {CHECKSUMS}: it is not a run folder, or it was written by an older version of aspc."
        )
    content = _read(path / CHECKSUMS)
    damaged = [name for name, digest in content["files"].items() if _digest_file(path / name) != digest]
    for name, recorded in content["tables"].items():
        try:
            matches = _digest_rows(path / name, content["step"], not content["finished"]).matches(recorded)
        except AspcError:
            matches = False
        if not matches:
            damaged.append(name)
    damaged += [
        name for name, recorded in content["prefixes"].items() if _prefix(path / name, recorded["bytes"]) != recorded
    ]
    if damaged:
        raise ExternalFailure(
            f"{path} is damaged: these files are missing or have changed: {', '.join(damaged)}. Restore them from a "
            f"copy or, if you changed them yourself, delete {path / CHECKSUMS}."
        )
    return Verified(
        sum(len(content[kind]) for kind in ("files", "tables", "prefixes")), content["step"], content["finished"]
    )


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = read_json(path)
    check_form(path, content, {"format": int, "step": int, "files": dict, "tables": dict, "prefixes": dict})
    if content["format"] > FORMAT:
        raise AspcError(f"{path} was written by a newer version of aspc; update aspc.")
    for recorded in content["prefixes"].values():
        check_form(path, recorded, {"bytes": int})
    names = [PurePosixPath(name) for kind in ("files", "tables", "prefixes") for name in content[kind]]
    outside = any(name.is_absolute() or ".." in name.parts or "\0" in str(name) for name in names)
    if outside or not isinstance(content.get("finished"), bool):
        raise AspcError(f"{path} is damaged: it names files outside the run, or has no entry 'finished'.")
    return content


def _digest_file(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _digest_rows(path: Path, step: int, allow_more: bool = True) -> RowDigest:
    """Return the digest of a table's rows up to `step`, or of all rows if `allow_more` is False."""
    digest = RowDigest()
    for row in read_rows(path):
        if row["step"] <= step or not allow_more:
            digest.add(row)
    return digest


def _prefix(path: Path, size: int) -> dict[str, Any] | None:
    """Return the record of a file's first `size` bytes, or None if the file is shorter or cannot be read."""
    digest, left = hashlib.sha256(), size
    try:
        with open(path, "rb") as file:
            while left > 0 and (piece := file.read(min(left, 1 << 20))):
                digest.update(piece)
                left -= len(piece)
    except OSError:
        return None if size else {"bytes": 0, "sha256": digest.hexdigest()}
    return {"bytes": size, "sha256": digest.hexdigest()} if left == 0 else None
