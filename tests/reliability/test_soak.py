"""SIGKILL at random moments of real commands: files are complete or absent, and the same command continues.

Kills of `aspc bench` are in tests/lab/test_bench.py. Together they are 60.
"""

from __future__ import annotations

import hashlib
import http.server
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from small_runs import SHORT, write_logs

import aspc
from aspc.__main__ import main
from aspc.errors import AspcError
from aspc.export import load_stablehlo
from aspc.policy import load_policy
from aspc.training.checksums import verify
from aspc.training.run_folder import CHECKSUMS
from tiny import make_dataset

pytestmark = pytest.mark.slow

TRAIN_KILLS, DOWNLOAD_KILLS, EXPORT_KILLS = 20, 15, 15


def killed(words: list[Any], seconds: float, **env: str) -> bool:
    """Start a command and kill it after some seconds; return False if it had finished before."""
    command = [sys.executable, "-m", "aspc", *map(str, words)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **env}
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, said
    return False


# ── train ───────────────────────────────────────────────────────────────────────────────────────────────────────────

OPTIONS = ["--algo", "bc", "--env", "none", "--steps", "20000", "--log-every", "100", "--checkpoint-every", "200"]
OPTIONS += ["--actor-hidden-dim", "8", "--batch-size", "8", "--quiet"]


def bits(run: aspc.Run) -> tuple[str, str]:
    weights = b"".join(array.tobytes() for _, array in sorted(run.policy.arrays.items()))
    return hashlib.sha256(weights).hexdigest(), (run.path / "metrics.csv").read_text()


def readable(path: Path) -> int:
    """Check that the folder of a killed run is readable; return the step of the newest checkpoint."""
    if not (path / "config.json").exists():
        with pytest.raises(AspcError, match="There is no run"):
            aspc.Run(path)
        return 0
    if (path / CHECKSUMS).exists():
        verify(path)
    run = aspc.Run(path)
    steps = run.metrics.get("step", np.zeros(0))
    assert (np.diff(steps) > 0).all()
    assert run.result is None or run.result["steps"] == 20_000
    if list(path.glob("policy/*/weights.safetensors")):
        assert np.isfinite(run.policy.act(np.zeros(4))).all()
    whole = [int(f.name) for f in (path / "checkpoints").glob("*") if f.name.isdigit()]
    return max(whole, default=0)


def test_kills_of_train_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    rng, logs = random.Random(0), write_logs(tmp_path / "logs.npz")
    assert main(["train", str(logs), "--out", str(tmp_path / "whole"), *OPTIONS]) == 0
    expected = bits(aspc.Run(tmp_path / "whole"))
    out, kills, ends, saved = tmp_path / "run0", 0, 0, 0
    while kills < TRAIN_KILLS:
        start = ["--resume", out, "--quiet"] if (out / "config.json").exists() else [logs, "--out", out, *OPTIONS]
        if killed(["train", *start], rng.uniform(0.5, 12)):
            kills += 1
            step = readable(out)
            assert step >= saved  # what was saved stays saved
            saved = step
        if (out / "result.json").exists():  # ended, or killed while it drew its figure
            assert bits(aspc.Run(out)) == expected
            ends, saved, out = ends + 1, 0, tmp_path / f"run{ends + 1}"
    if (out / "config.json").exists():
        assert main(["train", "--resume", str(out), "--quiet"]) == 0
        assert bits(aspc.Run(out)) == expected
        ends += 1
    assert ends >= 1


