"""What page.js draws from, compact: names once, curves with few points and four figures."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from aspc.lab.report.content import Content
from aspc.lab.report.curves import METRICS, Curve
from aspc.lab.report.statistics import NONE, Estimate
from aspc.lab.report.styles import MOST_DRAWN, QUALITY_COLOURS
from aspc.lab.report.tables import Ablation, ByDataset, Speed
from aspc.lab.report.view import DOMAINS, MEASURES, QUALITIES, domain_of, quality_of, task_of
from aspc.lab.results import parse_json


def page_data(content: Content) -> dict[str, Any]:
    """All of it, for JSON."""
    series = list(content.styles)
    numbers = {name: i for i, name in enumerate(series)}
    behaviour = content.view.runs.groupby("dataset")["behaviour_score"].mean()
    places = content.view.places
    curves: dict[int, list[Any]] = {}
    position = {name: i for i, name in enumerate(content.datasets)}
    for curve in content.curves:
        curves.setdefault(position[curve.dataset], []).append([numbers[curve.series], *_curve(curve)])
    return {
        "series": [[name, *content.styles[name]] for name in series],
        "main": [numbers[name] for name in content.main_series],
        "mostDrawn": MOST_DRAWN,
        "datasets": [
            [
                name,
                domain_of(name),
                MEASURES[content.measures[name]],
                _short(behaviour.get(name)) if content.measures[name] == "score" else None,
            ]
            for name in content.datasets
        ],
        "domains": list(DOMAINS),
        "curves": curves,
        "scale": _scale_data(content, position),
        "overall": _overall_data(content, numbers),
        "radar": _radar_data(content, numbers),
        "lastBest": _last_best(content, numbers),
        "ablations": [_ablation_data(a, numbers) for a in content.ablations],
        "byDataset": [_by_dataset_data(found, numbers, content) for found in content.by_dataset],
        "runtime": _speeds_data(content.speeds, numbers),
        "intervals": _speeds_data(content.interval_speeds, numbers),
        "runs": runs_data(content.view.all_runs, places),
    }


def _short(value: Any) -> float | None:
    """Four figures; null for what is missing or not finite, which JSON has no word for."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def _list(values: Iterable[float]) -> list[float | None]:
    return [_short(float(v)) for v in values]


def _three(estimate: Estimate) -> list[float | None]:
    return [_short(v) for v in estimate]


def _curve(curve: Curve) -> list[Any]:
    """Metric, steps, mean, standard deviation, seeds; evenly spaced steps as first, distance, count."""
    steps = curve.steps
    gaps = np.unique(np.diff(steps))
    packed = {"x": [int(steps[0]), int(gaps[0]), len(steps)]} if len(gaps) == 1 else steps.tolist()
    return [METRICS.index(curve.metric), packed, _list(curve.mean), _list(curve.std), curve.n]


def _scale_data(content: Content, position: Mapping[str, int]) -> dict[str, Any]:
    """Which datasets each picture of the scale has; their curves are those of `curves`."""
    curves = [c for c in content.curves if c.metric == "scale" and c.series == content.scale_series]
    tasks = sorted({task_of(c.dataset) for c in curves if quality_of(c.dataset)})
    by_quality = [
        [
            [position[c.dataset], quality, QUALITY_COLOURS[quality]]
            for quality in QUALITIES
            for c in curves
            if task_of(c.dataset) == task and quality_of(c.dataset) == quality
        ]
        for task in tasks
    ]
    by_task = [
        [[position[line.curve.dataset], line.name, *line.style] for line in lines]
        for lines in content.scale_by_task().values()
    ]
    number = list(content.styles).index(content.scale_series) if curves and content.scale_series else 0
    return {"series": number, "qualities": by_quality, "tasks": by_task}


def _by_dataset_data(found: ByDataset, numbers: Mapping[str, int], content: Content) -> dict[str, Any]:
    return {
        "datasets": found.datasets,
        "unit": content.units(found.datasets),
        "changes": [found.changes(name) for name in found.datasets],
        "bars": [
            [numbers[series], label, [_three(found.scores.get((name, label), NONE)) for name in found.datasets]]
            for label, series in found.series.items()
        ],
    }


def _speeds_data(speeds: Iterable[Speed], numbers: Mapping[str, int]) -> list[Any]:
    return [[numbers[s.series], *_three(s.seconds), s.runs] for s in speeds]


