"""A temporary cache folder, and a small log to write in every layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_logs import make_log


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPC_DATA", str(tmp_path / "cache"))
    monkeypatch.delenv("ASPC_MIRRORS", raising=False)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.fixture
def log() -> dict[str, np.ndarray]:
    """Sixty rows: three episodes by timeout and three by terminal, in turn."""
    return make_log()
