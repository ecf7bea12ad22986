"""The results format: round trips, merging, and errors for invalid files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from aspc.__main__ import main
from aspc.errors import AspcError
from aspc.lab import results
from aspc.lab.recorded_runs import read_recorded_runs
from aspc.lab.results import parquet

pa = pytest.importorskip("pyarrow", reason="the extra [tables] is not installed")
pq = pytest.importorskip("pyarrow.parquet")


def run_row(run_id: str = "a", **changes: Any) -> dict[str, Any]:
    row = {
        "run_id": run_id,
        "suite": "table1",
        "variant": "ASPC",
        "algo": "aspc",
        "dataset": "hopper-medium-v2",
        "seed": 0,
        "steps": 100,
        "status": "done",
        "score_last": 50.0,
        "settings": {"k_alpha": 30},
        "finished": "2026-01-01T00:00:00Z",
    }
    return {**row, **changes}


def curve_rows(run_id: str = "a", steps: tuple[int, ...] = (50, 100), **changes: Any) -> list[dict[str, Any]]:
    return [{"run_id": run_id, "step": step, "score": float(step), **changes} for step in steps]


def replace_column(path: Path, name: str, values: Any) -> None:
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), path)


def test_write_part_round_trip(tmp_path: Path) -> None:
    results.write_part(tmp_path, "p1", [run_row(score_best=float("nan"))], curve_rows())
    found = results.read(tmp_path)
    (row,) = found.runs.to_dict("records")
    assert row["run_id"] == "a"
    assert row["score_last"] == 50.0
    assert row["settings"] == '{"k_alpha": 30}'
    assert row["schema_version"] == 1
    assert row["score_best"] != row["score_best"]
    assert list(found.curves["step"]) == [50, 100]
    assert set(found.runs.columns) == set(results.RUNS)
    assert set(found.curves.columns) == set(results.CURVES)


def test_subfolders_are_read(tmp_path: Path) -> None:
    """A part with the name of a table is not a folder of results."""
    results.write_part(tmp_path / "a", "runs", [run_row("a")], curve_rows("a"))
    results.write_part(tmp_path / "b", "p", [run_row("b")], curve_rows("b"))
    results.merge([tmp_path / "b"], tmp_path / "merged")
    (tmp_path / "other").mkdir()
    assert [p.name for p in results.find_result_folders(tmp_path)] == ["a", "b", "merged"]
    assert results.find_result_folders(tmp_path / "a") == [tmp_path / "a"]
    found = results.read(tmp_path)
    assert list(found.runs["run_id"]) == ["a", "b"]
    assert list(found.curves["run_id"]) == ["a", "a", "b", "b"]
    assert len(results.find_run_tables([tmp_path])) == 3


def test_nan_in_settings_is_strict_json(tmp_path: Path) -> None:
    results.write_part(tmp_path, "p1", [run_row(config={"scale": {"target": float("nan")}})], curve_rows())
    assert list(results.read(tmp_path).runs["config"]) == ['{"scale": {"target": "nan"}}']


def test_duplicates_prefer_done_then_newest_with_their_curves(tmp_path: Path) -> None:
    late, early = "2026-02-02T00:00:00Z", "2026-01-01T00:00:00Z"
    results.write_part(tmp_path, "p1", [run_row(finished=early)], curve_rows(score=1.0))
    results.write_part(tmp_path, "p2", [run_row(finished=late, score_last=60.0)], curve_rows(score=2.0))
    failed = run_row(finished="2026-03-03T00:00:00Z", status="failed", score_last=None)
    results.write_part(tmp_path, "p3", [failed], curve_rows(steps=(10,), score=3.0))
    found = results.read(tmp_path)
    assert list(found.runs["score_last"]) == [60.0]
    assert list(found.curves["score"]) == [2.0, 2.0]


def test_merge_refuses_to_lose_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        results.write_part(tmp_path / name, "p", [run_row(name)], curve_rows(name))
    results.merge([tmp_path / "a"], tmp_path / "all")
    with pytest.raises(AspcError, match=r"1 run in .*runs\.parquet would be lost\. To keep them, also pass .*all as a"):
        results.merge([tmp_path / "b"], tmp_path / "all")
    assert list(results.read(tmp_path / "all").runs["run_id"]) == ["a"]
    results.merge([tmp_path / "all", tmp_path / "b"], tmp_path / "all")
    assert list(results.read(tmp_path / "all").runs["run_id"]) == ["a", "b"]


def test_duplicates_with_different_scores_give_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = run_row(data_fingerprint="same")
    results.write_part(tmp_path / "a", "p", [row], [])
    results.write_part(tmp_path / "b", "p", [{**row, "finished": "2026-01-02T00:00:00Z"}], [])
    results.read(tmp_path / "a", tmp_path / "b")
    assert capsys.readouterr().err == ""
    results.write_part(tmp_path / "c", "p", [{**row, "score_last": 51.0, "finished": "2025-01-01T00:00:00Z"}], [])
    found = results.read(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert capsys.readouterr().err == (
        "warning: 1 run exists more than once with different scores; the newest is used.\n"
    )
    assert found.runs["score_last"].tolist() == [50.0]
    recorded = read_recorded_runs([tmp_path / name for name in "acb"])
    assert recorded["a"].finished == "2026-01-02T00:00:00Z"  # a bench uses the same one


def test_merge_is_idempotent(tmp_path: Path) -> None:
    results.write_part(tmp_path / "x", "p", [run_row("a"), run_row("b", seed=1)], curve_rows("a") + curve_rows("b"))
    results.write_part(tmp_path / "y", "p", [run_row("c", seed=2)], [])
    merged = results.merge([tmp_path / "x", tmp_path / "y"], tmp_path / "m")
    again = results.read(tmp_path / "m", tmp_path / "x", tmp_path / "m")
    assert again.runs.equals(merged.runs)
    assert again.curves.equals(merged.curves)
    assert list(again.runs["run_id"]) == ["a", "b", "c"]
    results.merge([tmp_path / "m"], tmp_path / "m")
    assert results.read(tmp_path / "m").runs.equals(merged.runs)


def test_a_run_has_an_entry_in_each_of_its_suites(tmp_path: Path) -> None:
    results.write_part(tmp_path, "p", [run_row("a"), run_row("b", seed=1)], [])
    results.write_entries(tmp_path, "necessity", [("necessity", "dynamic", "a"), ("necessity", "dynamic", "unknown")])
    results.merge([tmp_path], tmp_path / "m")
    for found in (results.read(tmp_path), results.read(tmp_path / "m"), results.read(tmp_path, tmp_path / "m")):
        entries = found.entries[["suite", "variant", "run_id"]].to_numpy().tolist()
        assert entries == [["necessity", "dynamic", "a"], ["table1", "ASPC", "a"], ["table1", "ASPC", "b"]]


def test_files_without_fingerprints_are_read(tmp_path: Path, capsys: Any) -> None:
    results.write_part(tmp_path / "old", "p", [run_row()], curve_rows())
    path = tmp_path / "old" / "runs" / "p.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["data_fingerprint"]), path)
    results.write_part(tmp_path / "new", "p", [run_row(data_fingerprint="f1")], curve_rows())
    merged = results.merge([tmp_path / "old"], tmp_path / "m")
    assert merged.runs["data_fingerprint"].isna().all()
    assert list(merged.runs.columns) == list(results.RUNS)
    assert len(results.read(tmp_path / "m", tmp_path / "new").runs) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["results", "report"])
def test_runs_on_different_data_give_a_warning(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    rows = [run_row("a", data_fingerprint="f1"), run_row("b", seed=1, data_fingerprint="f1")]
    results.write_part(tmp_path / "x", "p", [*rows, run_row("w", dataset="walker2d", data_fingerprint="f3")], [])
    failed = run_row("w", dataset="walker2d", status="failed", data_fingerprint="f4")  # its data was fixed since
    results.write_part(tmp_path / "y", "p", [run_row("c", seed=2, data_fingerprint="f2"), failed], [])
    results.write_part(tmp_path / "z", "p", [run_row("a", data_fingerprint="f2")], [])
    if command == "report":  # stop after reading
        content = pytest.importorskip("aspc.lab.report.content")
        monkeypatch.setattr(content, "build", lambda *_: (_ for _ in ()).throw(AspcError("Enough.")))

    def read_warnings(*folders: str) -> str:
        main([command, *(str(tmp_path / folder) for folder in folders)])
        return "".join(line for line in capsys.readouterr().err.splitlines(keepends=True) if "warning" in line)

    assert read_warnings("x") == read_warnings("y") == ""
    expected = "warning: not all runs on hopper-medium-v2 used the same data (see data_fingerprint)"
    assert read_warnings("x", "y").startswith(f"{expected}. Read")
    both = read_warnings("x", "z")
    assert both.startswith(expected)
    assert "(1 run exists with different data; the newest is used)" in both


def test_curves_without_runs_are_ignored(tmp_path: Path) -> None:
    results.write_part(tmp_path, "p1", [run_row()], curve_rows())
    results.write_part(tmp_path, "p2", [run_row("b")], curve_rows("b"))
    (tmp_path / "runs" / "p2.parquet").unlink()
    assert set(results.read(tmp_path).curves["run_id"]) == {"a"}


@pytest.mark.parametrize(
    ("runs", "curves", "words"),
    [
        ([run_row(color="red")], [], "unknown column 'color'"),
        ([run_row(seed=None)], [], "without the required column 'seed'"),
        ([run_row(score_last="high")], [], "wrong type"),
        ([run_row()], curve_rows("b"), "refer to an unknown run: 'b'"),
    ],
)
def test_invalid_rows_are_rejected(tmp_path: Path, runs: list[Any], curves: list[Any], words: str) -> None:
    with pytest.raises(AspcError, match=words):
        results.write_part(tmp_path, "p", runs, curves)
    assert not list(tmp_path.rglob("runs/*.parquet"))


@pytest.mark.parametrize("name", ["../p", "a/b", "", ".hidden"])
def test_invalid_part_names_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(AspcError, match="Invalid name"):
        results.write_part(tmp_path, name, [run_row()], [])


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def damage_version(path: Path) -> None:
    replace_column(path, "schema_version", [2])


def damage_columns(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["algo", "seed"]), path)


def damage_type(path: Path) -> None:
    replace_column(path, "score_last", ["fifty"])


def damage_status(path: Path) -> None:
    replace_column(path, "status", ["perhaps"])


def damage_null(path: Path) -> None:
    replace_column(path, "dataset", pa.array([None], pa.string()))


def damage_text(path: Path) -> None:
    replace_column(path, "config", ["x" * (parquet.MAX_CELL_LENGTH + 1)])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_truncate, "not a valid Parquet file"),
        (damage_version, "format version 2, but this version of aspc reads format version 1"),
        (damage_columns, "missing columns required in the runs table: algo, seed"),
        (damage_type, "'score_last' must contain numbers"),
        (damage_status, "'done' or 'failed', not 'perhaps'"),
        (damage_null, "required column 'dataset' is empty in 1 row"),
        (damage_text, "longer than 4,000,000 characters"),
    ],
)
def test_invalid_files_give_one_line_errors(tmp_path: Path, capsys: Any, damage: Any, words: str) -> None:
    results.write_part(tmp_path, "good", [run_row("b")], curve_rows("b"))
    results.write_part(tmp_path, "bad", [run_row()], curve_rows())
    damage(tmp_path / "runs" / "bad.parquet")
    assert main(["results", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert "bad.parquet" in message
    assert message.count("\n") == 1


def test_flipped_bits_are_detected(tmp_path: Path) -> None:
    results.write_part(tmp_path, "p", [run_row()], curve_rows())
    path = tmp_path / "curves" / "p.parquet"
    content = path.read_bytes()
    # The checksum or the decoder must detect each flipped bit; no other value may be read.
    for i in range(4, 400, 7):
        path.write_bytes(content[:i] + bytes([content[i] ^ 0x10]) + content[i + 1 :])
        try:
            scores = list(results.read(tmp_path).curves["score"])
        except AspcError:
            continue
        assert scores == [50.0, 100.0]


def test_too_many_rows_are_rejected_before_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.write_part(tmp_path, "p", [run_row()], curve_rows())
    monkeypatch.setattr(parquet, "MAX_ROWS", 1)
    with pytest.raises(AspcError, match=r"curves/p.parquet has 2 rows"):
        results.read(tmp_path)


def test_compressed_text_that_is_huge_in_memory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_COLUMN_LENGTH", 100_000)
    config = "x" * 1000
    results.write_part(tmp_path, "p", [run_row(str(i), config=config) for i in range(200)], [])
    assert (tmp_path / "runs" / "p.parquet").stat().st_size < 20_000
    with pytest.raises(AspcError, match="GB of text"):
        results.read(tmp_path)


@pytest.mark.parametrize(
    ("made", "words"), [(False, "Result folder .*none does not exist"), (True, "contains no results")]
)
def test_missing_results_are_an_error(tmp_path: Path, made: bool, words: str) -> None:
    folder = tmp_path / "none"
    if made:
        folder.mkdir()
    with pytest.raises(AspcError, match=words):
        results.read(folder)


def test_results_command_prints_merges_and_exports(tmp_path: Path, capsys: Any) -> None:
    failed = run_row("b", seed=1, status="failed", score_last=None, error="out of memory\nmore")
    results.write_part(tmp_path / "r", "p", [run_row(), failed], curve_rows())
    assert main(["results", str(tmp_path / "r"), "--out", str(tmp_path / "m"), "--csv", str(tmp_path / "c")]) == 0
    output = capsys.readouterr().out
    assert "2 runs (1 done, 1 failed), 1 dataset, 2 curve points" in output
    assert "failed: b: out of memory" in output
    assert len(results.read(tmp_path / "m").runs) == 2
    head, *rows = (tmp_path / "c" / "runs.csv").read_text().splitlines()
    assert head.startswith("schema_version,run_id,suite,variant")
    assert len(rows) == 3  # the failed run's error has two lines
    assert (tmp_path / "c" / "curves.csv").read_text().count("\n") == 3


def test_csv_export_escapes_formulas(tmp_path: Path, capsys: Any) -> None:
    cells = ["=cmd|' /C calc'!A0", "+1+cmd", "-2+cmd", "@SUM(A1)", "\t=1", "\r=1", "a\r=1"]
    rows = [run_row(f"r{i}", variant=cell, error=cell, status="failed") for i, cell in enumerate(cells)]
    kept = ["-5", "+1.5e3", "-inf", "plain", "a=b"]
    rows += [run_row(f"k{i}", variant=cell, score_last=-1.5) for i, cell in enumerate(kept)]
    results.write_part(tmp_path / "r", "p", rows, [])
    assert main(["results", str(tmp_path / "r"), "--csv", str(tmp_path / "c")]) == 0
    with open(tmp_path / "c" / "runs.csv", newline="") as file:
        written = {row["run_id"]: row for row in csv.DictReader(file)}
    for i, cell in enumerate(cells):
        safe = cell.replace("\r", "\n") if cell[0] == "a" else f"'{cell}".replace("\r", "\n")
        assert written[f"r{i}"]["variant"] == written[f"r{i}"]["error"] == safe
    assert b"\r" not in (tmp_path / "c" / "runs.csv").read_bytes()
    for i, cell in enumerate(kept):
        assert (written[f"k{i}"]["variant"], written[f"k{i}"]["error"]) == (cell, "")
        assert written[f"k{i}"]["score_last"] == "-1.5"
    with open(tmp_path / "c" / "entries.csv", newline="") as file:
        assert f"'{cells[0]}" in {row["variant"] for row in csv.DictReader(file)}


def test_summary_separates_lengths_and_counts_shared_runs_per_suite(tmp_path: Path, capsys: Any) -> None:
    long = run_row("b", steps=200, score_last=70.0)
    results.write_part(tmp_path, "p", [run_row("a"), long], curve_rows())
    results.write_entries(tmp_path, "p", [("table2", "dynamic", "b")])
    assert main(["results", str(tmp_path)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(*words[:4], words[7]) for words in shown] == [
        ("table1", "ASPC", "100", "1", "50.0"),
        ("table1", "ASPC", "200", "1", "70.0"),
        ("table2", "dynamic", "200", "1", "70.0"),
    ]


def test_every_column_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    for columns in results.TABLES.values():
        for name, column in columns.items():
            assert f"| `{name}` | {column.kind} |" in text
