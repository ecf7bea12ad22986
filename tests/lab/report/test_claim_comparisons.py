"""The runs that claims compare, and the checks on the paper's own numbers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from claim_cases import (
    A2PR,
    ANT,
    ASPC,
    CASES,
    HOPPER,
    LADDER,
    MAZE,
    OGBENCH,
    PEN,
    TD3_BC,
    by_label,
    case_view,
    check_case,
)
from synthetic import MAIN, Shape, Variant, make, read_view

from aspc.lab import results
from aspc.lab.paper_tables import tables
from aspc.lab.report import paper_results
from aspc.lab.report.claims import benchmark, learned_scale, registry, runtime
from aspc.lab.report.claims.comparisons import SAME_RUNTIME, band_widths
from aspc.lab.report.claims.vocabulary import FAILS, HOLDS, OPEN
from aspc.lab.report.datasets import D4RL
from aspc.lab.report.methods import method


def test_modified_runs_do_not_affect_claims(tmp_path: Path) -> None:
    """Even if they are longer, better and slower than plain ASPC."""
    both, score = (ASPC, TD3_BC), by_label(ASPC=80, wider=99)
    for steps in (300_000, 1_000_000):
        make(
            tmp_path, "own", both if steps == 300_000 else (TD3_BC,), [HOPPER], seeds=3, points=5, steps=steps, **score
        )
    alone = read_view(tmp_path)
    slow = Variant("wider", "aspc", batch_size=1024)
    make(tmp_path, "search", [slow], [HOPPER], seeds=3, points=5, shape=Shape(overhead=3.0), **score)
    extended = read_view(tmp_path)
    for claim in (benchmark.beats_td3_bc, runtime.small_overhead):
        assert claim(alone).checks
        assert claim(alone).checks == claim(extended).checks


def test_only_runs_without_concurrency_are_timed(tmp_path: Path) -> None:
    make(tmp_path, "own", (ASPC, TD3_BC), [HOPPER], seeds=2, points=5)
    view = read_view(tmp_path)
    together = replace(view, runs=view.runs.assign(runs_together=2))
    assert runtime.small_overhead(view).checks
    assert runtime.small_overhead(together).checks == ()
    assert "timed alone on the same dataset" in runtime.small_overhead(together).missing


def test_time_is_compared_on_one_machine(tmp_path: Path) -> None:
    """CPU devices have the same name on all machines."""
    make(tmp_path, "own", (ASPC, TD3_BC), [HOPPER], seeds=2, points=5)
    view = read_view(tmp_path)
    server = view.runs["machine"].where(view.runs["algo"] == "aspc", "a server with 64 cores")
    assert runtime.small_overhead(replace(view, runs=view.runs.assign(machine=server))).checks == ()


def test_much_faster_run_does_not_have_the_same_runtime(tmp_path: Path) -> None:
    case = CASES["long_interval_is_free"]
    timed = check_case(case, tmp_path, {**case.holds, "shape": Shape(overhead=-0.5)}).checks[0]
    assert timed.estimate.value < -SAME_RUNTIME
    assert timed.verdict == FAILS


def test_runs_of_different_lengths_are_not_compared(tmp_path: Path) -> None:
    make(tmp_path, "long", [ASPC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 90)
    make(tmp_path, "short", [TD3_BC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 50, steps=1000)
    assert benchmark.beats_td3_bc(read_view(tmp_path)).checks == ()
    make(tmp_path, "short_too", [ASPC], [HOPPER], seeds=2, points=5, score=lambda label, dataset: 40, steps=1000)
    (difference, _) = benchmark.beats_td3_bc(read_view(tmp_path)).checks
    assert difference.estimate.value == pytest.approx(-10, abs=4)


def test_polygon_ignores_returns(tmp_path: Path) -> None:
    case = CASES["largest_polygon"]
    view = case_view(case, tmp_path, case.holds)
    assert HOPPER in case.datasets
    other, options = "hopper-expert", {"seeds": 3, "points": 10, "noise": 0.4, **case.given}
    make(tmp_path, "returns", MAIN, [other], **options, **case.fails, measure="return")
    claim = case.claim(read_view(tmp_path))
    assert claim.checks == case.claim(view).checks


def test_polygon_needs_runs_of_the_same_length(tmp_path: Path) -> None:
    case = CASES["largest_polygon"]
    make(tmp_path, "long", [ASPC], case.datasets, seeds=2, points=5, score=lambda *_: 90)
    rivals = [variant for variant in MAIN if variant.algo != "aspc"]
    make(tmp_path, "short", rivals, case.datasets, seeds=2, points=5, score=lambda *_: 50, steps=1000)
    claim = case.claim(read_view(tmp_path))
    assert claim.checks == ()
    assert "the same number of steps" in claim.missing


@pytest.mark.parametrize("name", ["rises_faster", "one_setting_degrades"])
def test_returns_are_not_averaged_with_scores(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    view = case_view(case, tmp_path, case.holds)
    assert case.claim(view).verdict == HOLDS
    worse = {**case.fails, "measure": "return"}
    options = {"seeds": 3, "points": 10, "noise": 0.4, **case.given, **worse}
    make(tmp_path, "plant", case.variants, ("plant.csv",), **options)
    assert case.claim(read_view(tmp_path)).checks == case.claim(view).checks


def test_tuned_runs_of_different_lengths_are_not_compared(tmp_path: Path) -> None:
    for variant, steps in ((Variant("ReBRAC", "rebrac"), 1000), (Variant("tuned", "rebrac", beta1=0.05), 1_000_000)):
        make(tmp_path, "own", [variant], [HOPPER], seeds=2, points=5, steps=steps)
    assert benchmark.one_setting_degrades(read_view(tmp_path)).checks == ()


def test_alpha_is_compared_at_the_same_length(tmp_path: Path) -> None:
    for name, steps in zip(LADDER, (1000, 1000, 1000, 1_000_000), strict=True):
        make(tmp_path, "own", [ASPC], [name], seeds=2, points=5, steps=steps)
    assert learned_scale.smaller_on_better_data(read_view(tmp_path)).checks == ()
    make(tmp_path, "own", [ASPC], LADDER[2:3], seeds=2, points=5)
    (one,) = learned_scale.smaller_on_better_data(read_view(tmp_path)).checks
    assert one.datasets == (LADDER[2], LADDER[3])


def test_final_alpha_needs_runs_as_long_as_the_papers(tmp_path: Path) -> None:
    make(tmp_path, "own", [ASPC], [MAZE], seeds=2, points=5, steps=300_000)
    claim = learned_scale.scale_by_task(read_view(tmp_path))
    assert claim.checks == ()
    assert "after a million steps" in claim.missing


def test_final_alpha_on_adroit_uses_expert_data(tmp_path: Path) -> None:
    """As in the suite of Figure 4: alpha differs on human data."""
    for name, alpha in (("pen-expert-v1", 0.1), ("pen-human-v1", 3.0)):
        make(tmp_path, "own", [ASPC], [name], seeds=2, points=5, alpha=lambda _, alpha=alpha: alpha)
    (one,) = learned_scale.scale_by_task(read_view(tmp_path)).checks
    assert one.datasets == ("pen-expert-v1",)


def test_late_collapse_needs_runs_as_long_as_the_papers(tmp_path: Path) -> None:
    make(tmp_path, "own", [ASPC], [HOPPER], seeds=3, points=5, steps=600)
    claim = benchmark.no_late_collapse(read_view(tmp_path))
    assert claim.checks == ()
    assert "and a million steps" in claim.missing
    make(tmp_path, "own", [ASPC], [HOPPER], seeds=3, points=5)
    assert benchmark.no_late_collapse(read_view(tmp_path)).scope == f" on {HOPPER} only"
    make(tmp_path, "own", [ASPC], LADDER, seeds=3, points=5)
    assert benchmark.no_late_collapse(read_view(tmp_path)).scope == " on MuJoCo"


def test_claims_about_d4rl_ignore_other_data(tmp_path: Path) -> None:
    case = CASES["drops_then_rises"]
    view = case_view(case, tmp_path, case.holds)
    make(tmp_path, "own", (ASPC,), (OGBENCH,), seeds=3, **case.given, **case.fails)
    assert case.claim(read_view(tmp_path)).checks == case.claim(view).checks


def test_a2pr_is_compared_with_one_setting(tmp_path: Path) -> None:
    """As in the paper, which compares ReBRAC with its per-dataset settings."""
    tuned_rebrac = Variant("ReBRAC, tuned", "rebrac", beta1=0.05)
    for tuned, plain in ((Variant("A2PR, tuned", "a2pr", vae_lr=1e-4), A2PR), (tuned_rebrac, Variant("R", "rebrac"))):
        make(tmp_path, "own", [plain], [HOPPER], seeds=2, points=5, score=lambda *_: 40.0)
        make(tmp_path, "own", [tuned], [HOPPER], seeds=2, points=5, score=lambda *_: 80.0)
    view = read_view(tmp_path)
    assert view.runs_of(method("a2pr"))["last"].mean() == pytest.approx(40, abs=5)
    assert view.runs_of(method("rebrac"))["last"].mean() == pytest.approx(80, abs=5)


def test_bands_are_distances_from_the_mean_over_seeds(tmp_path: Path) -> None:
    """Two seeds with 0, 2 and 2, 6 are 1 and 2 away from their mean, hence √2 · 1.5; the third step is not shared."""
    rows, curves = [], []
    for seed, scores in enumerate(((0.0, 2.0, 50.0), (2.0, 6.0))):
        run = {"run_id": f"r{seed}", "suite": "s", "variant": "ASPC", "algo": "aspc", "dataset": HOPPER, "seed": seed}
        rows.append({**run, "steps": 300, "status": "done", "score_last": scores[-1]})
        curves += [{"run_id": f"r{seed}", "step": 100 * (i + 1), "score": x} for i, x in enumerate(scores)]
    results.write_part(tmp_path, "p", rows, curves)
    view = read_view(tmp_path)
    assert band_widths(view, view.runs, "score") == {HOPPER: pytest.approx([1.5 * 2**0.5] * 2)}
    alone = view.runs[view.runs["seed"] == 0]
    assert band_widths(view, alone, "score") == {}


def test_tasks_are_separated_by_distances_between_datasets() -> None:
    """hopper-medium at 0: 3.5 to the mazes at 3 and 4, less 1 to hopper-expert. Pen is alone in its task."""
    scales = {"hopper-medium-v2": [0.0], "hopper-expert-v2": [1.0], "maze2d-umaze-v1": [3.0], "maze2d-large-v1": [4.0]}
    arrays = {name: np.array(values) for name, values in scales.items()}
    found = learned_scale.task_separation(arrays)
    assert {name: values.item() for name, values in found.items()} == {
        "hopper-medium-v2": 2.5, "hopper-expert-v2": 1.5, "maze2d-umaze-v1": 1.5, "maze2d-large-v1": 2.5,
    }  # fmt: skip
    with_pen = learned_scale.task_separation({**arrays, "pen-human-v1": np.array([-2.0])})
    assert "pen-human-v1" not in with_pen
    assert with_pen["hopper-medium-v2"].item() == pytest.approx((3 + 4 + 2) / 3 - 1)
    assert learned_scale.task_separation({n: v for n, v in arrays.items() if "hopper" in n}) == {}


@pytest.mark.parametrize(("score", "verdict"), [(96.0, HOLDS), (94.0, FAILS), (120.0, HOLDS)])
def test_short_intervals_may_cost_five_percent(score: float, verdict: str, tmp_path: Path) -> None:
    case = CASES["short_interval_is_harmless"]
    claim = check_case(case, tmp_path, {**by_label(100, k_alpha___1=score, k_alpha___5=score), "noise": 0.0})
    assert claim.verdict == verdict
    assert [check.estimate.value for check in claim.checks] == pytest.approx([score - 100] * 2, abs=0.1)


def test_profiles_are_compared_at_informative_thresholds() -> None:
    """Thresholds that all or no runs exceed do not count: only those between 96 and 102 do."""
    low_high = np.stack([np.full((2, 3), 96.0), np.full((2, 3), 102.0)], axis=-1)
    assert float(benchmark.share_above(low_high)) == 0
    assert float(benchmark.share_above(low_high[..., ::-1])) == 1
    assert np.isnan(benchmark.share_above(low_high[..., [0, 0]]))


def test_gain_on_one_of_many_datasets_is_no_average_gain(tmp_path: Path) -> None:
    """The average is higher over seeds, which agree, but not over datasets."""
    gains = dict(zip((*LADDER, MAZE, ANT, PEN), (60.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0), strict=True))
    score = lambda label, dataset: 50 + (gains[dataset] if label == "ASPC" else 0)  # noqa: E731
    make(tmp_path, "own", [ASPC, TD3_BC], gains, seeds=4, points=5, score=score, noise=0.2)
    claim = benchmark.beats_td3_bc(read_view(tmp_path))
    assert claim.checks[0].estimate.value == pytest.approx(48 / 7, abs=0.2)
    assert claim.checks[0].estimate.low < 0 < claim.checks[0].estimate.high
    assert "median difference over datasets -2.0" in claim.checks[0].description
    assert claim.verdict == OPEN


def test_polygon_is_resampled_within_tasks() -> None:
    """With equal seeds, the interval covers the datasets of the only task that has two."""
    ours = {MAZE: np.full(2, 2.0), ANT: np.full(2, 2.0), LADDER[0]: np.full(2, 4.0), LADDER[1]: np.full(2, 0.0)}
    rival = {name: np.full(3, 1.0) for name in ours}
    found = benchmark.lead_in_area(ours, [rival], ("hopper", "maze2d", "antmaze"))
    # hopper: 2 against 1, drawn as 4 or 2 (both lead) or 0 (loses one of three corners)
    assert found == (1.0, pytest.approx(1 / 3), 1.0)
    few = benchmark.lead_in_area({n: x[:1] for n, x in ours.items()}, [rival], ("hopper", "maze2d", "antmaze"))
    assert not few.has_interval


def test_averages_give_datasets_equal_weight(tmp_path: Path) -> None:
    """Although one dataset has many more seeds."""
    gap = {HOPPER: 30.0, PEN: 0.0}
    score = lambda label, dataset: 50 + (gap[dataset] if label == "ASPC" else 0)  # noqa: E731
    make(tmp_path, "many", [ASPC, TD3_BC], [HOPPER], seeds=9, points=5, score=score, noise=0.1)
    make(tmp_path, "few", [ASPC, TD3_BC], [PEN], seeds=2, points=5, score=score, noise=0.1)
    (difference, _) = benchmark.beats_td3_bc(read_view(tmp_path)).checks
    assert difference.estimate.value == pytest.approx(15, abs=0.3)


def test_claims_that_the_papers_table_contradicts() -> None:
    """Compare with shares of the 39 printed means above each threshold."""
    found = {claim.name: claim for claim in registry.check_all(paper_results.view_of_table("necessity"))}
    assert [name for name, claim in found.items() if claim.paper_contradiction] == ["profile_above"]
    numbers, rows = tables()["main_table"].numbers, tables()["main_table"].rows
    aspc, rebrac = (
        np.mean([[numbers[row, label].mean > t for t in np.linspace(0, 150, 61)] for row in rows], axis=0)
        for label in ("ASPC", "ReBRAC")
    )
    share = 100 * np.mean((aspc >= rebrac)[np.maximum(aspc, rebrac) > 0])
    assert share == pytest.approx(72.1, abs=0.1)
    text = found["profile_above"].paper_contradiction
    assert text.startswith(
        "The paper's own Table 1 does not support this: with the printed means per dataset in place of runs, "
    )
    assert text.endswith(f"at which ASPC's profile is at or above ReBRAC's: {share:.1f} % of thresholds).")


def test_contradictions_follow_the_tables_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only claims about the modified table of L3's forms change."""
    table = tables()["l3_forms"]
    worse = {key: n._replace(mean=n.mean / 2 if key[1] == "(5)" else n.mean) for key, n in table.numbers.items()}
    monkeypatch.setattr(paper_results, "tables", lambda: {**tables(), "l3_forms": table._replace(numbers=worse)})
    for cached in (paper_results.view_of_table, registry.find_contradiction):
        monkeypatch.setattr(sys.modules[cached.__module__], cached.__name__, cached.__wrapped__)
    contradictions = {
        claim.name: claim.paper_contradiction for claim in registry.check_all(paper_results.view_of_table("necessity"))
    }
    changed = {"form_five_matches_form_four", "l3_matters_little_on_adroit", "l2_inside_l3_matters"}
    assert {name for name, text in contradictions.items() if text} == {"profile_above", *changed}
    assert contradictions["form_five_matches_form_four"] == (
        "The paper's own Table 13, appendix E.2 does not support this: with the printed means per domain in place of "
        "runs, 1 of 1 checks fails (ASPC, L3 form 5 relative to ASPC: -50.0 %)."
    )


