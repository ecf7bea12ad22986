"""The figure of a run: score, scale, Q, BC loss and the monitor's κ* over steps, with a band over seeds."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from aspc.algorithm_colors import OTHER_COLOR, algorithm_color
from aspc.io import write_atomically
from aspc.training.run_folder import FIGURE, Run


def over_seeds(columns: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps that all seeds have reached, and the values [seeds, steps] of a column."""
    values = [columns[name][columns["seed"] == seed] for seed in np.unique(columns["seed"])]
    shortest = min(len(v) for v in values)
    steps = columns["step"][columns["seed"] == columns["seed"][0]][:shortest]
    return steps, np.stack([v[:shortest] for v in values])


def draw(run: Run) -> Path | None:
    """Write the figure into the run folder; return its path, or None if there is nothing to draw yet."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    metrics, evaluations = run.metrics, run.evaluations
    scale_name = run.config.scale_name or "scale"
    has_score = bool(evaluations) and not np.isnan(evaluations["score_mean"]).all()
    panels = [
        (evaluations, "score_mean" if has_score else "return_mean", "score" if has_score else "return"),
        (metrics, "scale", scale_name),
        (metrics, "q_mean", "Q(s, a) on the data"),
        (metrics, "bc_loss", "BC loss"),
        (metrics, "theory_kappa_star", "κ* (Theorem 1 needs κ ≤ κ*)"),
    ]
    panels = [(data, column, title) for data, column, title in panels if column in data]
    if not panels:
        return None
    color = algorithm_color(run.config.algo) or OTHER_COLOR
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), squeeze=False, layout="constrained")
    for axis, (data, column, title) in zip(axes[0], panels, strict=True):
        steps, values = over_seeds(data, column)
        known = ~np.isnan(values).any(0)  # the monitor may skip chunks
        steps, values = steps[known], values[:, known]
        axis.plot(steps, values.mean(0), color=color, marker="o" if len(steps) < 3 else None)
        if len(values) > 1:
            axis.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.2, lw=0)
        axis.set(title=title, xlabel="steps")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if column == "scale" and values.min() > 0 and values.max() / values.min() > 20:
            axis.set_yscale("log")
    dataset = run.config.dataset
    behavior = dataset.behavior_score if has_score else dataset.behavior_return
    if behavior is not None and panels[0][0] is evaluations:
        axes[0][0].axhline(behavior, color="#888", ls="--", lw=1, label="behavior data")
        axes[0][0].legend(frameon=False)
    seeds = f"{len(run.seeds)} seeds, band: min to max" if len(run.seeds) > 1 else "1 seed"
    figure.suptitle(f"{run.config.algo} on {dataset.name} ({seeds})", parse_math=False)
    target = run.path / FIGURE
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    write_atomically(target, buffer.getvalue())
    return target
