"""The benchmark of reading CSV files, on small files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "read_csv.py"


def test_files_with_and_without_dates_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--size", "1MB", "--observations", "1", "--rounds", "1"]
    result = subprocess.run([*command, "--folder", str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [row["file"] for row in rows] == ["no dates", "dates"]
    for row in rows:
        assert row["rows"] == 50_000
        assert row["cpu_seconds"] > 0
        assert row["mib"] > row["reader_mib"] > 0
    assert list(tmp_path.iterdir()) == []
