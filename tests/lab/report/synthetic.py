"""Seeded synthetic results with realistic curves."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aspc.lab import results
from aspc.lab.paper_tables import domain_of, tables
from aspc.lab.report.view import View, build_view
from aspc.tasks import without_version

Score = Callable[[str, str], float]  # (label, dataset) → final score

ALPHA = {"MuJoCo": 4.0, "Maze2d": 25.0, "AntMaze": 14.0, "Adroit": 0.1}
BY_QUALITY = {
    "expert": 0.25,
    "medium-expert": 0.6,
    "medium": 1.4,
    "medium-replay": 3.0,
    "full-replay": 3.5,
    "random": 5,
}
SECONDS = {"aspc": 520.0, "td3_bc": 480.0, "iql": 610.0, "rebrac": 690.0, "wpc": 650.0, "a2pr": 1150.0, "cql": 2400.0}


class Shape(NamedTuple):
    """Shape of the curves of algorithms that learn their scale; the others level off later and stay flat."""

    pace: float = 0.12  # fraction of training until the score levels off
    rise: float = 0.35  # growth of Q and BC loss
    drop: float = 6.0  # decay rate of the initial alpha
    last: float = 1.0  # last evaluation relative to the final score
    overhead: float = 0.08  # relative to the time of TD3+BC
    others: float = 0.2  # pace of algorithms without a learned scale
    wobble: float = 1.0  # noise relative to algorithms without a learned scale


class Variant:
    """A column of a table: label, algorithm and settings."""

    def __init__(self, label: str, algo: str, **settings: Any) -> None:
        self.label, self.algo, self.settings = label, algo, settings


MAIN = (
    Variant("TD3+BC", "td3_bc"),
    Variant("A2PR", "a2pr"),
    Variant("IQL", "iql", beta=6.0),
    Variant("wPC", "wpc"),
    Variant("ReBRAC", "rebrac", beta1=0.05),
    Variant("ASPC", "aspc"),
)
NECESSITY = (
    Variant("naive", "td3_bc"),
    Variant("converged", "aspc", scale_mode="converged", scale_target=7.0),
    Variant("linear", "aspc", scale_mode="linear", scale_target=7.0),
    Variant("dynamic", "aspc"),
)
LOSSES = (
    *(Variant(terms, "aspc", outer_loss=terms) for terms in ("L1", "L1+L2", "L1+L3")),
    Variant("L1+L2+L3", "aspc"),
)
D4RL = tuple(tables()["main_table"].rows)


def paper_score(label: str, dataset: str) -> float:
    """Return the paper's number, or a similar one for labels that its main table does not have."""
    table = tables()["main_table"]
    same = {"naive": "TD3+BC", "dynamic": "ASPC", "L1+L2+L3": "ASPC"}.get(label, label)
    row = next((r for r in table.rows if without_version(r) == without_version(dataset)), None)
    if row is None:
        return 50.0
    if (row, same) in table.numbers:
        return table.numbers[row, same].mean
    factor = {"L1": 0.7, "converged": 0.9, "linear": 0.85}.get(label, 0.95)
    return factor * table.numbers[row, "ASPC"].mean


def make(
    folder: Path,
    suite: str,
    variants: Iterable[Variant] = MAIN,
    datasets: Iterable[str] = D4RL,
    *,
    seeds: int = 4,
    points: int = 40,
    steps: int = 1_000_000,
    score: Score = paper_score,
    noise: float = 2.0,
    alpha: Callable[[str], float] | None = None,
    measure: str = "score",
    shape: Shape | None = None,
) -> Path:
    """Write one part per variant. Run ids depend only on the run, so that suites share runs."""
    entries = []
    for variant in variants:
        rows: list[dict[str, Any]] = []
        curves: list[dict[str, Any]] = []
        for dataset in datasets:
            for seed in range(seeds):
                name = f"{variant.algo}{sorted(variant.settings.items())}{dataset}{seed}{steps}"
                run_id = f"{zlib.crc32(name.encode()):08x}{zlib.adler32(name.encode()):08x}"
                end = score(variant.label, dataset)
                curve, row = make_run(
                    variant, dataset, seed, end, points, steps, noise, alpha or typical_alpha, shape or Shape()
                )
                rows.append({"run_id": run_id, "suite": suite, **row, **convert_measure(row, measure)})
                curves += [{"run_id": run_id, **point, **convert_measure(point, measure)} for point in curve]
                entries.append((suite, variant.label, run_id))
        part = f"{suite}-{zlib.crc32(repr([variant.label, rows[0]['run_id']]).encode()):08x}"
        results.write_part(folder, part, rows, curves)
    results.write_entries(folder, f"{suite}-{zlib.crc32(repr(entries).encode()):08x}", entries)
    return folder


