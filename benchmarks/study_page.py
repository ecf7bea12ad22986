"""Write the tables and figures of docs/study.md from the committed results.

    python benchmarks/study_page.py [RESULTS] [--page docs/study.md]

RESULTS is a result folder, or a folder of result folders (default: results). The script replaces the text between each
`<!-- study: NAME -->` and `<!-- end -->`. Everything else on the page is left unchanged.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from aspc.lab import paper_tables, results, suites
from aspc.lab.plan import make_plan
from aspc.lab.report import statistics
from aspc.lab.report.drawing import line_style
from aspc.lab.report.statistics import IntervalEstimate, Scores
from aspc.lab.report.styles import assign_styles
from aspc.lab.suites.datasets import MAZES, STUDIED
from aspc.lab.suites.project import MAIN_TABLE
from aspc.lab.works import works

ROOT = Path(__file__).parents[1]
PUBLISHED = Path(__file__).with_name("published_scores.json")
MAIN, RECIPE = "study_main", "maze2d_recipe"
DOMAINS = ("MuJoCo", "Maze2d", "AntMaze", "Adroit")
REFERENCE = "TD3+BC"
UNFINISHED = "unfinished"  # folder of `unfinished_runs.py`'s files, below the results
# Runs to compare with an algorithm's published scores, if they are not the runs of that name in the recipe comparison.
VALIDATED = {
    "ReBRAC": ((MAIN, "ReBRAC, tuned"),),
    "IQL": ((RECIPE, "IQL"), (RECIPE, "IQL, float32 products")),
}
PANELS_PER_ROW = 4
FIGURES = {"MuJoCo": "study_locomotion.png", "Maze2d": "study.png"}


class Published(NamedTuple):
    """A published score: its source, algorithm and dataset, and its mean and standard deviation over seeds."""

    source: str
    variant: str
    dataset: str
    mean: float
    std: float


class Study:
    """The finished runs of the study, labeled as in the main table and in the recipe comparison."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = results.read(folder)
        done = found.runs[found.runs["status"] == "done"]
        self.curves = found.curves
        self.by_suite = {name: self._runs_of(name, done) for name in (MAIN, RECIPE)}

    @staticmethod
    def _runs_of(suite: str, done: pd.DataFrame) -> pd.DataFrame:
        """Return a suite's finished runs with its labels. Since suites share runs, their rows can have other labels."""
        plan = make_plan(suites.expand([suite]), data={name: Path(name) for name in STUDIED})
        entries = pd.DataFrame([(entry.run_id, entry.variant) for entry in plan.entries], columns=["run_id", "label"])
        return done.merge(entries, on="run_id")

    def scores(self, suite: str, label: str) -> Scores:
        """Return the last scores of a variant by dataset, with one number per seed."""
        runs = self.by_suite[suite]
        runs = runs[runs["label"] == label].sort_values("seed")
        return {name: group["score_last"].to_numpy(float) for name, group in runs.groupby("dataset")}


def published_sources() -> dict[str, str]:
    """Return the publications behind the sources of published scores, by source."""
    tables = json.loads(PUBLISHED.read_text("utf-8"))
    found = {source: f"{works()[table['work']]}; {table['source']}" for source, table in tables.items()}
    return {**found, "paper": f"{works()['aspc']}; Table 1, final scores"}


def published_scores() -> list[Published]:
    """Return the Maze2d scores published by CORL, and those of TD3+BC, ReBRAC and ASPC in the paper's main table."""
    tables = json.loads(PUBLISHED.read_text("utf-8"))
    found = [
        Published(source, variant, dataset, *score)
        for source, table in tables.items()
        for variant, rows in table["scores"].items()
        for dataset, score in rows.items()
    ]
    for variant in ("TD3+BC", "ReBRAC", "ASPC"):
        for dataset in MAZES:
            number = paper_tables.number("main_table", f"{dataset}-v1", variant)
            found.append(Published("paper", variant, dataset, number.mean, number.std or np.nan))
    return found


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    return "–" if not np.isfinite(value) else f"{value:.1f}".replace("-", "−")


