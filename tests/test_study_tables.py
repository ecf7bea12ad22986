"""docs/study.md, docs/aspc_plus.md: their tables come from results by one command, and are what the committed results
give."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import registries

ROOT = Path(__file__).parents[1]


def page(*sections: str) -> str:
    return "before\n" + "".join(f"<!-- study: {name} -->\n\nold\n\n<!-- end -->\n" for name in sections)


PAGE = page("ran", "claims", "averages", "datasets", "steps", "ablations", "curves", "search")
PLUS = page("kinds", "datasets")
TUNE = ("hopper-random", "maze2d-medium")
REPORT = ("hopper-medium", "maze2d-large")


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The script, and the maker of synthetic results."""
    with registries.restored():
        yield modules_of("study_tables", "synthetic")


@pytest.fixture(scope="module")
def comparing() -> tuple[ModuleType, ModuleType]:
    """The script that compares results, and the maker of synthetic ones."""
    return modules_of("same_results", "synthetic")


def modules_of(*names: str) -> Any:
    places = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "report")]
    sys.path[:0] = places
    try:
        return tuple(importlib.import_module(name) for name in names)
    finally:
        del sys.path[: len(places)]


def score(label: str, dataset: str) -> float:
    return {"ASPC": 80.0, "TD3+BC": 60.0, "discount = 0.995": 90.0, "alpha0 = 10": 5.0}[label]


