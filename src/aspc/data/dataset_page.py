"""A self-contained HTML page about a dataset: facts, warnings and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from aspc import tasks
from aspc.data.dataset import Dataset
from aspc.data.diagnostics import Summary, summarize
from aspc.io import atomic_output
from aspc.page_parts import (
    ACCENT_COLOR,
    MAX_ACTION_PANELS,
    Picture,
    action_panels,
    draw_png,
    principal_components,
    render_template,
)

MAX_COVERAGE_ROWS = 20_000
REWARD_SEGMENTS = 200


def write_page(dataset: Dataset, path: Path) -> None:
    """Write the page atomically."""
    text = render_page(dataset, summarize(dataset))
    with atomic_output(path) as temporary:
        temporary.write_text(text, "utf-8")


def render_page(dataset: Dataset, summary: Summary) -> str:
    """Return the page as HTML."""
    return render_template(
        "dataset_page.html",
        title=dataset.name,
        facts=summary.facts,
        warnings=summary.warnings,
        pictures=draw_pictures(dataset),
    )


def draw_pictures(dataset: Dataset) -> list[Picture]:
    """Draw the figures of the page."""
    return [
        Picture("Returns and lengths of episodes, and how they ended", draw_png(_draw_episodes, dataset)),
        Picture(f"Mean reward over the log, in {REWARD_SEGMENTS} segments", draw_png(_draw_rewards, dataset)),
        Picture(_actions_caption(dataset), draw_png(_draw_actions, dataset)),
        Picture(_coverage_caption(dataset), draw_png(_draw_coverage, dataset)),
    ]


def _draw_episodes(figure: Any, dataset: Dataset) -> None:
    returns, lengths, ends = figure.subplots(1, 3)
    returns.hist(dataset.episode_returns, bins=40, color=ACCENT_COLOR)
    returns.set(xlabel="return", ylabel="episodes")
    lengths.hist(dataset.episode_lengths, bins=40, color=ACCENT_COLOR)
    lengths.set(xlabel="length")
    counts = [int(dataset.terminals.sum()), int(dataset.timeouts.sum())]
    ends.bar(["terminal", "timeout"], counts, color=ACCENT_COLOR)
    ends.set(ylabel="rows", ylim=(0, 1.1 * max(*counts, 1)))


def _draw_rewards(figure: Any, dataset: Dataset) -> None:
    segments = np.array_split(dataset.rewards.astype(np.float64), min(REWARD_SEGMENTS, len(dataset)))
    starts = np.cumsum([0, *map(len, segments[:-1])])
    axes = figure.subplots()
    axes.plot(starts, [segment.mean() for segment in segments], color=ACCENT_COLOR)
    axes.set(xlabel="row", ylabel="mean reward")


def _actions_caption(dataset: Dataset) -> str:
    size = dataset.action_size
    dimensions = (
        "each dimension" if size <= MAX_ACTION_PANELS else f"the first {MAX_ACTION_PANELS} of {size} dimensions"
    )
    return f"Actions within their bounds, {dimensions}"


def _draw_actions(figure: Any, dataset: Dataset) -> None:
    for i, axes in enumerate(action_panels(figure, dataset.action_names, dataset.action_size)):
        bounds = (float(dataset.action_low[i]), float(dataset.action_high[i]))
        axes.hist(dataset.actions[:, i], bins=40, range=bounds, color=ACCENT_COLOR)


def _is_maze(dataset: Dataset) -> bool:
    family = None if dataset.env is None else tasks.family_of(dataset.env)
    return "maze" in (family or dataset.env or "")


def _coverage_caption(dataset: Dataset) -> str:
    axes = "positions in the maze" if _is_maze(dataset) else "first two principal components of the observations"
    return f"State coverage: {axes}, at most {MAX_COVERAGE_ROWS:,} rows, colored by reward"


def _draw_coverage(figure: Any, dataset: Dataset) -> None:
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), MAX_COVERAGE_ROWS)).astype(int)
    observations = dataset.observations[rows]
    points = observations[:, :2] if _is_maze(dataset) else principal_components(observations)
    axes = figure.subplots()
    dots = axes.scatter(points[:, 0], points[:, 1], c=dataset.rewards[rows], s=2, cmap="viridis", rasterized=True)
    if _is_maze(dataset):
        axes.set(xlabel="x", ylabel="y", aspect="equal")
    else:
        axes.set(xlabel="first component", ylabel="second component")
    figure.colorbar(dots, ax=axes, label="reward")
