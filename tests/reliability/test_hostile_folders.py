"""Damaged folders of every kind: a clear error, never a traceback, a crash or an unpickled object."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import folders_child
import msgspec
import pytest
from folders_child import MARK, USES

from aspc.errors import AspcError
from aspc.training.run_config import DatasetFacts, RunConfig
from aspc.training.run_folder import CONFIG, Run
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


def required(kind: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind) if field.required]


REQUIRED = [name for name in required(RunConfig) if name not in ("options", "software")]  # stored flat


@pytest.mark.parametrize("name", [*REQUIRED, "steps", "seeds", *(f"dataset/{name}" for name in required(DatasetFacts))])
def test_a_config_that_lacks_a_key_is_damaged(folders: Path, tmp_path: Path, name: str) -> None:
    """Also without one that may be null: damage to a key leaves well-formed JSON."""
    path = shutil.copytree(folders / "run", tmp_path / "run")
    config = json.loads((path / CONFIG).read_text())
    within, key = (config["dataset"], name.partition("/")[2]) if "/" in name else (config, name)
    del within[key]
    (path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(AspcError, match=f"is damaged: {key} is missing or invalid"):
        Run(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", USES)
def test_ten_thousand_damaged_folders(folders: Path, tmp_path: Path, kind: str) -> None:
    check(folders, tmp_path, kind, 10_000)
