"""The HTML of the page and the errors of the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("plotly", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from pages import DATASETS, read_page, write_report
from synthetic import MAIN, NECESSITY, Variant, make

from aspc.__main__ import main
from aspc.lab import results


def test_page_is_one_file_that_loads_nothing(page_path: Path) -> None:
    text = page_path.read_text("utf-8")
    own = text[: text.index("<script>")] + text[text.rindex("<script>") :]  # without plotly.js
    assert "http://" not in own
    assert "https://" not in own
    assert "default-src 'none'" in own
    assert [p.name for p in page_path.parent.iterdir()] == ["index.html"]


def test_claim_card_lists_missing_runs(tmp_path: Path) -> None:
    """All checks hold, but the claim is open and shows one of them."""
    make(tmp_path / "r", "own", [MAIN[0], MAIN[-1]], DATASETS[:2], seeds=3, points=5, noise=0.1)
    text = read_page(write_report(tmp_path / "r", tmp_path / "out", "--no-figures"))
    assert list(re.findall(r'<h3 class="verdict \w+">(.*?) <b>', text)) == [
        "Holds", "Does not hold", "Open: not enough data"
    ]  # fmt: skip
    card = text[text.index('id="claim-best_on_locomotion_and_mazes"') :].partition("</details>")[0]
    assert '<li class="holds">' in card
    assert "<p>Missing: runs on Maze2d; runs of A2PR, IQL, wPC and ReBRAC.</p>" in card


def test_claim_card_shows_contradiction_by_the_paper(page_path: Path) -> None:
    cards = re.findall(r'<details class="claim \w+" id="claim-(\w+)">(.*?)</details>', read_page(page_path))
    assert [name for name, card in cards if "<abbr" in card] == ["profile_above"]
    cautions = {name: re.findall(r'<p class="caution">(.*?)</p>', card) for name, card in cards}
    assert [name for name, found in cautions.items() if found] == ["profile_above"]
    (caution,) = cautions["profile_above"]
    assert caution.startswith("The paper&#39;s own Table 1 does not support this:")
    assert caution.endswith("at or above ReBRAC&#39;s: 72.1 % of thresholds).")


def test_figures_are_written_as_png_and_svg(tmp_path: Path) -> None:
    make(tmp_path / "r", "main_table", MAIN, DATASETS[1:], seeds=2, points=6)
    make(tmp_path / "r", "necessity", NECESSITY, ["$x$-{y}-own"], seeds=1, points=3)
    text = read_page(write_report(tmp_path / "r", tmp_path / "out"))
    names = "profiles improvement radar learning_curves q_curves bc_loss_curves alpha_by_quality alpha_by_task"
    for name in f"{names} ablations runtime last_and_best".split():
        assert (tmp_path / "out" / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (tmp_path / "out" / "figures" / f"{name}.svg").read_text()[:1000]
        assert f"figures/{name}.svg" in text


def test_suites_and_charts_name_their_source(paper_page: Path) -> None:
    text = read_page(paper_page)
    assert "<h3>Table 1, figure 2 of the paper · 39 datasets, six algorithms · main_table</h3>" in text
    others = ["Table 2 of the paper · Alpha: naive, converged, linear and dynamic · necessity"]
    by_k_alpha = "Seconds per million steps, by update interval of alpha"
    others += [f"Figure 5b, time of the paper · {by_k_alpha} · k_alpha_runtime"]
    others += ["Figure 9, appendix E.1 of the paper · ASPC with advantage-weighted BC on AntMaze and Adroit · aspc_aw"]
    assert re.findall(r'<details><summary>([^<]*)</summary><p class="note">2 seeds per dataset', text) == others
    captions = {
        chart: caption
        for caption, chart in re.findall(
            r"<figcaption>(.*?)</figcaption><div class=\"plot\" data-chart=\"(.*?)\"", text
        )
    }
    parts = {"profiles": "Figure 2", "curve-score": "Figures 8 and 10", "curve-scale": "Figure 7"}
    parts |= {"curve-q": "Figure 10", "curve-bc_loss": "Figure 10", "quality-0": "Figures 3 and 7"}
    parts |= {"task-0": "Figures 4 and 7", "runtime": "Figure 5a", "intervals": "Figure 5b", "dataset-0": "Figure 9"}
    for chart, part in parts.items():
        assert captions[chart].endswith(f"{part}</span>"), chart
    assert "no diamond for MuJoCo, where the paper’s numbers cover more datasets" in captions["ablation-0"]


def test_variants_have_names_for_readers(paper_page: Path) -> None:
    text = read_page(paper_page)
    table = text[text.index('<table class="scores sortable" data-s="necessity">') :].partition("</thead>")[0]
    assert re.findall(r"</i>(.*?)</button>", table) == [
        "alpha fixed at 2.5 (TD3+BC)",
        "alpha fixed at ASPC&#39;s final value",
        "alpha linear to ASPC&#39;s final value",
        "alpha learned (ASPC)",
    ]


def test_page_lists_the_sources_of_published_numbers(paper_page: Path) -> None:
    text = read_page(paper_page)
    section = text[text.index("<h3>Sources of published numbers</h3>") :].partition("</section>")[0]
    assert "The paper’s numbers (Table 1): Tan, Li, Yao, Ban, Yuan, Fang and Xu: Adaptive Scaling" in section
    assert "IQL in Table 1, copied by the paper’s authors: Tarasov" in section


@pytest.mark.parametrize(
    ("seeds", "words", "counts"), [((3, 3), "3 seeds", set()), ((3, 2), "2 to 3 seeds", {"2 seeds"})]
)
def test_seeds_are_counted_where_they_differ(
    tmp_path: Path, seeds: tuple[int, int], words: str, counts: set[str]
) -> None:
    for variant, n in zip((MAIN[0], MAIN[-1]), seeds, strict=True):
        make(tmp_path / "r", "own", [variant], DATASETS[:2], seeds=n, points=4)
    text = read_page(write_report(tmp_path / "r", tmp_path / "out", "--no-figures"))
    assert f'<p class="note">{words} per dataset and algorithm' in text
    body = re.search('<table class="scores.*?<tbody>(.*?)</tbody>', text)[1]
    assert set(re.findall("[0-9] seeds?(?=</small>)", body)) == counts
    tile = words.replace(" seeds", "")
    assert f"<b>{tile}</b><span>seeds per number</span>" in text


def test_number_has_the_standard_deviation_as_title(paper_page: Path) -> None:
    text = read_page(paper_page)
    titles = re.findall(r'title="2 seeds, 1,000,000 steps(.*?)"', text)
    assert titles
    assert all(re.fullmatch(r"; standard deviation over seeds ± [\d.]+", title) for title in titles)
    assert "which is not an interval of the mean" in text


def test_lead_mentions_overlapping_intervals(tmp_path: Path) -> None:
    both, score = (Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc")), lambda label, _: 70.0 + len(label) / 10
    make(tmp_path / "r", "main_table", both, ("hopper-medium-v2", "walker2d-medium-v2"), score=score, noise=9.0)
    text = read_page(write_report(tmp_path / "r", tmp_path / "out", "--no-figures"))
    assert re.search(
        r"ranks first with .*, ahead of (ASPC|TD3\+BC) with [\d.]+; their intervals overlap\. A run of .* Of the paper",
        text,
    )


def test_lead_compares_on_common_datasets(tmp_path: Path) -> None:
    """ASPC is better on common datasets, and also has runs on a hard one."""
    ours, other = Variant("ASPC", "aspc"), Variant("TD3+BC", "td3_bc")
    easy, hard = ("hopper-medium-v2", "walker2d-medium-v2"), "halfcheetah-random-v2"
    score = lambda label, dataset: 2.0 if dataset == hard else {"ASPC": 80.0, "TD3+BC": 70.0}[label]  # noqa: E731
    make(tmp_path / "r", "main_table", (ours,), (*easy, hard), score=score, noise=0.1)
    make(tmp_path / "r", "main_table", (other,), easy, score=score, noise=0.1)
    page = write_report(tmp_path / "r", tmp_path / "out", "--no-figures")
    text = read_page(page)
    assert "By interquartile mean over 2 datasets, <strong>ASPC</strong> ranks first with 8" in text
    assert "ahead of TD3+BC with 7" in text
    assert "A run of ASPC beats a run of TD3+BC with probability 1.00 (1.00 to 1.00)." in text
    assert "their intervals overlap" not in text
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    lasts = {label: last for _, label, last, _, _ in data["lastBest"]}
    assert lasts == {"ASPC": pytest.approx(80, abs=0.5), "TD3+BC": pytest.approx(70, abs=0.5)}


def test_summary_comes_first_with_robust_statistics_per_domain(tmp_path: Path) -> None:
    mazes = ("maze2d-umaze-v1", "maze2d-medium-v1", "maze2d-large-v1")
    score = lambda label, dataset: {"ASPC": 80.0, "TD3+BC": 70.0, "IQL": 60.0}[label] + len(dataset)  # noqa: E731
    datasets = (*mazes, "hopper-medium-v2")
    make(tmp_path / "r", "main_table", [MAIN[0], MAIN[-1]], datasets, score=score, noise=0.1, points=5)
    make(tmp_path / "r", "main_table", [MAIN[2]], mazes[:1], score=score, noise=0.1, points=5)
    text = read_page(write_report(tmp_path / "r", tmp_path / "out", "--no-figures"))
    assert re.findall(r'<section id="(\w+)">', text)[:3] == ["overall", "scores", "claims"]
    section = text[text.index('<section id="overall">') : text.index('<section id="scores">')]
    assert "The 95 % intervals account for variation between datasets and between seeds" in section
    names = re.findall("<h3>(.*?)</h3>", section)
    assert names == ["MuJoCo · hopper-medium-v2", "Maze2d · 3 datasets", "All domains · 4 datasets"]
    *_, overall = re.findall("<table.*?</table>", section)
    assert re.findall("<button>(.*?)</button>", overall) == [
        "Algorithm", "Interquartile mean", "P(ASPC is better)", "Mean", "ASPC − algorithm, mean",
        "ASPC − algorithm, median over datasets",
    ]  # fmt: skip
    row = overall[overall.index('<tr data-series="TD3+BC">') :]
    iqm, chance, mean, difference, median = map(float, re.findall(r'data-value="([-\d.]+)"', row)[:5])
    assert iqm == pytest.approx(mean, abs=0.5)
    assert (chance, difference, median) == (1.0, pytest.approx(10, abs=0.2), pytest.approx(10, abs=0.2))
    assert "Not in the overall comparison, because they have too few datasets: IQL." in section


def test_interval_needs_three_seeds_and_checks_name_few_datasets(tmp_path: Path) -> None:
    make(tmp_path / "r", "own", [MAIN[0], MAIN[-1]], DATASETS[:1], seeds=2, points=5, noise=0.1)
    text = read_page(write_report(tmp_path / "r", tmp_path / "out", "--no-figures"))
    body = re.search('<table class="scores.*?<tbody>(.*?)</tbody>', text)[1]
    assert set(re.findall("<small>(.*?)</small></span>", body)) == {"2 seeds"}
    assert f"(too few seeds for an interval; {DATASETS[0]} only)" in text
    make(tmp_path / "r", "own", [MAIN[0], MAIN[-1]], DATASETS[:1], seeds=3, points=5, noise=0.1)
    text = read_page(write_report(tmp_path / "r", tmp_path / "out", "--no-figures"))
    body = re.search('<table class="scores.*?<tbody>(.*?)</tbody>', text)[1]
    assert all(re.fullmatch(r"[\d.]+ to [\d.]+", ends) for ends in re.findall("<small>(.*?)</small></span>", body))
    assert re.search(rf"[\d.]+ to [\d.]+; {DATASETS[0]} only\)", text)


@pytest.mark.parametrize("seeds", [1, 2])
def test_minimal_results(tmp_path: Path, seeds: int) -> None:
    """One algorithm on one unknown dataset, without a score or a curve."""
    row = {
        "run_id": "a",
        "suite": "s",
        "variant": "mine",
        "algo": "own",
        "dataset": "plant",
        "steps": 1,
        "status": "done",
    }
    rows = [{**row, "run_id": f"r{seed}", "seed": seed, "return_last": -3.0} for seed in range(seeds)]
    results.write_part(tmp_path / "r", "p", rows, [])
    text = read_page(write_report(tmp_path / "r", tmp_path / "out"))
    assert "On plant, <strong>mine</strong> scores −3.0" in text


def test_missing_package_is_reported_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aspc.lab.commands.report.REQUIRED_PACKAGES", ("pandas", "no_such_package"))
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'aspc[report]'" in capsys.readouterr().err


def test_invalid_results_give_a_one_sentence_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "r", "own", MAIN[:1], DATASETS[:1], seeds=1, points=3)
    part = next((tmp_path / "r" / "curves").iterdir())
    part.write_bytes(part.read_bytes()[:200])
    assert main(["report", str(tmp_path / "r"), "--out", str(tmp_path / "out"), "--quiet"]) == 2
    message = capsys.readouterr().err
    assert "not a valid Parquet file" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert main(["report"]) == 2
    assert "Pass at least one result folder" in capsys.readouterr().err
