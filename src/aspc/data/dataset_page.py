"""A self-contained HTML page about a dataset: facts, warnings and figures."""

from __future__ import annotations

import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aspc import page_parts, tasks
from aspc.data.dataset import Dataset
from aspc.data.diagnostics import Summary, summarize
from aspc.data.roles import strip_unit, unit_of
from aspc.errors import printable
from aspc.io import atomic_output
from aspc.page_parts import ACCENT_COLOR, Picture, draw_png

MAX_COVERAGE_ROWS = 20_000
REWARD_SEGMENTS = 200
MAX_OBSERVATIONS = 60
OBSERVATIONS_PER_FIGURE = 6
MAX_TRACE_ROWS = 1_000


def write_page(dataset: Dataset, path: Path) -> None:
    """Write the page atomically."""
    text = render_page(dataset, summarize(dataset))
    with atomic_output(path) as temporary:
        temporary.write_text(text, "utf-8")


def render_page(dataset: Dataset, summary: Summary) -> str:
    """Return the page as HTML."""
    return page_parts.render_template(
        "dataset_page.html",
        title=dataset.name,
        facts=summary.facts,
        warnings=summary.warnings,
        pictures=draw_pictures(dataset),
    )


def draw_pictures(dataset: Dataset) -> list[Picture]:
    """Draw the figures of the page, omitting empty ones."""
    pictures = []
    if len(dataset.episode_lengths) > 1:
        caption = "Returns and lengths of episodes, and how they ended"
        pictures.append(Picture(caption, draw_png(_draw_episodes, dataset)))
    if dataset.rewards.min() < dataset.rewards.max():
        caption = f"Mean reward over the log, in {min(REWARD_SEGMENTS, len(dataset))} segments"
        pictures.append(Picture(caption, draw_png(_draw_rewards, dataset)))
    shown = min(dataset.observation_size, MAX_OBSERVATIONS)
    for start in range(0, shown, OBSERVATIONS_PER_FIGURE):
        dimensions = range(start, min(start + OBSERVATIONS_PER_FIGURE, shown))
        draw = partial(_draw_observations, dimensions=dimensions)
        pictures.append(Picture(_observations_caption(dataset, dimensions), draw_png(draw, dataset)))
    size, limit = dataset.action_size, page_parts.MAX_ACTION_PANELS
    caption = f"Actions within their bounds{f', the first {limit} of {size}' if size > limit else ''}"
    pictures.append(Picture(caption, draw_png(_draw_actions, dataset)))
    if (dataset.observations.min(axis=0) < dataset.observations.max(axis=0)).sum() > 1:
        pictures.append(Picture(_coverage_caption(dataset), draw_png(_draw_coverage, dataset)))
    return pictures


def _draw_episodes(figure: Any, dataset: Dataset) -> None:
    returns, lengths, ends = figure.subplots(1, 3)
    returns.hist(dataset.episode_returns, bins=40, color=ACCENT_COLOR)
    returns.set(xlabel="return", ylabel="episodes")
    lengths.hist(dataset.episode_lengths, bins=40, color=ACCENT_COLOR)
    lengths.set(xlabel="length (rows)")
    counts = [int(dataset.terminals.sum()), int(dataset.timeouts.sum())]
    ends.bar(["terminal", "timeout"], counts, color=ACCENT_COLOR)
    ends.set(ylabel="episodes", ylim=(0, 1.1 * max(*counts, 1)))
    for axes in (returns, lengths):
        axes.locator_params(axis="x", nbins=4)


def _observations_caption(dataset: Dataset, dimensions: range) -> str:
    size = dataset.observation_size
    total = f" of {size}" + (f" (the first {MAX_OBSERVATIONS} are drawn)" if size > MAX_OBSERVATIONS else "")
    rows = min(MAX_TRACE_ROWS, len(dataset))
    return (
        f"Observations {dimensions[0] + 1} to {dimensions[-1] + 1}{total}: distribution over all rows, and the first "
        f"{rows:,} rows, interrupted where episodes end"
    )


def _draw_observations(figure: Any, dataset: Dataset, dimensions: range) -> None:
    """Draw a histogram and a trace for each observation dimension."""
    figure.set_size_inches(10, 0.6 + 1.4 * len(dimensions))
    panels = figure.subplots(len(dimensions), 2, squeeze=False, width_ratios=(1, 3))
    rows = min(MAX_TRACE_ROWS, len(dataset))
    ends = np.flatnonzero((dataset.terminals | dataset.timeouts)[: rows - 1]) + 1
    positions = np.insert(np.arange(1, rows + 1, dtype=float), ends, np.nan)
    for (histogram, trace), i in zip(panels, dimensions, strict=True):
        name = dataset.observation_names[i] if dataset.observation_names else f"observation {i + 1}"
        values = dataset.observations[:, i]
        histogram.hist(values, bins=40, color=ACCENT_COLOR)
        trace.plot(positions, np.insert(values[:rows].astype(float), ends, np.nan), color=ACCENT_COLOR, lw=0.8)
        title = textwrap.shorten(strip_unit(printable(name)), 70, placeholder="…")
        trace.set_title(title, fontsize=9, loc="left", parse_math=False)  # a column's name can look like a formula
        trace.set_ylabel(unit_of(printable(name)), fontsize=8, parse_math=False)
        for axes in (histogram, trace):
            axes.tick_params(labelsize=7)
            axes.locator_params(axis="y", nbins=3)
        histogram.locator_params(axis="x", nbins=3)
    panels[-1][1].set_xlabel("row", fontsize=8)
    panels[0][0].set_title("rows per value", fontsize=9, loc="left")


def _draw_rewards(figure: Any, dataset: Dataset) -> None:
    segments = np.array_split(dataset.rewards.astype(np.float64), min(REWARD_SEGMENTS, len(dataset)))
    starts = np.cumsum([1, *map(len, segments[:-1])])
    axes = figure.subplots()
    axes.plot(starts, [segment.mean() for segment in segments], color=ACCENT_COLOR)
    axes.set(xlabel="row", ylabel="mean reward")


def _draw_actions(figure: Any, dataset: Dataset) -> None:
    bounds = dataset.action_low, dataset.action_high
    page_parts.action_histograms(figure, dataset.action_names, bounds, [(dataset.actions, ACCENT_COLOR, 1.0)], "rows")


def _is_maze(dataset: Dataset) -> bool:
    family = None if dataset.env is None else tasks.family_of(dataset.env)
    return "maze" in (family or dataset.env or "")


def _coverage_caption(dataset: Dataset) -> str:
    axes = "positions in the maze" if _is_maze(dataset) else "first two principal components of the observations"
    return f"State coverage: {axes}, at most {MAX_COVERAGE_ROWS:,} rows, colored by reward"


def _draw_coverage(figure: Any, dataset: Dataset) -> None:
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), MAX_COVERAGE_ROWS)).astype(int)
    observations = dataset.observations[rows]
    points = observations[:, :2] if _is_maze(dataset) else page_parts.principal_components(observations)
    axes = figure.subplots()
    dots = axes.scatter(points[:, 0], points[:, 1], c=dataset.rewards[rows], s=2, cmap="viridis", rasterized=True)
    if _is_maze(dataset):
        axes.set(xlabel="x", ylabel="y", aspect="equal")
    else:
        axes.set(xlabel="first component", ylabel="second component")
    figure.colorbar(dots, ax=axes, label="reward")