def _overall_data(content: Content, numbers: Mapping[str, int]) -> dict[str, Any] | None:
    found = content.aggregates
    if found is None:
        return None
    overall = found.overall
    of = {label: numbers[content.main.series[label]] for label in overall.labels}
    return {
        "thresholds": _list(found.thresholds),
        "profiles": [[of[label], label, *map(_list, found.profiles[label])] for label in overall.labels],
        "reference": overall.reference,
        "improvement": [[of[label], label, *_three(e)] for label, e in overall.improvement.items()],
    }


def _radar_data(content: Content, numbers: Mapping[str, int]) -> dict[str, Any] | None:
    if content.radar is None:
        return None
    return {
        "tasks": content.radar.tasks,
        "values": [
            [numbers[content.main.series[label]], label, _list(values), _list(content.radar.raw[label])]
            for label, values in content.radar.values.items()
        ],
    }


def _last_best(content: Content, numbers: Mapping[str, int]) -> list[Any]:
    found = content.compared()
    if found is None:
        return []
    name = f"average of {len(found.datasets)} datasets" if len(found.datasets) > 1 else found.datasets[0]
    return [
        [numbers[content.main.series[label]], label, _short(last.value), _short(found.best[label].value), name]
        for label, last in sorted(found.last.items(), key=lambda item: item[1].value)
    ]


def _ablation_data(ablation: Ablation, numbers: Mapping[str, int]) -> dict[str, Any]:
    return {
        "baseline": ablation.group.baseline,
        "domains": ablation.domains,
        "bars": [
            [
                numbers[series],
                label,
                [
                    _three(ablation.percent[d, label]) if (d, label) in ablation.percent else None
                    for d in ablation.domains
                ],
                [_short(ablation.paper.get((d, label))) for d in ablation.domains],
            ]
            for label, series in ablation.series.items()
        ],
    }


SHOWN = """run_id variant method dataset seed steps status last best scale_last seconds steps_per_second runs_together
device machine git_revision config_hash settings versions matmul_precision episodes started finished folder error"""


def runs_data(runs: pd.DataFrame, places: pd.DataFrame) -> dict[str, Any]:
    """Columns of the runs: repeated texts once, configs as what differs from the values that most runs have."""
    columns: dict[str, Any] = {}
    for name in SHOWN.split():
        values = runs[name]
        if pd.api.types.is_numeric_dtype(values):
            whole = pd.api.types.is_integer_dtype(values)
            columns[name] = values.tolist() if whole else _list(values.fillna(math.nan))
        else:
            columns[name] = interned([None if pd.isna(v) else str(v) for v in values])
    configs = [flat(parse_json(text)) for text in runs["config"]]
    common = most_common(configs)
    columns["config"] = interned(
        [json.dumps({k: v for k, v in c.items() if common.get(k, _ABSENT) != v}, default=str) for c in configs]
    )
    at: dict[str, list[list[str]]] = {}
    for suite, label, run_id in zip(places["suite"], places["label"], places["run_id"], strict=True):
        at.setdefault(run_id, []).append([suite, label])
    columns["places"] = interned([json.dumps(at.get(run_id, [])) for run_id in runs["run_id"]])
    return {"count": len(runs), "columns": columns, "common": common}


_ABSENT = object()


def interned(values: list[str | None]) -> dict[str, Any]:
    """Each text once, and numbers that say which."""
    known: dict[str | None, int] = {}
    return {"at": [known.setdefault(v, len(known)) for v in values], "of": list(known)}


def flat(value: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """A nested object with dotted names; what lies deeper than a config ever does stays as text."""
    if not isinstance(value, dict) or depth > 8:
        return {prefix: value if isinstance(value, str | int | bool | None) else json.dumps(value)[:2000]}
    out: dict[str, Any] = {}
    for key, inner in value.items():
        out |= flat(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    return out


def most_common(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each key that more than half of the runs have, its most frequent value."""
    counts: dict[str, Counter[Any]] = {}
    for config in configs:
        for key, value in config.items():
            counts.setdefault(key, Counter())[value] += 1
    found = {key: counter.most_common(1)[0] for key, counter in counts.items()}
    return {key: value for key, (value, n) in found.items() if 2 * n > len(configs)}
