"""Measure training time in seconds per million steps, and compare it under the same conditions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from aspc.lab.report import statistics
from aspc.lab.report.methods import method
from aspc.lab.report.statistics import IntervalEstimate
from aspc.lab.report.view import View, prefer_plain
from aspc.tasks import without_version

DEFAULT_INTERVAL = 10  # ASPC's default k_alpha


class SeriesRuntime(NamedTuple):
    """Seconds per million steps of a series on one dataset and device, with a given number of concurrent runs."""

    series: str
    device: str
    concurrent: int
    dataset: str
    seconds: IntervalEstimate
    runs: int
    algo: str

    @property
    def concurrency(self) -> str:
        return "one run at a time" if self.concurrent == 1 else f"{self.concurrent} concurrent runs"


def measure_runtimes(view: View) -> list[SeriesRuntime]:
    """Return the runtime of each series per dataset, device and number of concurrent runs.

    CPU devices have the same name on all machines, so their name is prefixed with a description of the machine.
    """
    entries = view.entries[view.entries["steps_per_second"] > 0].drop_duplicates(["series", "run_id"])
    entries = prefer_plain(entries, ["dataset", "series"])
    out = []
    keys = ["dataset", "device", "runs_together", "series"]
    device = entries["device"].fillna("unknown")
    device = device.where(~device.str.startswith("cpu"), entries["machine"].fillna("") + " " + device).str.strip()
    filled = entries.assign(device=device, runs_together=entries["runs_together"].fillna(1))
    for (dataset, device, concurrent, series), group in filled.groupby(keys):
        seconds = statistics.mean(1e6 / group["steps_per_second"].to_numpy(float))
        out.append(SeriesRuntime(series, device, int(concurrent), dataset, seconds, len(group), group["algo"].iloc[0]))
    return out


def compare_algorithms(runtimes: Sequence[SeriesRuntime]) -> list[SeriesRuntime]:
    """Select the runtimes measured under the same conditions (see `_select_conditions`) and return them, fastest first.

    Variants of an algorithm are omitted if the algorithm itself is included.
    """
    chosen = _select_conditions(runtimes)
    plain = {runtime.algo for runtime in chosen if runtime.series == method(runtime.algo).name}
    kept = [runtime for runtime in chosen if runtime.series == method(runtime.algo).name or runtime.algo not in plain]
    return sorted(kept, key=lambda runtime: runtime.seconds.value)


def compare_intervals(runtimes: Sequence[SeriesRuntime]) -> list[SeriesRuntime]:
    """Return ASPC's runtimes by increasing update interval of alpha, followed by TD3+BC's runtime as a lower bound.

    All runtimes were measured under the same conditions. The result is empty if there are fewer than two intervals.
    """
    intervals = {runtime.series: k for runtime in runtimes if (k := _update_interval(runtime.series)) is not None}
    chosen = _select_conditions([runtime for runtime in runtimes if runtime.series in {*intervals, "TD3+BC"}])
    learned = sorted((r for r in chosen if r.series in intervals), key=lambda runtime: intervals[runtime.series])
    return [*learned, *(r for r in chosen if r.series == "TD3+BC")] if len(learned) > 1 else []


def _update_interval(series: str) -> int | None:
    """Return the k_alpha of a series if nothing else distinguishes it from plain ASPC, otherwise None."""
    if series == "ASPC":
        return DEFAULT_INTERVAL
    found = re.fullmatch(r"ASPC, k_alpha = ([0-9]+)", series)
    return int(found[1]) if found else None


def _select_conditions(runtimes: Sequence[SeriesRuntime]) -> list[SeriesRuntime]:
    """Return the runtimes for the combination of dataset, device and number of concurrent runs with the most series.

    Conditions without concurrent runs take precedence if they have at least two series, since only they show the cost
    of an algorithm. Ties are resolved in favor of halfcheetah-medium.
    """
    groups: dict[tuple[str, str, int], list[SeriesRuntime]] = {}
    for runtime in runtimes:
        groups.setdefault((runtime.dataset, runtime.device, runtime.concurrent), []).append(runtime)
    if not groups:
        return []

    def priority(conditions: tuple[str, str, int]) -> tuple[bool, int, bool, int, tuple[str, str, int]]:
        dataset, _, concurrent = conditions
        series = len(groups[conditions])
        is_alone = concurrent == 1 and series > 1
        return is_alone, series, without_version(dataset) == "halfcheetah-medium", -concurrent, conditions

    return groups[max(groups, key=priority)]
