"""Pages of synthetic results, shared by the tests of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from synthetic import MAIN, NECESSITY, Variant, make

from aspc.__main__ import main
from aspc.lab.report import statistics

DATASETS = ("halfcheetah-medium-v2", "hopper-expert-v2", "hopper-medium-v2", "pen-human-v1", "maze2d-umaze-v1")


def write_report(folder: Path, out: Path, *options: str) -> Path:
    """Run `aspc report` and return the path of the page."""
    assert main(["report", str(folder), "--out", str(out), "--quiet", *options]) == 0
    return out / "index.html"


def read_page(path: Path) -> str:
    """Return a page without line breaks between its tags."""
    text = re.sub(r"\s*\n\s*(?=<)|(?<=>)\s*\n\s*", "", path.read_text("utf-8"))
    return re.sub(r"\s*\n\s*", " ", text)


def write_main_page(folder: Path) -> Path:
    """Write a page with the main table and one ablation."""
    make(folder / "results", "main_table", MAIN, DATASETS, seeds=2, points=12)
    make(folder / "results", "necessity", NECESSITY, DATASETS, seeds=2, points=12)
    return _write_without_figures(folder, 50)


def write_paper_page(folder: Path) -> Path:
    """Write a page with some suites of the paper, each with few runs."""
    found, few = folder / "results", {"seeds": 2, "points": 6}
    aspc, weighted = MAIN[-1], Variant("ASPC+AW", "aspc_aw")
    make(found, "main_table", [MAIN[0], aspc], [*DATASETS, "pen-expert-v1"], **few)
    make(found, "aspc_aw", [aspc, weighted], ["pen-human-v1", "pen-expert-v1"], **few)
    make(found, "necessity", NECESSITY, DATASETS[:1], **few)
    make(found, "k_alpha_runtime", [Variant("k_alpha = 30", "aspc", k_alpha=30), MAIN[0]], DATASETS[:1], **few)
    return _write_without_figures(folder, 20)


def _write_without_figures(folder: Path, repetitions: int) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "REPETITIONS", repetitions)
        return write_report(folder / "results", folder / "report", "--no-figures")
