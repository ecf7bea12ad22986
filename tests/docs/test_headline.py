"""README's picture and its mean scores come from the committed results."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from doc_pages import REPOSITORY

pytest.importorskip("matplotlib", reason="the extra report is not installed")


@pytest.fixture(scope="module")
def headline() -> ModuleType:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        return importlib.import_module("headline")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def study(headline: ModuleType) -> object:
    return headline.Study(REPOSITORY / "results")


def test_readme_matches_the_committed_results(headline: ModuleType, study: object) -> None:
    text = (REPOSITORY / "README.md").read_text("utf-8")
    assert headline.make_summary(study) in text
    assert headline.replace_summary(text, study) == text, "run python benchmarks/headline.py"
    assert headline.replace_summary(text.replace("- Maze2d (3 datasets)", "- another"), study) == text


def test_the_datasets_are_the_best_and_the_worst(headline: ModuleType, study: object) -> None:
    """The picture shows where ASPC+ gains most over TD3+BC, and where ASPC loses most."""
    means = {
        label: {name: scores.mean() for name, scores in study.scores(headline.MAIN, label).items()}  # type: ignore[attr-defined]
        for label in headline.LABELS
    }
    fixed = means["TD3+BC"]
    gains = {label: {name: own[name] - fixed[name] for name in fixed} for label, own in means.items()}
    best, worst = max(fixed, key=gains["ASPC+"].__getitem__), min(fixed, key=gains["ASPC"].__getitem__)
    assert (best, worst) == headline.DATASETS


def test_readme_states_how_much_has_run(headline: ModuleType, study: object) -> None:
    from aspc.lab.suites.datasets import STUDIED

    compared = [
        name for name in STUDIED if all(name in study.scores(headline.MAIN, label) for label in headline.LABELS)
    ]  # type: ignore[attr-defined]
    planned = [
        name for name in STUDIED if headline.study_page.paper_tables.domain_of(name) in headline.study_page.DOMAINS
    ]
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert f"{len(compared)} of {len(planned)} datasets are complete" in readme
    assert f"Left: of {len(compared)} finished datasets," in readme


def test_readme_states_the_alpha_of_walker2d(headline: ModuleType, study: object) -> None:
    runs = study.by_suite[headline.MAIN]  # type: ignore[attr-defined]
    own = runs[(runs["label"] == "ASPC") & runs["dataset"].str.startswith("walker2d")]
    lowest = own.groupby("dataset")["scale_last"].mean().min()
    assert f"alpha rises above {int(lowest)}." in (REPOSITORY / "README.md").read_text("utf-8")


def test_readme_states_where_aspc_plus_is_behind(headline: ModuleType, study: object) -> None:
    """ASPC+ is behind ASPC by far on one dataset only."""
    plus, aspc = (study.scores(headline.MAIN, label) for label in ("ASPC+", "ASPC"))  # type: ignore[attr-defined]
    means = {name: (plus[name].mean(), aspc[name].mean()) for name in plus if name in aspc}
    (worst,) = [name for name, (own, other) in means.items() if own < other - 5]
    own, other = means[worst]
    assert f"behind ASPC on {worst} ({own:.1f} against {other:.1f})" in (REPOSITORY / "README.md").read_text("utf-8")


def test_the_picture_draws_every_run(headline: ModuleType, study: object, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    save = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *args, **kw: (drawn.append(figure), save(figure, *args, **kw)))
        headline.draw(study, tmp_path / "headline.png")
    assert (tmp_path / "headline.png").read_bytes().startswith(b"\x89PNG")
    ((scores, other_scores, alphas, other_alphas),) = [figure.axes for figure in drawn]
    for dataset, panels in zip(headline.DATASETS, [(scores, alphas), (other_scores, other_alphas)], strict=True):
        for label, line in zip(headline.LABELS, panels[0].lines, strict=True):
            assert line.get_ydata()[-1] == pytest.approx(study.scores(headline.MAIN, label)[dataset].mean())  # type: ignore[attr-defined]
        assert len(panels[1].lines) == len(headline.LABELS)
        assert list(panels[1].lines[0].get_ydata()) == [2.5, 2.5]
