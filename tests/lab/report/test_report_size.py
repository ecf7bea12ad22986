"""Time and memory of a report on many runs."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("plotly", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

if not Path("/proc/self/status").exists():
    pytest.skip("peak memory is read from /proc", allow_module_level=True)

from synthetic import D4RL, MAIN, Variant, make

# ru_maxrss includes the parent process before exec; VmHWM does not.
MEASURED = """import re, sys
from aspc.__main__ import main
code = main(["report", sys.argv[1], "--out", sys.argv[2], "--quiet"])
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024)
sys.exit(code)"""


def measure(folder: Path, out: Path) -> tuple[float, float]:
    """Run `aspc report` in a subprocess and return its CPU seconds and peak memory in bytes."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(folder), str(out)], capture_output=True, text=True, check=True, timeout=600
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{time.monotonic() - started:.1f} s wall clock, {seconds:.1f} s CPU")
    return seconds, float(done.stdout.splitlines()[-1])


def test_300_runs_stay_within_time_and_memory_limits(tmp_path: Path) -> None:
    make(tmp_path / "r", "own", MAIN[:5], [f"own-{i}" for i in range(15)], seeds=4, points=50)  # 300 runs
    seconds, memory = measure(tmp_path / "r", tmp_path / "out")
    assert seconds < 60
    assert memory < 1 * 2**30
    assert (tmp_path / "out" / "index.html").stat().st_size < 12e6


@pytest.mark.slow
def test_5000_runs_stay_within_time_and_memory_limits(tmp_path: Path) -> None:
    variants = [*MAIN, *(Variant(f"variant {i}", "aspc", k_alpha=i + 11) for i in range(26))]
    make(tmp_path / "r", "main_table", variants, D4RL, seeds=4, points=200)  # 4,992 runs, a million points
    make(tmp_path / "r", "more", MAIN[:1], ["own-1", "own-2"], seeds=4, points=200)
    seconds, memory = measure(tmp_path / "r", tmp_path / "out")
    size = (tmp_path / "out" / "index.html").stat().st_size
    print(f"{seconds:.0f} s, {memory / 2**30:.2f} GiB, page {size / 1e6:.1f} MB")
    assert seconds < 60
    assert memory < 2 * 2**30
    assert size < 40e6
