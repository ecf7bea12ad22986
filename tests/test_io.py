"""Written files are complete, durable, and have the permissions of the umask."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from aspc import io
from aspc.data.packing import pack
from aspc.data.streaming import META, ROWS
from aspc.errors import AspcError
from aspc.io import (
    exclusive_lock,
    flush,
    read_json,
    remove_stale_temporaries,
    temporary_path,
    write_atomically,
    write_folder_atomically,
    write_json,
)
from tiny import make_dataset


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("mask", "file", "folder"), [(0o077, 0o600, 0o700), (0o022, 0o644, 0o755)])
def test_permissions_follow_the_umask(tmp_path: Path, mask: int, file: int, folder: int) -> None:
    with umask(mask):
        write_atomically(tmp_path / "a", b"1")
        write_folder_atomically(tmp_path / "exported", {"b": b"2"})
    assert mode(tmp_path / "a") == mode(tmp_path / "exported" / "b") == file
    assert mode(tmp_path / "exported") == folder


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a", b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(io.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """All flushes and renames, in order."""
    events: list[tuple[str, Path]] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(descriptor: int) -> None:
        events.append(("flush", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def spy_replace(source: Path, target: Path) -> None:
        events.append(("rename", Path(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    return events


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see what is flushed")
def test_a_rename_is_flushed_with_its_folder(tmp_path: Path, flushed: list[tuple[str, Path]]) -> None:
    write_atomically(tmp_path / "a", b"1")
    kinds = [kind for kind, _ in flushed]
    assert kinds == ["flush", "rename", "flush"]
    assert flushed[-1] == ("flush", tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see what is flushed")
def test_packed_data_is_flushed_before_it_is_renamed(tmp_path: Path, flushed: list[tuple[str, Path]]) -> None:
    pack(make_dataset(rows=100), tmp_path / "packed")
    renamed = flushed.index(("rename", tmp_path / "packed"))
    before = {path.name.lstrip(".").partition(".json")[0] for kind, path in flushed[:renamed] if kind == "flush"}
    assert {ROWS, META.removesuffix(".json")} <= before
    assert ("flush", tmp_path) in flushed[renamed:]


def test_a_file_system_that_cannot_flush_a_folder_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(io.os, "fsync", refuse)
    flush(tmp_path)
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="Invalid argument"):
        flush(tmp_path / "a")


def test_stale_temporary_files_are_removed_and_live_ones_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    own = temporary_path(path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = [
        own.with_name(own.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-")),
        own.with_name(own.name.replace(io._PROCESS_TOKEN, "0" * 8)),  # an earlier process with this number
    ]
    for file in (own, *stale):
        file.touch()
    remove_stale_temporaries(path)
    assert list(tmp_path.iterdir()) == [own]


def test_a_lock_is_exclusive_until_it_is_released(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path / "lock"),
        pytest.raises(AspcError, match="in use"),
        exclusive_lock(tmp_path / "lock", timeout_seconds=0, busy_message="in use"),
    ):
        pass
    with exclusive_lock(tmp_path / "lock", timeout_seconds=0, busy_message="in use"):
        pass


def test_json_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": float("nan"), "sizes": (1, float("inf")), "array": np.arange(2)})
    assert read_json(tmp_path / "a.json") == {"loss": "nan", "sizes": [1, "inf"], "array": [0, 1]}
    assert read_json(tmp_path / "b.json", None) is None
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(AspcError, match="cannot be read as JSON"):
        read_json(tmp_path / "b.json", None)