# ── download ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Slow(http.server.BaseHTTPRequestHandler):
    """Sends a body slowly, from the requested offset."""

    body = b""
    ranges: list[int]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        start = int(re.sub(r"\D", "", self.headers.get("Range", "0")))
        self.ranges.append(start)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.body) - start))
        self.send_header("ETag", '"same"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        self.end_headers()
        try:
            for at in range(start, len(self.body), 1 << 16):
                self.wfile.write(self.body[at : min(at + (1 << 16), len(self.body))])
                time.sleep(0.03)
        except OSError:  # the reader was killed
            pass


@contextmanager
def slow_server(body: bytes) -> Iterator[tuple[str, list[int]]]:
    handler = type("Handler", (Slow,), {"body": body, "ranges": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.ranges
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


UNPINNED = "maze2d-umaze-v1"  # no SHA-256 is published for it, so that other bytes can stand in for it


def test_kills_of_a_download_leave_no_partial_file(tmp_path: Path) -> None:
    rng, numbers = random.Random(1), np.random.default_rng(0)
    rows = 60_000
    with h5py.File(tmp_path / "body.hdf5", "w") as file:
        file["observations"] = numbers.normal(size=(rows, 16)).astype(np.float32)
        file["actions"] = numbers.uniform(-1, 1, (rows, 2)).astype(np.float32)
        file["rewards"] = numbers.normal(size=rows).astype(np.float32)
        file["terminals"] = np.zeros(rows, bool)
        file["timeouts"] = np.arange(rows) % 1000 == 999
    body = (tmp_path / "body.hdf5").read_bytes()
    resumed = kills = 0
    with slow_server(body) as (base, ranges):
        cache = tmp_path / "data0"
        while kills < DOWNLOAD_KILLS:
            env = {"ASPC_MIRRORS": base, "ASPC_DATA": str(cache), "no_proxy": "*"}
            was_killed = killed(["data", "download", UNPINNED], rng.uniform(0.3, 4), **env)
            kills += was_killed
            found = list(cache.rglob("maze2d-umaze-sparse-v1.hdf5"))
            assert all(path.read_bytes() == body for path in found)
            if not was_killed:
                assert len(found) == 1
                cache = tmp_path / f"data{kills}"
        assert not killed(["data", "download", UNPINNED], 300, **{**env, "ASPC_DATA": str(cache)})
        resumed = sum(start > 0 for start in ranges)
    assert [path.read_bytes() == body for path in cache.rglob("maze2d-umaze-sparse-v1.hdf5")] == [True]
    assert resumed >= 1  # at least one download was resumed


# ── export ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_kills_of_export_leave_complete_files_or_none(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    rng = random.Random(2)
    run = aspc.train(make_dataset(), "bc", out=tmp_path / "run", **SHORT)
    before = load_policy(run.path).act(np.ones(4))
    targets = {"numpy": tmp_path / "numpy", "onnx": tmp_path / "policy.onnx", "stablehlo": tmp_path / "p.stablehlo"}
    whole: dict[str, dict[str, bytes]] = {}
    for form, target in targets.items():
        assert main(["export", str(run.path), "--format", form, "--out", str(target)]) == 0
        whole[form] = contents(target)
    kills = 0
    while kills < EXPORT_KILLS:
        form = rng.choice(list(targets))
        kills += killed(
            ["export", run.path, "--format", form, "--out", targets[form], "--force"], rng.uniform(0.2, 4.0)
        )
        found = contents(targets[form])
        assert not found or found.keys() == whole[form].keys()
        if form == "numpy" and found:
            with np.load(targets[form] / "weights.npz", allow_pickle=False) as arrays:
                assert all(np.isfinite(arrays[name]).all() for name in arrays.files)
        elif form == "stablehlo" and found:
            np.testing.assert_allclose(load_stablehlo(targets[form])(np.ones((1, 4)))[0], before, rtol=1e-5)
        elif found:
            assert found == whole[form]
    np.testing.assert_array_equal(load_policy(run.path).act(np.ones(4)), before)
    for form, target in targets.items():
        assert main(["export", str(run.path), "--format", form, "--out", str(target), "--force"]) == 0


def contents(target: Path) -> dict[str, bytes]:
    if target.is_dir():
        return {file.name: file.read_bytes() for file in target.iterdir()}
    return {"": target.read_bytes()} if target.exists() else {}
