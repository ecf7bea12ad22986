"""The data that page.js draws, in a compact form: interned names, downsampled curves, four significant digits."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from aspc.lab.paper_tables import domain_of
from aspc.lab.report.ablations import Ablation, DatasetComparison
from aspc.lab.report.content import ReportContent, ScaleCurve
from aspc.lab.report.curves import METRICS, Curve
from aspc.lab.report.datasets import DOMAINS
from aspc.lab.report.runtime import SeriesRuntime
from aspc.lab.report.statistics import NO_ESTIMATE
from aspc.lab.report.styles import MAX_DRAWN
from aspc.lab.report.view import MEASURES
from aspc.lab.results import parse_json

RUN_COLUMNS = (
    *("run_id", "variant", "method", "dataset", "seed", "steps", "status", "last", "best", "scale_last", "seconds"),
    *("steps_per_second", "runs_together", "device", "machine", "git_revision", "config_hash", "settings", "versions"),
    *("matmul_precision", "episodes", "started", "finished", "folder", "error"),
)
MAX_DEPTH = 8  # number of levels of a config that are flattened


def build_page_data(content: ReportContent) -> dict[str, Any]:
    """Return the data of a page as JSON values."""
    series = list(content.styles)
    index = {name: i for i, name in enumerate(series)}
    behavior = content.view.runs.groupby("dataset")["behaviour_score"].mean()
    curves: dict[int, list[Any]] = {}
    position = {name: i for i, name in enumerate(content.datasets)}
    for curve in content.curves:
        curves.setdefault(position[curve.dataset], []).append([index[curve.series], *_curve_data(curve)])
    return {
        "series": [[name, *content.styles[name]] for name in series],
        "main": [index[name] for name in content.main_series],
        "maxDrawn": MAX_DRAWN,
        "datasets": [
            [
                name,
                domain_of(name),
                MEASURES[content.measures[name]],
                _round(behavior.get(name)) if content.measures[name] == "score" else None,
            ]
            for name in content.datasets
        ],
        "domains": list(DOMAINS),
        "curves": curves,
        "scale": _scale_data(content, position),
        "overall": _overall_data(content, index),
        "radar": _radar_data(content, index),
        "lastBest": _last_best_data(content, index),
        "ablations": [_ablation_data(a, index) for a in content.ablations],
        "byDataset": [_dataset_comparison_data(c, index, content) for c in content.dataset_comparisons],
        "runtime": _runtime_data(content.runtimes, index),
        "intervals": _runtime_data(content.interval_runtimes, index),
        "runs": build_runs_data(content.view.all_runs, content.view.entries),
    }


def _round(value: Any) -> float | None:
    """Round to four significant digits. Missing and non-finite values become None, since JSON does not have them."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def _round_all(values: Iterable[float]) -> list[float | None]:
    return [_round(float(v)) for v in values]


def _curve_data(curve: Curve) -> list[Any]:
    """Return a curve's metric, steps, mean, standard deviation and number of seeds.

    Evenly spaced steps are replaced by their start, spacing and count.
    """
    steps = curve.steps
    gaps = np.unique(np.diff(steps))
    packed = {"x": [int(steps[0]), int(gaps[0]), len(steps)]} if len(gaps) == 1 else steps.tolist()
    return [METRICS.index(curve.metric), packed, _round_all(curve.mean), _round_all(curve.std), curve.n]


def _scale_data(content: ReportContent, position: Mapping[str, int]) -> dict[str, Any]:
    """Return the datasets in each panel of the charts of the scale. Their curves are in `curves`."""

    def panels(by_task: Mapping[str, Sequence[ScaleCurve]]) -> list[Any]:
        return [[[position[c.curve.dataset], c.name, *c.style] for c in found] for found in by_task.values()]

    series = content.scale_series
    return {
        "series": list(content.styles).index(series) if series is not None else 0,
        "qualities": panels(content.scale_by_quality()),
        "tasks": panels(content.scale_by_task()),
    }


def _dataset_comparison_data(
    comparison: DatasetComparison, index: Mapping[str, int], content: ReportContent
) -> dict[str, Any]:
    names = comparison.datasets
    return {
        "datasets": names,
        "unit": content.describe_unit(names),
        "changes": [comparison.describe_changes(name) for name in names],
        "bars": [
            [
                index[series],
                comparison.titles[label],
                [_round_all(comparison.scores.get((name, label), NO_ESTIMATE)) for name in names],
            ]
            for label, series in comparison.series.items()
        ],
    }