def with_spread(values: np.ndarray) -> str:
    """Format the mean and the standard deviation of values over seeds."""
    spread = f" ± {number(float(values.std(ddof=1)))}" if len(values) > 1 else ""
    return f"{number(float(values.mean()))}{spread}"


def with_interval(estimate: IntervalEstimate) -> str:
    ends = f" [{number(estimate.low)}, {number(estimate.high)}]" if estimate.has_interval else ""
    return f"{number(estimate.value)}{ends}"


# ── sections ────────────────────────────────────────────────────────────────────────────────────────────────────────


def validation_section(study: Study) -> str:
    """Return a table that compares scores on regenerated Maze2d data with published scores, and a list of the sources.

    The table has scores on data with action noise and on data without it.
    """
    rows = []
    for published in published_scores():
        for suite, label in VALIDATED.get(published.variant, ((RECIPE, published.variant),)):
            found = study.scores(suite, label)
            noisy, clean = found.get(published.dataset), found.get(f"{published.dataset}-clean")
            if noisy is None:
                continue
            rows.append(
                (
                    label.removesuffix(", tuned"),
                    published.dataset,
                    published.source,
                    f"{number(published.mean)} ± {number(published.std)}",
                    with_spread(noisy),
                    number(float(noisy.mean()) - published.mean),
                    "–" if clean is None else with_spread(clean),
                )
            )
    sources = "\n".join(f"- {name}: {text}." for name, text in published_sources().items())
    head = ("algorithm", "dataset", "source", "published", "noise 0.5", "difference", "no noise")
    return f"{table(head, rows)}\n\nSources:\n\n{sources}"


def domain_datasets(domain: str) -> list[str]:
    return [name for name in STUDIED if paper_tables.domain_of(name) == domain]


def variants_on(study: Study, datasets: Sequence[str]) -> dict[str, Scores]:
    """Return the scores of the variants that ran on all of these datasets, in the order of the main table."""
    found = {variant.label: study.scores(MAIN, variant.label) for variant in MAIN_TABLE}
    return {
        label: {name: scores[name] for name in datasets}
        for label, scores in found.items()
        if all(name in scores for name in datasets)
    }


def trained_datasets(study: Study, domain: str) -> list[str]:
    """Return the datasets of a domain on which the reference has run."""
    trained = study.scores(MAIN, REFERENCE)
    return [name for name in domain_datasets(domain) if name in trained]


def domain_section(study: Study, domain: str) -> str:
    datasets = trained_datasets(study, domain)
    found = variants_on(study, datasets) if datasets else {}
    if not found:
        return "Not run yet."
    head = ("dataset", *found)
    rows = [(name, *(with_spread(scores[name]) for scores in found.values())) for name in datasets]
    stacked = statistics.stack(list(found.values()), datasets)
    summary = [
        ("**IQM**", *with_intervals(statistics.bootstrap(statistics.interquartile_mean, stacked))),
        ("**mean**", *(with_interval(statistics.average(scores)) for scores in found.values())),
    ]
    if REFERENCE in found:
        better = (
            "–" if label == REFERENCE else probability_of_improvement(scores, found[REFERENCE], datasets)
            for label, scores in found.items()
        )
        ahead = (
            "–" if label == REFERENCE else with_interval(statistics.median_difference(scores, found[REFERENCE]))
            for label, scores in found.items()
        )
        summary += [(f"**better than {REFERENCE}, %**", *better), (f"**median difference to {REFERENCE}**", *ahead)]
    return table(head, [*rows, *summary])


def probability_of_improvement(scores: Scores, reference: Scores, datasets: Sequence[str]) -> str:
    ends = statistics.bootstrap(statistics.improvement, statistics.stack([scores, reference], datasets))
    (text,) = with_intervals(tuple(100 * end for end in ends))
    return text


def with_intervals(ends: tuple[np.ndarray, ...]) -> list[str]:
    """Format the values of a bootstrapped statistic, one per method."""
    return [with_interval(IntervalEstimate(*map(float, triple))) for triple in zip(*ends, strict=True)]