def convert_measure(values: dict[str, Any], measure: str) -> dict[str, Any]:
    """Return the same numbers as a success rate or as a return."""
    if measure == "score":
        return {}
    if "score" in values:
        success = {"success_rate": values["score"] / 100} if measure == "success" else {}
        return {"score": None, "return": values["score"], **success}
    success = {"success_last": values["score_last"] / 100} if measure == "success" else {}
    last, best = values["score_last"], values["score_best"]
    return {"score_last": None, "score_best": None, "return_last": last, "return_best": best, **success}


def typical_alpha(dataset: str) -> float:
    """Return the final alpha as in the paper's figures."""
    quality = without_version(dataset).partition("-")[2]
    return ALPHA.get(domain_of(dataset), 3.0) * (BY_QUALITY.get(quality, 1.0) if domain_of(dataset) == "MuJoCo" else 1)


def make_run(
    variant: Variant,
    dataset: str,
    seed: int,
    end: float,
    points: int,
    steps: int,
    noise: float,
    alpha: Callable[[str], float],
    shape: Shape,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a noisy curve that rises and levels off, and the row of its run."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{variant.label}{dataset}".encode())])
    t = np.linspace(1 / points, 1, points)
    learned = variant.algo.endswith("aspc")
    pace, noise = (shape.pace, noise * shape.wobble) if learned else (shape.others, noise)
    shift = rng.normal(0, noise / 2)
    score = (end + shift) * (1 - np.exp(-t / pace)) + rng.normal(0, noise / 2, points)
    score[-1] = (end + shift + rng.normal(0, noise / 4)) * (shape.last if learned else 1)
    final = alpha(dataset)
    path = 2.5 * np.exp(-shape.drop * t) + final * t**1.5 if learned else np.full(points, 2.5)
    path = path * np.exp(rng.normal(0, 0.02)) if learned else path
    rise = shape.rise if learned else 0.01
    q = 300 * (1 - np.exp(-t / 0.08)) * (1 + rise * t) + rng.normal(0, 1, points)
    bc = 0.05 * (1 + rise * t) + rng.normal(0, 2e-4, points)
    curve = [
        {
            "step": int(steps * t[i]),
            "score": score[i],
            "return": 30 * score[i],
            "scale": path[i] if learned else None,
            "q": q[i],
            "bc_loss": bc[i],
            "critic_loss": 3.0 + rng.random(),
        }
        for i in range(points)
    ]
    per_million = SECONDS.get(variant.algo, 900.0) * float(np.exp(rng.normal(0, 0.004)))
    if variant.algo == "aspc":
        slower = shape.overhead * 10 / variant.settings.get("k_alpha", 10)
        per_million *= (1 + slower) * SECONDS["td3_bc"] / SECONDS["aspc"]
    row = {
        "variant": variant.label,
        "algo": variant.algo,
        "dataset": dataset,
        "seed": seed,
        "steps": steps,
        "settings": variant.settings,
        "config": {"algo": variant.algo, "dataset": {"name": dataset}, "steps": steps, "hyper": variant.settings},
        "config_hash": f"{zlib.crc32(f'{variant.algo}{variant.settings}'.encode()):08x}",
        "status": "done",
        "score_last": float(score[-1]),
        "score_best": float(score.max()),
        "return_last": float(30 * score[-1]),
        "return_best": float(30 * score.max()),
        "episodes": 10,
        "scale_name": "alpha" if learned else None,
        "scale_initial": 2.5 if learned else None,
        "scale_last": float(path[-1]) if learned else None,
        "behaviour_score": 0.8 * end,
        "seconds": per_million * steps / 1e6,
        "steps_per_second": 1e6 / per_million,
        "runs_together": 1,
        "group_id": f"g{seed}",
        "device": "cpu",
        "machine": "synthetic",
        "git_revision": "0123abc",
        "versions": {"aspc": "0.1", "jax": "0.10"},
        "matmul_precision": "highest",
        "started": "2026-01-01T00:00:00Z",
        "finished": f"2026-01-01T01:00:{seed % 60:02d}Z",
        "folder": f"runs/{variant.algo}/{dataset}/{seed}",
    }
    return curve, row


def read_view(folder: Path) -> View:
    """Read a folder of results as the report does."""
    return build_view(results.read(folder))
