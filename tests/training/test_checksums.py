"""Checksums of run folders: damage is detected, and an interrupted run never looks damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aspc
from aspc.__main__ import main
from aspc.errors import AspcError, ExternalFailure
from aspc.interrupts import Interrupted
from aspc.training import checksums
from aspc.training.checkpoints import CheckpointStore
from aspc.training.checksums import verify
from aspc.training.run_folder import CHECKSUMS, Row, RowFile, read_rows
from aspc.training.trainer import Trainer
from tiny import Counting, make_dataset

SMALL = {"actor_hidden_dim": 8, "batch_size": 8, "log_every": 20, "checkpoint_every": 20, "tensorboard": False}
SHORT = {**SMALL, "steps": 60, "eval_every": 40, "eval_episodes": 1, "env": Counting, "quiet": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return aspc.train(make_dataset(), "bc", out=tmp_path_factory.mktemp("whole") / "run", **SHORT).path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return shutil.copytree(whole, tmp_path / "run")


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


FILES = [
    "config.json",
    "metrics.csv",
    "evaluations.csv",
    "result.json",
    "status.json",
    "policy/seed0/weights.safetensors",
    "policy/seed0/policy.json",
]


def test_a_finished_run_is_verified(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(run) == (len(FILES), 60, True)
    assert main(["verify-run", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}: {len(FILES)} files and 2 checkpoints match their checksums.\n"


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_any_file_is_detected(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    content = (run / name).read_bytes()
    for at in np.random.default_rng(0).integers(0, len(content) - 1, 5):
        flip(run / name, int(at))
        with pytest.raises(ExternalFailure, match=re.escape(name)):
            verify(run)
        (run / name).write_bytes(content)
    verify(run)
    (run / name).unlink()
    assert main(["verify-run", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"missing or have changed: {name}" in line


def test_every_changed_digit_of_the_metrics_is_detected(run: Path) -> None:
    text, numbers = (run / "metrics.csv").read_text(), read_rows(run / "metrics.csv")
    places = [i for i, letter in enumerate(text) if letter.isdigit() and i > text.index("\n")]
    assert len(places) > 50
    noticed = 0
    for i in places:
        (run / "metrics.csv").write_text(f"{text[:i]}{(int(text[i]) + 1) % 10}{text[i + 1 :]}")
        try:
            verify(run)
        except ExternalFailure:
            noticed += 1
        else:
            assert read_rows(run / "metrics.csv") == numbers  # another way to write the same number
    assert noticed > 0.9 * len(places)


def test_rows_added_to_a_finished_run_are_detected(run: Path) -> None:
    with open(run / "metrics.csv", "a") as file:
        file.write((run / "metrics.csv").read_text().splitlines()[-1].replace("60,", "80,", 1) + "\n")
    with pytest.raises(ExternalFailure, match=r"metrics\.csv"):
        verify(run)


def test_a_damaged_run_is_not_evaluated(run: Path) -> None:
    """Safetensors has no checksum, so a changed weight looks valid."""
    weights = run / "policy" / "seed0" / "weights.safetensors"
    assert len(aspc.evaluate(run, 1, env="maze2d-umaze")) == 1
    flip(weights, weights.stat().st_size - 3)
    assert np.isfinite(aspc.load_policy(run).act(np.zeros(4))).all()
    with pytest.raises(ExternalFailure, match="weights"):
        aspc.evaluate(run, 1, env="maze2d-umaze")


def test_a_damaged_run_is_not_resumed(run: Path) -> None:
    flip(run / "metrics.csv", (run / "metrics.csv").stat().st_size - 3)
    with pytest.raises(ExternalFailure, match=r"metrics\.csv"):
        aspc.train(make_dataset(), resume=run, steps=80, env=Counting, quiet=True)
    (run / CHECKSUMS).unlink()  # as the message says, for those who changed it themselves
    assert aspc.train(make_dataset(), resume=run, steps=80, env=Counting, quiet=True).result is not None
    assert verify(run).step == 80


def test_a_run_of_an_older_version_is_readable(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / CHECKSUMS).unlink()
    assert len(aspc.evaluate(run, 1, env="maze2d-umaze")) == 1
    assert main(["verify-run", str(run)]) == 2
    assert "has no checksums.json: it is not a run" in capsys.readouterr().err


def test_changed_values_in_a_checkpoint_are_detected(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Written with Orbax, so that the format is valid."""
    import tensorstore

    base = {"driver": "file", "path": f"{run / 'checkpoints' / '60' / 'default'}/"}
    name = "actor_opt[0].count"
    spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f".{name}/"}}
    array = tensorstore.open(spec).result()
    array.write(array.read().result() + 1).result()
    with pytest.raises(AspcError, match="60 is damaged: its values do not match its checksum"):
        aspc.train(make_dataset(), resume=run, steps=80, env=Counting, quiet=True)
    assert main(["verify-run", str(run)]) == 2
    assert "60 is damaged" in capsys.readouterr().err