def progress_section(study: Study) -> str:
    """Return a table with the number of datasets that have runs, per domain and variant of the main table."""
    rows = []
    for variant in MAIN_TABLE:
        found = study.scores(MAIN, variant.label)
        counts = [f"{sum(name in found for name in names)} of {len(names)}" for names in map(domain_datasets, DOMAINS)]
        rows.append((variant.label, *counts))
    return table(("datasets with runs", *DOMAINS), rows)


def unfinished_section(study: Study) -> str:
    """Tabulate the scores of interrupted runs at the last step that all of a file's runs reached."""
    tables = []
    for file in sorted((study.folder / UNFINISHED).glob("*.csv")):
        rows = pd.read_csv(file)
        step = rows.groupby(["variant", "dataset", "seed"])["step"].max().min()
        last = rows[rows["step"] == step]
        labels = [variant.label for variant in MAIN_TABLE if variant.label in set(last["variant"])]
        lines = []
        for dataset, own in last.groupby("dataset"):
            scores = [own.loc[own["variant"] == label, "score"].to_numpy(float) for label in labels]
            lines.append((f"{dataset}, {step:,} steps", *map(with_spread, scores)))
        tables.append(table(("dataset", *labels), lines))
    return "\n\n".join(tables) or "None."


SECTIONS: Mapping[str, Callable[[Study], str]] = {
    "unfinished": unfinished_section,
    "validation": validation_section,
    "progress": progress_section,
    **{domain: lambda study, domain=domain: domain_section(study, domain) for domain in DOMAINS},  # type: ignore[misc]
}


def fill(page: str, study: Study) -> str:
    """Return the text of a page with all marked sections replaced."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- study: {name} -->\n\n{SECTIONS[name](study)}\n\n<!-- end -->"

    return re.sub(r"<!-- study: (\w+) -->.*?<!-- end -->", replaced, page, flags=re.DOTALL)


def draw(study: Study, domain: str, path: Path) -> None:
    """Plot scores over steps for each dataset of a domain, and the scales that ASPC and ASPC+ learn."""
    from matplotlib.figure import Figure

    datasets = trained_datasets(study, domain)
    columns, blocks = min(len(datasets), PANELS_PER_ROW), math.ceil(len(datasets) / PANELS_PER_ROW)
    figure = Figure(figsize=(11, 5.0 * blocks + 0.4), layout="constrained")
    axes = figure.subplots(2 * blocks, columns, sharex=True, squeeze=False, height_ratios=(2, 1) * blocks)
    for unused in axes[-2:, len(datasets) - columns * (blocks - 1) :].flat:
        unused.set_axis_off()
    runs = study.by_suite[MAIN]
    curves = study.curves.merge(runs[["run_id", "label", "dataset"]], on="run_id")
    variants = variants_on(study, datasets)
    algos = {variant.label: variant.algo for variant in MAIN_TABLE}
    styles = {label: line_style(style) for label, style in assign_styles({x: algos[x] for x in variants}).items()}
    for i, dataset in enumerate(datasets):
        block, column = divmod(i, columns)
        panels = {"score": axes[2 * block, column], "scale": axes[2 * block + 1, column]}
        for label, style in styles.items():
            own = curves[(curves["label"] == label) & (curves["dataset"] == dataset)]
            for measure, panel in panels.items():
                if measure == "scale" and not label.startswith("ASPC"):
                    continue
                points = own[own[measure].notna()].groupby("step")[measure].agg(["mean", "min", "max"])
                steps, color = points.index / 1e6, style["color"]
                panel.plot(steps, points["mean"], label=label, **style)
                panel.fill_between(steps, points["min"], points["max"], color=color, alpha=0.15, linewidth=0)
        panels["score"].set_title(dataset)
        if column == 0:
            panels["score"].set_ylabel("normalized score")
            panels["scale"].set_ylabel("alpha")
    for column in range(columns):
        axes[-1, column].set_xlabel("million steps")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(styles))
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=ROOT / "results", help="result folder")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "study.md", help="page to update")
    args = parser.parse_args(argv)
    study = Study(args.results)
    args.page.write_text(fill(args.page.read_text("utf-8"), study), "utf-8")
    images = args.page.parent / "images"
    images.mkdir(exist_ok=True)
    for domain, name in FIGURES.items():
        draw(study, domain, images / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
