"""Damaged folders of every kind: one clear sentence, never a traceback, never a crash, never a pickle."""

from __future__ import annotations

import shutil
from pathlib import Path

import folders_child
import pytest
from folders_child import MARK, USES

from fuzz_child import fuzz


def check(folders: Path, folder: Path, kind: str, cases: int) -> None:
    for name in USES:
        shutil.copytree(folders / name, folder / name)
    refused, crashed = fuzz(folder, kind, cases, folders_child.__file__)
    assert crashed == []
    assert cases / 10 < refused < cases  # else the damage does nothing, or whole folders are refused too
    assert not (folder / "damaged" / MARK).exists()


def test_damaged_folders(folders: Path, tmp_path: Path) -> None:
    check(folders, tmp_path, "all", 1000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", USES)
def test_ten_thousand_damaged_folders(folders: Path, tmp_path: Path, kind: str) -> None:
    check(folders, tmp_path, kind, 10_000)