def _runtime_data(runtimes: Iterable[SeriesRuntime], index: Mapping[str, int]) -> list[Any]:
    return [[index[r.series], *_round_all(r.seconds), r.runs] for r in runtimes]


def _overall_data(content: ReportContent, index: Mapping[str, int]) -> dict[str, Any] | None:
    aggregates = content.aggregates
    if aggregates is None:
        return None
    overall, titles = aggregates.overall, content.main_table.titles
    named = {label: (index[content.main_table.series[label]], titles[label]) for label in overall.labels}
    return {
        "thresholds": _round_all(aggregates.thresholds),
        "profiles": [[*named[label], *map(_round_all, aggregates.profiles[label])] for label in overall.labels],
        "reference": titles[overall.reference],
        "improvement": [[*named[label], *_round_all(e)] for label, e in overall.improvement.items()],
    }


def _radar_data(content: ReportContent, index: Mapping[str, int]) -> dict[str, Any] | None:
    if content.radar is None:
        return None
    return {
        "tasks": content.radar.tasks,
        "values": [
            [
                index[content.main_table.series[label]],
                content.main_table.titles[label],
                _round_all(values),
                _round_all(content.radar.raw[label]),
            ]
            for label, values in content.radar.values.items()
        ],
    }


def _last_best_data(content: ReportContent, index: Mapping[str, int]) -> list[Any]:
    scores = content.headline_scores()
    if scores is None:
        return []
    name = f"average of {len(scores.datasets)} datasets" if len(scores.datasets) > 1 else scores.datasets[0]
    return [
        [
            index[content.main_table.series[label]],
            content.main_table.titles[label],
            _round(last.value),
            _round(scores.best[label].value),
            name,
        ]
        for label, last in sorted(scores.last.items(), key=lambda item: item[1].value)
    ]


def _ablation_data(ablation: Ablation, index: Mapping[str, int]) -> dict[str, Any]:
    return {
        "domains": ablation.domains,
        "bars": [
            [
                index[series],
                ablation.titles[label],
                [
                    _round_all(ablation.percent[d, label]) if (d, label) in ablation.percent else None
                    for d in ablation.domains
                ],
                [_round(ablation.paper.get((d, label))) for d in ablation.domains],
            ]
            for label, series in ablation.series.items()
        ],
    }


def build_runs_data(runs: pd.DataFrame, entries: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of the table of runs.

    Text is interned, and configs are stored as differences from the most common values.
    """
    columns: dict[str, Any] = {}
    for name in RUN_COLUMNS:
        values = runs[name]
        if pd.api.types.is_numeric_dtype(values):
            is_integer = pd.api.types.is_integer_dtype(values)
            columns[name] = values.tolist() if is_integer else _round_all(values.fillna(math.nan))
        else:
            columns[name] = intern_texts([None if pd.isna(v) else str(v) for v in values])
    configs = [flatten(parse_json(text)) for text in runs["config"]]
    common = most_common_values(configs)
    columns["config"] = intern_texts(
        [json.dumps({k: v for k, v in c.items() if common.get(k, _ABSENT) != v}, default=str) for c in configs]
    )
    by_run: dict[str, list[list[str]]] = {}
    for suite, label, run_id in zip(entries["suite"], entries["label"], entries["run_id"], strict=True):
        by_run.setdefault(run_id, []).append([suite, label])
    columns["entries"] = intern_texts([json.dumps(by_run.get(run_id, [])) for run_id in runs["run_id"]])
    return {"count": len(runs), "columns": columns, "common": common}


_ABSENT = object()


def intern_texts(values: list[str | None]) -> dict[str, Any]:
    """Return the unique values (`of`), and for each value its index in them (`at`)."""
    known: dict[str | None, int] = {}
    return {"at": [known.setdefault(v, len(known)) for v in values], "of": list(known)}


def flatten(value: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Flatten a nested object to dotted names. Objects nested deeper than MAX_DEPTH become JSON text."""
    if not isinstance(value, dict) or depth > MAX_DEPTH:
        return {prefix: value if isinstance(value, str | int | bool | None) else json.dumps(value)[:2000]}
    out: dict[str, Any] = {}
    for key, inner in value.items():
        out |= flatten(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    return out


def most_common_values(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the key-value pairs that more than half of the configs share."""
    counts: dict[str, Counter[Any]] = {}
    for config in configs:
        for key, value in config.items():
            counts.setdefault(key, Counter())[value] += 1
    found = {key: counter.most_common(1)[0] for key, counter in counts.items()}
    return {key: value for key, (value, n) in found.items() if 2 * n > len(configs)}