@pytest.fixture(scope="module")
def filled(modules: tuple[ModuleType, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page from synthetic results in two folders, with the search's runs beside the study's."""
    study_tables, synthetic = modules
    folder = tmp_path_factory.mktemp("results")
    pair = (synthetic.Variant("ASPC", "aspc"), synthetic.Variant("TD3+BC", "td3_bc"))
    datasets = ("hopper-medium", "hopper-expert", "maze2d-large")
    synthetic.make(folder / "study", "study_a", pair, datasets, score=score, noise=0.5)
    candidates = (
        pair[0],
        synthetic.Variant("discount = 0.995", "aspc", discount=0.995),
        synthetic.Variant("alpha0 = 10", "aspc", alpha=10.0),
    )
    synthetic.make(folder / "search", "search", candidates, (*TUNE, *REPORT), score=score, noise=0.5, steps=300_000)
    text = made_again(study_tables, folder)["study"]
    assert study_tables.filled(text, study_tables.read(folder)) == text
    return text


def made_again(study_tables: ModuleType, folder: Path) -> dict[str, str]:
    """Both documents, made from the results of a folder by the command."""
    pages = {"study": PAGE, "aspc_plus": PLUS}
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text)
    assert study_tables.main([str(folder), "--docs", str(folder)]) == 0
    return {name: (folder / f"{name}.md").read_text() for name in pages}


def section(text: str, name: str) -> str:
    return text.partition(f"<!-- study: {name} -->")[2].partition("<!-- end -->")[0]


def line(text: str, start: str) -> list[str]:
    """The cells of the only line that starts so."""
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_claims_have_a_number_an_interval_and_a_verdict(filled: str) -> None:
    claims = section(filled, "claims")
    assert "\nold\n" not in filled
    assert line(claims, "`best_on_locomotion_and_mazes` | ASPC − TD3+BC on MuJoCo")[-1] == "**holds**"
    *_, here, verdict = line(claims, "`beats_td3_bc` | ASPC's")
    assert here == "0 of 2 checks hold. Missing: runs on AntMaze and Adroit."
    assert verdict == "not enough data"
    measured = line(claims, "`beats_td3_bc` | ASPC − TD3+BC")
    value, low, high = (float(x) for x in measured[3].replace("[", "").replace("]", "").replace(",", "").split()[:3])
    assert measured[2] == "3"  # datasets
    assert low < value < high
    assert value == pytest.approx(20, abs=1.5)
    assert line(claims, "`holds_on_ogbench`")[-1] == "not run"
    *_, here, verdict = line(claims, "`scale_by_task` | On Adroit")
    assert here == "1 of 1 checks hold. Missing: runs on Adroit and AntMaze."
    assert verdict == "not enough data"


def test_variants_of_the_search_are_no_part_of_the_study(filled: str) -> None:
    assert "discount" not in section(filled, "claims")
    averages = section(filled, "averages")
    assert float(line(averages, "ASPC |")[-1].split()[0]) == pytest.approx(80, abs=1.5)
    assert averages.count("Not run yet.") == 8  # five ablations, three tiers


def test_each_ablation_has_a_table_over_the_datasets_that_it_has_run_on(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    study_tables, synthetic = modules
    naive, dynamic = synthetic.Variant("naive", "td3_bc"), synthetic.Variant("dynamic", "aspc")
    every = synthetic.Variant("k_alpha = 1", "aspc", k_alpha=1)
    same = synthetic.Variant("L1+L2+L3", "aspc")
    values = {"naive": 40.0, "dynamic": 50.0, "L1+L2+L3": 50.0, "k_alpha = 1": 60.0}
    both = ("hopper-medium", "maze2d-large")
    for variants, datasets in (((naive, same, dynamic), both), ((every,), ("hopper-medium",))):
        synthetic.make(tmp_path, "study_b", variants, datasets, score=lambda label, _: values[label], noise=0.5)
    text = study_tables.filled(PAGE, study_tables.read(tmp_path))
    averages, ablations = section(text, "averages"), section(text, "ablations")
    alpha, interval = (
        averages.partition(f"### Tier b: {title}")[2].partition("###")[0]
        for title in ("how alpha is set", "steps between updates of alpha")
    )
    assert line(alpha, "variant") == ["variant", "MuJoCo (1)", "Maze2d (1)", "all (2)"]
    assert [float(cell.split()[0]) for cell in line(alpha, "naive")[1:]] == pytest.approx([40] * 3, abs=1)
    assert line(interval, "variant") == ["variant", "MuJoCo (1)"]  # with one domain its average says it all
    assert float(line(interval, "k_alpha = 1 |")[1].split()[0]) == pytest.approx(60, abs=1)
    hopper, maze = (part for part in ablations.split("\n\n") if part.startswith("|"))
    assert "(" not in line(hopper, "naive")[1]  # its alpha is not learned
    assert float(line(hopper, "dynamic")[1].split()[0]) == pytest.approx(50, abs=1)
    assert float(line(hopper, "k_alpha = 1")[1].split("(")[1].strip(")")) == pytest.approx(5.6, abs=0.3)
    assert "k_alpha" not in maze
    assert ablations.count("| dynamic") == 2
    assert "L1+L2+L3" not in ablations  # the same runs


def test_the_way_up_is_the_sum_of_all_learning_rates(modules: tuple[ModuleType, ModuleType]) -> None:
    softplus, n = lambda raw: np.log1p(np.exp(raw)), 300_000 // 20
    rates = 2e-3 * 0.01 ** (np.arange(n) / n)
    for share in (1.0, 0.5, -0.1):
        end = softplus(np.log(np.expm1(2.5)) + share * rates.sum())
        run = pd.Series({"algo": "aspc", "settings": "{}", "steps": 300_000, "scale_last": end})
        assert modules[0].rise_share(run) == pytest.approx(share, rel=1e-4)


def test_averages_are_taken_at_every_evaluation(filled: str) -> None:
    rows = [row.split("|")[1:-1] for row in section(filled, "steps").splitlines() if row.startswith("| ")][2:]
    assert len(rows) > 3
    assert [float(cell.split()[0]) for cell in rows[-1][1:]] == pytest.approx([80, 60] * 2, abs=1.5)  # two domains
    assert float(rows[0][2].split()[0]) < float(rows[-1][2].split()[0])


def test_every_dataset_has_a_line_with_the_scale(filled: str) -> None:
    row = line(section(filled, "datasets"), "hopper-expert |")
    assert [float(cell.split()[0]) for cell in row[1:]] == pytest.approx([64, 80, 60, 1.0, -9], abs=2)


def test_a_page_without_aspc_says_what_there_is(modules: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    study_tables, synthetic = modules
    other = (synthetic.Variant("TD3+BC", "td3_bc"),)
    synthetic.make(tmp_path / "study", "study_a", other, ("hopper-expert",), score=score, noise=0.5)
    text = study_tables.filled(PAGE, study_tables.read(tmp_path))
    assert line(section(text, "datasets"), "hopper-expert |")[3:] == ["–", "–"]
    assert study_tables.picture(study_tables.read(tmp_path)) is None


def test_the_picture_has_a_panel_for_each_domain_and_one_for_alpha(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    """A pair that ends alike on one dataset, and apart both ways on two."""
    study_tables, synthetic = modules
    pair = (synthetic.Variant("ASPC", "aspc"), synthetic.Variant("TD3+BC", "td3_bc"))
    ends = {"hopper-medium": 50.0, "hopper-expert": 90.0, "maze2d-large": 10.0}
    made = {"score": lambda label, name: ends[name] if label == "ASPC" else 50.0, "noise": 0.1}
    synthetic.make(tmp_path / "study", "study_a", pair, tuple(ends), **made)
    assert "Not run yet." in made_again(study_tables, tmp_path)["aspc_plus"]
    assert not (tmp_path / "images" / "aspc_plus.png").exists()
    assert (tmp_path / "images" / "study.png").read_bytes().startswith(b"\x89PNG")
    figure = Figure()
    axes = figure.subplots()
    study = study_tables.read(tmp_path)
    study_tables.draw_alphas(axes, study.study.curves, study_tables.main_pair(study))
    drawn = [drawn.get_color() for drawn in axes.lines if len(drawn.get_xdata())]
    assert sorted(drawn) == sorted([study_tables.BLUE, study_tables.ORANGE, study_tables.GREY])


def test_curves_are_said_in_numbers(filled: str, modules: tuple[ModuleType, ModuleType]) -> None:
    evaluations = pd.DataFrame(
        {"run_id": ["a", "b"] * 3, "step": [10, 10, 20, 20, 100, 100], "score": [0.0, 1.0, 30.0, 40.0, 50.0, 20.0]}
    )
    assert modules[0].swing(evaluations) == ("20.0 to 50.0", "20.0")  # 10 steps are before a fifth of training
    alphas = pd.DataFrame({"step": [5, 5, 50, 50, 100], "scale": [2.0, 3.0, 4.0, 5.0, 9.0]})
    assert modules[0].scale_on_its_way(alphas) == ("2.000", "2.5", "4.5")
    assert modules[0].scale_on_its_way(alphas.assign(scale=float("nan"))) == ("–", "–", "–")
    rows = section(filled, "curves")
    lowest = line(rows, "hopper-expert | ASPC")[3]
    assert float(lowest) == pytest.approx(80, abs=2)
    assert line(rows, "hopper-expert | TD3+BC")[4:] == ["–", "–", "–", "–"]


def test_the_search_chooses_on_one_half_and_judges_on_the_other(filled: str) -> None:
    search = section(filled, "search")
    assert f"The highest average has **discount = 0.995**, on the {len(TUNE)} of 10 datasets that all have." in search
    assert "discount = 0.995 is better than ASPC: " in search
    assert f"points on {len(REPORT)} of 11 datasets of the half that judges." in search
    assert "was looked at with 2 candidates of this length" in search
    assert "(97.50 % instead of 95 %, Bonferroni) it is " in search
    leads = line(search.partition("Against ASPC")[2], "discount = 0.995")[1:]
    assert [float(cell.split()[0]) for cell in leads] == pytest.approx([10, 10], abs=1.5)
    rows = search.partition("On every dataset")[2]
    for half, names in (("chooses", TUNE), ("judges", REPORT)):
        for name in names:
            row = line(rows, f"{name} |")
            assert row[1] == half
            first, second = (float(cell.split(" (α ")[0]) for cell in row[2:4])
            assert second - first == pytest.approx(10, abs=3)  # one dataset's means over seeds


def test_a_candidate_that_has_not_run_on_a_dataset_has_no_number_there(
    modules: tuple[ModuleType, ModuleType],
) -> None:
    half = {"ASPC": {"hopper-medium": np.array([1.0, 3.0])}, "other": {"hopper-expert": np.array([9.0])}}
    rows = modules[0].dataset_by_dataset({"chooses": half}, {"ASPC": {"hopper-medium": np.array([4.0, 5.0])}})
    assert line(rows, "hopper-medium")[2:] == ["2.0 (α 4.5)", "–"]
    assert line(rows, "hopper-expert")[2:] == ["–", "9.0"]


def test_what_ran_is_counted(filled: str, modules: tuple[ModuleType, ModuleType]) -> None:
    ran = section(filled, "ran")
    assert line(ran, "`study_a`")[2:4] == ["168", "0"]  # synthetic runs have other names than the study's
    assert "Device: cpu. Machine: synthetic." in ran


def test_finished_runs_of_the_study_are_counted_with_the_time_of_their_groups(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    study_tables, synthetic = modules
    synthetic.make(tmp_path, "study_a", (synthetic.Variant("ASPC", "aspc"),), ("hopper-expert",), seeds=3, points=2)
    found = study_tables.read(tmp_path)
    names = sorted(study_tables.planned("study_a").runs)[:3]
    facts = {"group_id": ["one", "one", "two"], "seconds": [1800.0, 1800.0, 900.0], "status": ["done"] * 2 + ["failed"]}
    real = replace(found, study=replace(found.study, runs=found.study.runs.assign(run_id=names, **facts)))
    assert line(study_tables.what_ran(real), "`study_a`")[2:] == ["168", "2", "1", "0.75"]


def test_long_runs_of_the_search_are_not_mixed_with_short_ones(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    study_tables, synthetic = modules
    variants = (synthetic.Variant("ASPC", "aspc"), synthetic.Variant("other", "aspc", discount=0.9))
    for steps, lead in ((300_000, -10.0), (1_000_000, 10.0)):
        scores = {"ASPC": 50.0, "other": 50.0 + lead}.__getitem__
        how = {"score": lambda label, _, scores=scores: scores(label), "noise": 0.5, "steps": steps}
        synthetic.make(tmp_path, "search", variants, (*TUNE, *REPORT), **how)
    short, long = section(study_tables.filled(PAGE, study_tables.read(tmp_path)), "search").split("### 1,000,000 steps")
    assert short.strip().startswith("### 300,000 steps")
    assert "**ASPC**" in short
    assert "other is better than ASPC" in long
    for text, lead in ((short, -10), (long, 10)):
        cell = line(text.partition("Against ASPC")[2], "other")[1]
        assert float(cell.split()[0].replace("−", "-")) == pytest.approx(lead, abs=1.5)


def test_candidates_are_compared_with_all_runs_of_a_tier_that_the_search_declares(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    """Where a sitting was asked for the candidates alone: they have two seeds, the tier's runs four."""
    study_tables, synthetic = modules
    slower, datasets = synthetic.Variant("scale lr × 0.3", "aspc", scale_lr=6e-4), (*TUNE, *REPORT)
    synthetic.make(tmp_path, "study_a", [synthetic.Variant("ASPC", "aspc")], datasets, score=lambda *_: 50.0)
    synthetic.make(tmp_path, "candidates_long", [slower], datasets, score=lambda *_: 70.0, seeds=2)
    found = study_tables.results.read(tmp_path)
    plan = study_tables.planned("study_a")
    real = {(r.dataset, r.seed): name for name, r in plan.runs.items() if plan.entry_of(name).variant == "ASPC"}
    tier = found.runs[found.runs["suite"] == "study_a"]
    names = {run.run_id: real[run.dataset, run.seed] for run in tier.itertuples()}
    for_real = {name: table.replace({"run_id": names}) for name, table in found.tables().items()}
    entries = study_tables.with_planned_entries(replace(found, **for_real)).entries
    runs = entries[(entries["suite"] == "candidates_long") & entries["run_id"].isin(names.values())]
    assert set(runs["variant"]) == {"ASPC"}
    assert len(runs) == 4 * len(datasets)


def test_the_search_chooses_nothing_without_a_dataset_that_all_have_run_on(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    study_tables, synthetic = modules
    for settings, datasets in (({}, ("hopper-random", *REPORT)), ({"alpha": 10.0}, ("maze2d-medium", *REPORT))):
        label = "alpha0 = 10" if settings else "ASPC"
        synthetic.make(tmp_path, "search", [synthetic.Variant(label, "aspc", **settings)], datasets, points=2)
    text = study_tables.filled(PAGE, study_tables.read(tmp_path))
    assert "No dataset of the half that chooses has been run with all of them yet." in section(text, "search")


def test_a_candidate_that_has_just_begun_takes_no_datasets_from_the_others(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    study_tables, synthetic = modules
    plain, other, begun = (
        synthetic.Variant(label, "aspc", discount=d) for label, d in (("ASPC", 0.99), ("other", 0.9), ("begun", 0.8))
    )
    chooses = (*TUNE, "hopper-medium-replay")
    every = {"ASPC": 50.0, "other": 60.0, "begun": 90.0}
    how = {"score": lambda label, _: every[label], "noise": 0.5}
    synthetic.make(tmp_path, "search", (plain, other), (*chooses, *REPORT), **how)
    synthetic.make(tmp_path, "search", (begun,), (chooses[0], *REPORT), **how)
    search = section(study_tables.filled(PAGE, study_tables.read(tmp_path)), "search")
    assert f"The highest average has **other**, on the {len(chooses)} of 10 datasets that all have." in search
    assert "too few of their datasets have run: begun." in search
    leads = line(search.partition("Against ASPC")[2], "begun")[1:]
    assert [cell.split()[-1] for cell in leads] == ["(1)", f"({len(REPORT)})"]


def test_trials_have_a_table_of_their_own_and_are_no_candidates(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    study_tables, synthetic = modules
    study_tables.planned(study_tables.TRIAL)  # loads the plugin that declares them
    label = study_tables.suites.get(study_tables.TRIAL).blocks[0].variants[-1].label
    variants = (synthetic.Variant("ASPC", "aspc"), synthetic.Variant("other", "aspc", discount=0.9))
    synthetic.make(tmp_path, "search", variants, (*TUNE, *REPORT), points=2)
    trial = synthetic.Variant(label, "aspc", discount=0.8)
    synthetic.make(tmp_path, study_tables.TRIAL, (trial,), ("maze2d-medium",), score=lambda *_: 99.0, noise=0.5)
    search, trials = section(study_tables.filled(PAGE, study_tables.read(tmp_path)), "search").split("### Trials")
    assert label not in search
    assert float(line(trials, f"`{label}`")[3].split()[0]) == pytest.approx(99, abs=1)


def test_a_page_without_a_section_is_refused(modules: tuple[ModuleType, ModuleType]) -> None:
    with pytest.raises(SystemExit, match="no section 'claims'"):
        modules[0].filled(PAGE.replace("study: claims", "study: clams"), modules[0].read(Path("nowhere")))


def test_aspc_plus_is_held_against_both_on_the_same_datasets(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    study_tables, synthetic = modules
    means = {"ASPC": 50.0, "TD3+BC": 40.0, study_tables.WINNER: 70.0}
    variants = [
        *(synthetic.Variant("ASPC", "aspc"), synthetic.Variant("TD3+BC", "td3_bc")),
        synthetic.Variant(study_tables.WINNER, "aspc", outer_batch="independent"),
    ]
    long = {"score": lambda label, _: means[label], "noise": 0.5, "steps": 1_000_000}
    for some, datasets in ((variants, (*TUNE, *REPORT)), (variants[:2], ("walker2d-expert",))):
        synthetic.make(tmp_path, "candidates_long", some, datasets, **long)
    text = made_again(study_tables, tmp_path)["aspc_plus"]
    kinds, datasets = section(text, "kinds"), section(text, "datasets")
    for kind, how_many in (("random", 1), ("Maze2d", 2), ("**all**", 4), ("**the half that judges**", 2)):
        row = line(kinds, f"{kind} ({how_many})")
        assert [float(cell.split()[0]) for cell in row[1:]] == pytest.approx([40, 50, 70, 20, 30], abs=1.5)
    assert "expert" not in kinds  # ASPC+ has not run there
    assert [float(cell.split()[0]) for cell in line(datasets, "hopper-medium")[1:4]] == pytest.approx(
        [40, 50, 70], abs=1
    )
    assert (tmp_path / "images" / "aspc_plus.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["study", "aspc_plus"])
def test_the_document_is_what_the_committed_results_give(modules: tuple[ModuleType, ModuleType], name: str) -> None:
    document, (sections, _) = (ROOT / "docs" / f"{name}.md").read_text("utf-8"), modules[0].DOCUMENTS[name]
    assert modules[0].filled(document, modules[0].read(ROOT / "results"), sections) == document


# ── runs made again ─────────────────────────────────────────────────────────────────────────────────────────────────


def compare(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = script.main([str(folder / "recorded"), str(folder / "again")])
    return code, capsys.readouterr().out.splitlines()


def test_runs_made_again_are_the_recorded_ones(
    comparing: tuple[ModuleType, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, synthetic = comparing
    variants = [synthetic.Variant("TD3+BC", "td3_bc")]
    synthetic.make(tmp_path / "recorded", "study_a", variants, ("hopper-medium", "hopper-expert"), points=10)
    synthetic.make(tmp_path / "again", "study_a", variants, ("hopper-medium",), points=10)
    same = ["4 runs are in both, with 40 points of curves.", "0 runs and 0 points differ."]
    assert compare(script, tmp_path, capsys) == (0, same)


def test_a_changed_last_bit_of_a_run_made_again_is_seen(
    comparing: tuple[ModuleType, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, synthetic = comparing
    variants, names = [synthetic.Variant("TD3+BC", "td3_bc")], ("hopper-medium", "hopper-expert")
    synthetic.make(tmp_path / "recorded", "study_a", variants, names, points=10, score=lambda *_: 50.0, noise=0)
    bits = {"hopper-medium": float(np.nextafter(50.0, np.inf)), "hopper-expert": 50.0}
    synthetic.make(tmp_path / "again", "study_a", variants, names, points=10, score=lambda _, name: bits[name], noise=0)
    code, (_, said) = compare(script, tmp_path, capsys)
    assert code == 1
    assert said.startswith("4 runs and ")  # of the eight runs those of one dataset


def test_a_point_or_a_run_that_was_not_recorded_is_seen(
    comparing: tuple[ModuleType, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, synthetic = comparing
    variants = [synthetic.Variant("TD3+BC", "td3_bc")]
    synthetic.make(tmp_path / "recorded", "study_a", variants, ("hopper-medium",), points=5)
    synthetic.make(tmp_path / "again", "study_a", variants, ("hopper-expert",), points=5)
    assert compare(script, tmp_path, capsys) == (1, ["No run is in both."])
    synthetic.make(tmp_path / "again", "study_a", variants, ("hopper-medium",), points=5)
    assert compare(script, tmp_path, capsys)[0] == 0
    for part in (tmp_path / "again" / "curves").glob("*.parquet"):  # all but the last points of each curve
        curves = pd.read_parquet(part)
        curves[curves["step"] < curves["step"].max()].to_parquet(part)
    code, (_, said) = compare(script, tmp_path, capsys)
    assert (code, said) == (1, "0 runs and 4 points differ.")
