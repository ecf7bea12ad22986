"""One self-contained HTML page of pictures of a dataset."""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aspc import tasks
from aspc.data import cache
from aspc.data.dataset import Dataset
from aspc.data.diagnostics import Summary, summarise
from aspc.errors import printable

SHOWN_ROWS = 20_000  # of state coverage
SHOWN_ACTIONS = 12
INK = "#2b6cb0"

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a202c}
table{border-collapse:collapse}td{padding:.15rem 1rem .15rem 0;vertical-align:top}td:first-child{color:#4a5568}
figure{margin:1.5rem 0}figcaption{color:#4a5568}img{max-width:100%}li{margin:.2rem 0}
@media(prefers-color-scheme:dark){body{background:#1a202c;color:#e2e8f0}img{background:#fff}}"""


def write_page(dataset: Dataset, path: Path) -> None:
    """Write the page, whole or not at all."""
    text = page(dataset, summarise(dataset))
    with cache.replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def page(dataset: Dataset, summary: Summary) -> str:
    """The page as text: facts, warnings, pictures. Every word from the data is escaped."""
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in summary.facts)
    warnings = "".join(f"<li>{html.escape(warning)}</li>" for warning in summary.warnings) or "<li>none</li>"
    figures = "".join(
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{picture}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for caption, picture in pictures(dataset)
    )
    title = html.escape(dataset.name)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{title}</title><style>{STYLE}</style>"
    return (
        f'<!doctype html><html lang="en"><head>{head}</head>'
        f"<body><h1>{title}</h1><table>{rows}</table><h2>Warnings</h2><ul>{warnings}</ul>"
        f"<h2>Pictures</h2>{figures}</body></html>\n"
    )


def pictures(dataset: Dataset) -> list[tuple[str, str]]:
    """Captions and PNG pictures (base64)."""
    return [
        ("Returns and lengths of episodes, and how they ended", png(_episodes, dataset)),
        ("Mean reward over the log, in 200 stretches", png(_rewards, dataset)),
        (_actions_caption(dataset), png(_actions, dataset)),
        (_coverage_caption(dataset), png(_coverage, dataset)),
    ]


def png(draw: Any, subject: Any) -> str:
    """`draw(figure, subject)` as a PNG picture in base64."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    draw(figure, subject)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _episodes(figure: Any, dataset: Dataset) -> None:
    returns, lengths, ends = figure.subplots(1, 3)
    returns.hist(dataset.episode_returns, bins=40, color=INK)
    returns.set(xlabel="return", ylabel="episodes")
    lengths.hist(dataset.episode_lengths, bins=40, color=INK)
    lengths.set(xlabel="length")
    counts = [int(dataset.terminals.sum()), int(dataset.timeouts.sum())]
    ends.bar(["terminal", "timeout"], counts, color=INK)
    ends.set(ylabel="rows", ylim=(0, 1.1 * max(*counts, 1)))


def _rewards(figure: Any, dataset: Dataset) -> None:
    stretches = np.array_split(dataset.rewards.astype(np.float64), min(200, len(dataset)))
    starts = np.cumsum([0, *map(len, stretches[:-1])])
    axes = figure.subplots()
    axes.plot(starts, [stretch.mean() for stretch in stretches], color=INK)
    axes.set(xlabel="row", ylabel="mean reward")


def _actions_caption(dataset: Dataset) -> str:
    shown = min(dataset.action_size, SHOWN_ACTIONS)
    which = (
        "each dimension" if shown == dataset.action_size else f"the first {shown} of {dataset.action_size} dimensions"
    )
    return f"Actions within their bounds, {which}"


def _actions(figure: Any, dataset: Dataset) -> None:
    shown = min(dataset.action_size, SHOWN_ACTIONS)
    columns = min(shown, 6)
    rows = -(-shown // columns)
    for i, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        if i >= shown:
            axes.set_axis_off()
            continue
        bounds = (float(dataset.action_low[i]), float(dataset.action_high[i]))
        axes.hist(dataset.actions[:, i], bins=40, range=bounds, color=INK)
        write_action_title(axes, dataset.action_names, i)
        axes.tick_params(labelsize=6)


def write_action_title(axes: Any, names: Sequence[str], dimension: int) -> None:
    """The column's name, in lines that fit a panel and never read as a formula, or else the dimension's number."""
    title = textwrap.fill(printable(names[dimension]), 28) if names else str(dimension)
    axes.set_title(title, fontsize=8, parse_math=False)


def _is_maze(dataset: Dataset) -> bool:
    family = None if dataset.env is None else tasks.family_of(dataset.env.split("?")[0])
    return "maze" in (family or dataset.env or "")


def _coverage_caption(dataset: Dataset) -> str:
    what = "positions in the maze" if _is_maze(dataset) else "first two principal components of the observations"
    return f"State coverage: {what}, at most {SHOWN_ROWS:,} rows, coloured by reward"


def _coverage(figure: Any, dataset: Dataset) -> None:
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), SHOWN_ROWS)).astype(int)
    points = dataset.observations[rows, :2] if _is_maze(dataset) else principal_components(dataset.observations[rows])
    if points.shape[1] == 1:
        points = np.concatenate([points, np.zeros_like(points)], axis=1)
    axes = figure.subplots()
    dots = axes.scatter(points[:, 0], points[:, 1], c=dataset.rewards[rows], s=2, cmap="viridis", rasterized=True)
    if _is_maze(dataset):
        axes.set(xlabel="x", ylabel="y", aspect="equal")
    else:
        axes.set(xlabel="first component", ylabel="second component")
    figure.colorbar(dots, ax=axes, label="reward")


def principal_components(observations: np.ndarray) -> np.ndarray:
    """The two directions of largest variance of the standardised observations."""
    wide = observations.astype(np.float64)
    centred = (wide - wide.mean(axis=0)) / (wide.std(axis=0) + 1e-9)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    return centred @ vectors[:, np.argsort(values)[::-1][:2]]
