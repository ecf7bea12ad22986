"""Content and legibility of the figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

import matplotlib as mpl
from matplotlib.colors import to_hex
from synthetic import MAIN, NECESSITY, Shape, Variant, make

from aspc.lab import results
from aspc.lab.report import content, drawing, plots, statistics

HOPPER, CHEETAH, MAZES = (
    "hopper-medium-v2",
    "halfcheetah-medium-v2",
    [f"maze2d-{s}-v1" for s in ("umaze", "medium", "large")],
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[content.ReportContent, dict[str, Any]]]:
    """Content of a report and its figures."""
    folder = tmp_path_factory.mktemp("results")
    few = {"seeds": 2, "points": 6}
    make(
        folder, "main_table", [MAIN[0], MAIN[-1]], [HOPPER, "hopper-expert-v2", CHEETAH, *MAZES, "pen-human-v1"], **few
    )
    make(folder, "necessity", NECESSITY, [HOPPER, *MAZES], **few)
    weighted = Variant("ASPC+AW", "aspc_aw")
    make(folder, "aspc_aw", [MAIN[-1], weighted], ["pen-human-v1"], **few)
    make(folder, "k_alpha_runtime", [Variant("k_alpha = 30", "aspc", k_alpha=30)], [CHEETAH], **few)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "REPETITIONS", 20)
        found = content.build(results.read(folder))
    mpl.use("Agg")
    with mpl.rc_context(drawing.RC_PARAMS):
        figures = dict(plots.draw_figures(found))
        for figure in figures.values():
            figure.draw_without_rendering()
        yield found, figures


def test_log_axis_labels_are_plain_and_do_not_overlap(
    drawn: tuple[content.ReportContent, dict[str, Any]],
) -> None:
    _, figures = drawn
    logarithmic = [axes for figure in figures.values() for axes in figure.axes if axes.get_yscale() == "log"]
    assert len(logarithmic) == 4  # hopper, halfcheetah; maze2d, pen
    for axes in logarithmic:
        labels = [label for label in axes.get_yticklabels(which="both") if label.get_text()]
        assert 2 <= len(labels) <= 10
        assert all(float(label.get_text()) > 0 for label in labels)
        boxes = [label.get_window_extent() for label in labels]
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))


def test_axis_of_a_narrow_range_has_ticks(tmp_path: Path) -> None:
    """A logarithmic axis from 2.4 to 2.6 would have none."""
    make(tmp_path, "own", MAIN[-1:], MAZES, seeds=2, points=6, alpha=lambda name: 0.0, shape=Shape(drop=0.0))
    found = content.build(results.read(tmp_path))
    with mpl.rc_context(drawing.RC_PARAMS):
        figure = plots.plot_alpha_by_task(found)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 3


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.09, 12, [0.1, 1, 10]),
        (0.9, 25, [1, 2, 5, 10, 20]),
        (1.2, 4.2, [1.5, 2, 3, 4]),
        (1e-12, 1e9, [10.0**n for n in range(-12, 10, 3)]),
    ],
)
def test_log_ticks_are_few_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert drawing.log_ticks(low, high) == pytest.approx(ticks)


def test_ablations_have_an_axis_per_domain(drawn: tuple[content.ReportContent, dict[str, Any]]) -> None:
    """A large difference on mazes must not flatten those on locomotion."""
    found, figures = drawn
    necessity = next(a for a in found.ablations if "dynamic" in a.group.title)
    assert necessity.domains == ("MuJoCo", "Maze2d", "Total")
    panels = {axes.get_xlabel().partition(",")[0]: axes for axes in ablation_panels(found, figures)}
    assert set(panels) == set(necessity.domains)
    for domain, axes in panels.items():
        heights = [bar.get_height() for bar in axes.patches]
        assert heights == [necessity.percent[domain, label].value for label in necessity.series]
    limits = {domain: axes.get_ylim() for domain, axes in panels.items()}
    assert len(set(limits.values())) == 3
    assert panels["MuJoCo"].get_xlabel() == "MuJoCo, 1 dataset"


def ablation_panels(found: content.ReportContent, figures: dict[str, Any]) -> list[Any]:
    """Return the panels of the first ablation, which is the one of Table 2."""
    shown = [axes for axes in figures["ablations"].axes if axes.axison]
    assert "dynamic" in shown[0].get_title(loc="left")
    return shown[: len(found.ablations[0].domains)]


def test_ablations_show_the_papers_numbers_and_legends_do_not_overlap(
    drawn: tuple[content.ReportContent, dict[str, Any]],
) -> None:
    found, figures = drawn
    figure, necessity = figures["ablations"], found.ablations[0]
    diamonds = {
        (axes.get_xlabel().partition(",")[0], to_hex(line.get_markeredgecolor()), round(float(y), 3))
        for axes in ablation_panels(found, figures)
        for line in axes.lines
        if line.get_marker() == "D"
        for y in line.get_ydata()
    }
    assert necessity.paper
    assert diamonds == {
        (domain, found.styles[necessity.series[label]].color, round(percent, 3))
        for (domain, label), percent in necessity.paper.items()
    }
    legend = ablation_panels(found, figures)[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [
        "paper",
        "alpha fixed at ASPC's final value",
        "alpha linear to ASPC's final value",
        "alpha learned (ASPC)",
    ]
    for axes in (axes for axes in figure.axes if axes.get_legend()):
        legend = axes.get_legend().get_window_extent()
        assert legend.x1 <= figure.bbox.x1
        for other in (a for a in figure.axes if a.axison):
            assert not legend.overlaps(other.get_window_extent())
            assert not legend.overlaps(other.title.get_window_extent())


def test_q_and_bc_loss_have_one_panel_per_dataset(drawn: tuple[content.ReportContent, dict[str, Any]]) -> None:
    found, figures = drawn
    for name, metric, unit in (("q_curves", "q", "Q"), ("bc_loss_curves", "bc_loss", "BC loss")):
        panels = {axes.get_title(): axes for axes in figures[name].axes if axes.lines}
        assert set(panels) == set(found.datasets)
        (curve,) = (c for c in found.curves if (c.metric, c.dataset, c.series) == (metric, CHEETAH, "ASPC"))
        assert panels[CHEETAH].get_ylabel() == unit
        assert any(np.allclose(line.get_ydata(), curve.mean) for line in panels[CHEETAH].lines)


def test_omitted_panels_are_counted(
    drawn: tuple[content.ReportContent, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, figures = drawn
    averages = sum(row.is_average for row in found.main_table.rows)
    assert averages > 1
    assert figures["last_and_best"].get_supxlabel() == "last (filled) and best (hollow) evaluation"
    monkeypatch.setattr(plots, "MAX_PANELS", 1)
    assert plots.plot_last_and_best(found).get_supxlabel().endswith(f"evaluation; the first 1 of {averages}")


def test_figures_limit_the_number_of_series(
    drawn: tuple[content.ReportContent, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = ("profiles", "improvement", "radar", "learning_curves", "q_curves", "bc_loss_curves", "last_and_best")
    few, figures = drawn
    assert len(few.main_series) == 2
    assert "radar" not in figures  # which needs three
    assert not any(figures[name].get_suptitle() for name in cut if name in figures)
    monkeypatch.setattr(statistics, "REPETITIONS", 20)
    many = [MAIN[0], *(Variant(f"k_alpha = {k}", "aspc", k_alpha=k) for k in range(11, 24))]
    make(tmp_path, "own", many, [HOPPER, CHEETAH, MAZES[0]], seeds=2, points=4)
    found = content.build(results.read(tmp_path))
    assert len(found.aggregates.overall.labels) == len(many) == 14  # all are compared
    with mpl.rc_context(drawing.RC_PARAMS):
        figures = {name: figure for name, figure in plots.draw_figures(found) if name in cut}
        for figure in figures.values():
            figure.draw_without_rendering()
    titles = {name: figure.get_suptitle() for name, figure in figures.items()}
    totals = {"improvement": 13}  # all but the reference
    assert titles == {
        name: f"The first 12 of {totals.get(name, 14)} series; the HTML report can show all of them." for name in cut
    }
    for axes in figures["learning_curves"].axes:
        assert [line.get_label() for line in axes.lines] == sorted(found.main_series[:12])
    for figure in figures.values():
        top = max((axes.title if axes.get_title() else axes).get_window_extent().y1 for axes in figure.axes)
        assert figure._suptitle.get_window_extent().y0 >= top


def test_dataset_bars_are_annotated_with_the_change(drawn: tuple[content.ReportContent, dict[str, Any]]) -> None:
    found, figures = drawn
    (axes,) = figures["by_dataset"].axes
    (one,) = found.dataset_comparisons
    assert [text.get_text() for text in axes.texts] == [one.describe_changes("pen-human-v1")]
    assert sorted(bar.get_height() for bar in axes.patches) == sorted(e.value for e in one.scores.values())


def test_tasks_have_panels_with_datasets_in_the_legend(
    drawn: tuple[content.ReportContent, dict[str, Any]],
) -> None:
    _, figures = drawn
    panels = {axes.get_title(): axes for axes in figures["alpha_by_task"].axes if axes.lines}
    legends = {task: [text.get_text() for text in axes.get_legend().get_texts()] for task, axes in panels.items()}
    assert legends == {"maze2d": ["umaze-v1", "medium-v1", "large-v1"], "pen": ["human-v1"]}


def test_hatches_are_unique() -> None:
    assert set(drawing.HATCHES) == set(drawing.LINES)
    assert len(set(drawing.HATCHES.values())) == len(drawing.HATCHES)


def test_text_is_not_cut_off(drawn: tuple[content.ReportContent, dict[str, Any]]) -> None:
    """Including long machine names and numbers with many digits."""
    found, figures = drawn
    long = found.runtimes[0]._replace(
        device="Linux x86_64, AMD EPYC 7763 64-Core Processor, 2 cores cpu: cpu", concurrent=12
    )
    close = [dataclasses.replace(c, mean=2.5 + 1e-4 * c.mean, std=0 * c.std) for c in found.curves]
    changed = dataclasses.replace(found, runtimes=(long, *found.runtimes[1:]), curves=tuple(close))
    with mpl.rc_context(drawing.RC_PARAMS):
        further = [plots.plot_runtime(changed), plots.plot_alpha_by_quality(changed)]
    for figure in (*figures.values(), *further):
        figure.draw_without_rendering()
        for axes in figure.axes:
            written = (*figure.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_yticklabels())
            for text in (text for text in written if text.get_text()):
                box = text.get_window_extent()
                assert box.x0 >= figure.bbox.x0, text
                assert box.x1 <= figure.bbox.x1, text


def test_runtime_by_interval_is_a_separate_figure(drawn: tuple[content.ReportContent, dict[str, Any]]) -> None:
    _, figures = drawn
    bars = {
        name: [t.get_text() for t in figures[name].axes[0].get_yticklabels()] for name in figures if "runtime" in name
    }
    assert bars == {
        "runtime": ["TD3+BC", "ASPC"],
        "runtime_by_interval": ["ASPC", "ASPC, k_alpha = 30", "TD3+BC"],
    }