@pytest.mark.parametrize("name", tables())
def test_paper_table_as_runs_has_the_tables_averages(name: str) -> None:
    """A domain counts as many times as it has datasets, and methods are those of the claims."""
    table, view = tables()[name], paper_results.view_of_table(name)
    for domain, label in table.averages:
        runs = view.runs[(view.runs["variant"] == label) & ((view.runs["domain"] == domain) | (domain not in D4RL))]
        assert runs["last"].mean() == pytest.approx(table.recompute_average(domain, label))
    assert {"ASPC"} <= set(view.runs["method"]) or name == "integrations"


def test_claims_ignore_datasets_of_no_benchmark(tmp_path: Path) -> None:
    """Maze2d without action noise is not part of D4RL."""
    mazes = ("maze2d-umaze", "maze2d-medium", "maze2d-large")
    names = (*mazes, *(f"{name}-clean" for name in mazes))
    pair = [Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc")]
    make(tmp_path, "maze2d_recipe", pair, names, seeds=3, points=5)
    view = read_view(tmp_path)
    for claim in (
        benchmark.beats_td3_bc(view),
        benchmark.best_on_locomotion_and_mazes(view),
        learned_scale.scale_by_task(view),
    ):
        assert {name for check in claim.checks for name in check.datasets} == set(mazes)