def test_a_checkpoint_of_an_older_version_has_no_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import orbax.checkpoint as ocp

    save = ocp.CheckpointManager.save
    with monkeypatch.context() as older:
        older.setattr(
            ocp.CheckpointManager,
            "save",
            lambda self, step, args, force, custom_metadata: save(self, step, args=args, force=force),
        )
        aspc.train(make_dataset(), "bc", out=tmp_path / "run", **SHORT)
    assert main(["verify-run", str(tmp_path / "run")]) == 0
    assert "Checkpoints without a checksum, from an older version: 2." in capsys.readouterr().out
    aspc.train(make_dataset(), resume=tmp_path / "run", steps=80, env=Counting, quiet=True)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../secret": "x"}},
        {"files": {"/etc/passwd": "x"}},
        {"files": []},
        {"tables": {"metrics.csv": None}},
        {"prefixes": {"metrics.csv": {"bytes": 10**18, "sha256": "x"}}},
        {"prefixes": {"metrics.csv": 5}},
        {"step": "x"},
        {"finished": None},
        {"format": 2},
    ],
)
def test_invalid_checksums_are_rejected(run: Path, change: dict[str, Any]) -> None:
    content = json.loads((run / CHECKSUMS).read_text())
    (run / CHECKSUMS).write_text(json.dumps({**content, **change}))
    with pytest.raises(AspcError) as refusal:
        verify(run)
    assert "\n" not in str(refusal.value)


# ── while it is written ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def verified_at_every_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Verify the run before and after every change of its folder, as if it were killed then."""
    seen: list[str] = []

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **more: Any) -> Any:
            check(f"before {name}")
            answer = original(*arguments, **more)
            check(f"after {name}")
            return answer

        monkeypatch.setattr(owner, name, wrapped)

    def check(when: str) -> None:
        if (tmp_path / "run" / CHECKSUMS).exists():
            verify(tmp_path / "run")
            seen.append(when)

    for owner, name in ((os, "replace"), (RowFile, "append"), (CheckpointStore, "save"), (Trainer, "_save_policies")):
        wrap(owner, name)
    return seen


def test_a_kill_at_any_write_leaves_a_run_that_verifies(
    tmp_path: Path, verified_at_every_write: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start, stop, resume from a checkpoint that is older than the rows, and train longer."""
    data, out = make_dataset(), tmp_path / "run"
    look_at = Trainer._process_chunk

    def stop(self: Trainer, chunk: Any) -> None:
        look_at(self, chunk)
        if chunk.end == 20:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as stopping:
        stopping.setattr(Trainer, "_process_chunk", stop)
        with pytest.raises(Interrupted):
            aspc.train(data, "bc", out=out, **SHORT)
    assert not verify(out).finished
    newest = max(int(path.name) for path in (out / "checkpoints").iterdir())
    shutil.rmtree(out / "checkpoints" / str(newest))  # as if its writing had not ended: its rows and checksums had
    verify(out)
    aspc.train(data, resume=out, env=Counting, quiet=True)
    assert verify(out) == (len(FILES), 60, True)
    aspc.train(data, resume=out, steps=100, env=Counting, quiet=True)
    assert verify(out) == (len(FILES), 100, True)
    assert {"before replace", "after append", "after save"} <= set(verified_at_every_write)


def test_new_columns_keep_the_checksum_of_rows(tmp_path: Path) -> None:
    table = RowFile(tmp_path / "metrics.csv")
    table.append([{"step": 1, "seed": 0, "loss": 0.1}])
    before = table.record(1)
    more: Row = {"scale": 2.5, "step": 2, "seed": 0, "loss": 0.2}
    table.append([more])
    assert checksums._digest_rows(tmp_path / "metrics.csv", 1).matches(before)
    after = table.record(2)
    assert checksums._digest_rows(tmp_path / "metrics.csv", 2).matches(after)
    assert not checksums._digest_rows(tmp_path / "metrics.csv", 2).matches(before)
    reopened = RowFile(tmp_path / "metrics.csv", 1)
    assert checksums._digest_rows(tmp_path / "metrics.csv", 1).matches(before)
    reopened.append([more])
    assert reopened.record(2) == after


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see what is flushed")
def test_rows_are_on_disk_before_their_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    save = CheckpointStore.save
    monkeypatch.setattr(CheckpointStore, "save", lambda self, *a: (events.append("checkpoint"), save(self, *a))[1])
    aspc.train(make_dataset(), "bc", out=tmp_path / "run", **{**SHORT, "env": None})
    for i in (i for i, event in enumerate(events) if event == "checkpoint"):
        before = events[:i]
        assert "metrics.csv" in before
        written = max(j for j, event in enumerate(before) if event.startswith(".checksums.json"))
        assert before[:written][::-1].index("metrics.csv") < 3  # flushed right before it
