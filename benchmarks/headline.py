"""Write the figure and the mean scores in README.md from the committed results: python benchmarks/headline.py"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import study_page
from aspc.io import write_atomically
from aspc.lab.report.statistics import grand_mean
from aspc.lab.report.styles import assign_styles
from aspc.lab.suites.project import MAIN_TABLE
from study_page import MAIN, ROOT, Study

# The dataset on which ASPC+ gains most over TD3+BC, and the one on which ASPC loses most to it.
DATASETS = ("maze2d-large", "walker2d-medium-replay")
DOMAINS = {"hopper and walker2d": "MuJoCo", "Maze2d": "Maze2d"}
LABELS: Mapping[str, str] = {
    "TD3+BC": "TD3+BC: alpha fixed at 2.5",
    "ASPC": "ASPC: alpha learned",
    "ASPC+": "ASPC+: alpha learned, a second policy acts",
}
PICTURE = Path("docs") / "images" / "headline.png"
BEGIN, END = "<!-- headline: written by benchmarks/headline.py -->\n\n", "\n\n<!-- end of headline -->"


def make_summary(study: Study) -> str:
    """Return a list of the means of the last scores over each domain's datasets."""
    found = {label: study.scores(MAIN, label) for label in LABELS}
    lines = []
    for text, domain in DOMAINS.items():
        datasets = study_page.trained_datasets(study, domain)
        means = {label: grand_mean({name: scores[name] for name in datasets}) for label, scores in found.items()}
        numbers = ", ".join(f"{label} {study_page.number(mean)}" for label, mean in means.items())
        lines.append(f"- {text} ({len(datasets)} datasets): {numbers}")
    return "\n".join(lines)


def replace_summary(text: str, study: Study) -> str:
    """Return the text of README.md with new mean scores between the markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{make_summary(study)}{END}{after}"


def draw(study: Study, path: Path) -> None:
    """Plot the score and alpha over steps on both datasets. Bands range from the lowest to the highest seed."""
    from matplotlib.figure import Figure

    runs = study.by_suite[MAIN]
    curves = study.curves.merge(runs[["run_id", "label", "dataset"]], on="run_id")
    styles = assign_styles({variant.label: variant.algo for variant in MAIN_TABLE if variant.label in LABELS})
    figure = Figure(figsize=(10, 3.1), layout="constrained")
    axes = figure.subplots(2, len(DATASETS), sharex=True, height_ratios=(3, 2))
    for column, dataset in enumerate(DATASETS):
        for label, text in LABELS.items():
            own = curves[(curves["label"] == label) & (curves["dataset"] == dataset)]
            line = {"color": styles[label].color, "lw": 2, "label": text}
            if own["scale"].isna().all():  # a fixed scale is drawn above the other lines, which would cover it
                (alpha,) = runs[(runs["label"] == label) & (runs["dataset"] == dataset)]["scale_last"].unique()
                line |= {"ls": "--", "zorder": 3}
                axes[1, column].axhline(alpha, **line)
            for panel, measure in zip(axes[:, column], ("score", "scale"), strict=True):
                points = own[own[measure].notna()].groupby("step")[measure].agg(["mean", "min", "max"])
                if len(points):
                    steps = points.index / 1e6
                    panel.plot(steps, points["mean"], **line)
                    panel.fill_between(steps, points["min"], points["max"], color=line["color"], alpha=0.15, lw=0)
        for panel in axes[:, column]:
            panel.spines[["top", "right"]].set_visible(False)
        axes[1, column].set_ylim(bottom=0)
        axes[0, column].set_title(dataset)
        axes[1, column].set_xlabel("million steps")
    axes[0, 0].set_ylabel("score")
    axes[1, 0].set_ylabel("alpha")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(LABELS), frameon=False)
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=ROOT / "results", help="result folder")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that contains README.md and docs/")
    args = parser.parse_args(argv)
    study = Study(args.results)
    readme = args.root / "README.md"
    write_atomically(readme, replace_summary(readme.read_text("utf-8"), study).encode())
    draw(study, args.root / PICTURE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
