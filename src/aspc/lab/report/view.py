"""Prepare results for the report: annotate runs with their method, task and measure, and select runs to compare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pandas as pd

from aspc.lab.paper_tables import domain_of, tables
from aspc.lab.report.datasets import task_of
from aspc.lab.report.methods import TD3_BC_FAMILY, Method, algo_of, method_of, settings_of
from aspc.lab.results import Results
from aspc.presets import presets_of

MEASURES = {"score": "normalized score", "success": "success rate, %", "return": "return"}
UNTUNED_IN_PAPER = ("a2pr",)  # published with per-dataset settings, but the paper uses one setting for all datasets


@dataclass(frozen=True)
class View:
    """Annotated results.

    Attributes:
        runs: finished runs. `measure` names the unit of `last` and `best`.
        entries: finished runs, with one row for each suite that contains the run and with the `label` from that suite.
            `series` is the name shown on the page: plain ASPC is "ASPC" in every suite, and other runs keep their
            label.
        all_runs: finished and failed runs.
        curves: the curves of all runs.
    """

    runs: pd.DataFrame
    entries: pd.DataFrame
    all_runs: pd.DataFrame
    curves: pd.DataFrame

    def runs_of(self, wanted: Method) -> pd.DataFrame:
        """Return the runs that represent a method on each dataset, one per seed (see `select_one_per_seed`)."""
        return select_one_per_seed(self.candidates(wanted), ["dataset"])

    def candidates(self, wanted: Method) -> pd.DataFrame:
        """Return all runs of a method. On datasets that have plain runs (see `prefer_plain`), return only those."""
        return prefer_plain(self.runs[self.runs["method"] == wanted.name], ["dataset"])

    def comparable_runs(self, a: Method, b: Method) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the runs of two methods on the same datasets with the same number of steps."""
        first, second = match_lengths(self.candidates(a), self.candidates(b))
        return first, second

    def suite_runs(self, name: str) -> pd.DataFrame:
        """Return the runs of a suite with their labels: one run per dataset, label and seed."""
        return select_one_per_seed(self._suite_entries(name), ["dataset", "label"])

    def comparable_suite_runs(self, name: str) -> pd.DataFrame:
        """Return the runs of a suite, restricted to one number of steps per dataset.

        This is the largest number of steps for which at least half of the labels have runs on the dataset. If there is
        no such number, the most frequent one is used.
        """
        entries = prefer_plain(self._suite_entries(name), ["dataset", "label"])
        labels = entries.groupby(["dataset", "steps"], as_index=False)["label"].nunique()
        most = entries.groupby("dataset")["label"].nunique()
        labels["label"] = labels["label"].clip(upper=np.ceil(labels["dataset"].map(most) / 2))
        chosen = labels.sort_values(["label", "steps"], kind="stable").drop_duplicates("dataset", keep="last")
        return select_one_per_seed(entries.merge(chosen[["dataset", "steps"]]), ["dataset", "label"])

    def _suite_entries(self, suite: str) -> pd.DataFrame:
        return self.entries[self.entries["suite"] == suite]

    def suite_names(self) -> list[str]:
        """Return the names of the suites that have runs: the paper's tables in their order, then the other suites."""
        order = list(tables())
        found = self.entries["suite"].unique()
        return sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))


def build_view(results: Results) -> View:
    """Annotate the runs with their task, domain, method and measure."""
    runs = results.runs.copy()
    runs["domain"] = runs["dataset"].map(domain_of)
    runs["task"] = runs["dataset"].map(task_of)
    runs["algo"] = [algo_of(*row) for row in zip(runs["algo"], runs["settings"], runs["config"], strict=True)]
    settings = [settings_of(text) for text in runs["settings"]]
    methods = [method_of(algo, s) for algo, s in zip(runs["algo"], settings, strict=True)]
    runs["method"] = [m.name for m in methods]
    runs["tuned"] = [_count_tuned(s, m) for s, m in zip(settings, methods, strict=True)]
    runs["as_in_paper"] = runs["tuned"].where(~runs["algo"].isin(UNTUNED_IN_PAPER), -runs["tuned"])
    runs["changed"] = [json.dumps(s, sort_keys=True) for s in settings]
    _add_measure(runs, results.curves)
    done = runs[runs["status"] == "done"].reset_index(drop=True)
    labels = results.entries[["suite", "variant", "run_id"]].rename(columns={"variant": "label"})
    entries = labels.merge(done.drop(columns=["suite", "variant"]), on="run_id")
    is_plain = entries["algo"].isin(TD3_BC_FAMILY) & (entries["tuned"] == 0)
    return View(done, entries.assign(series=entries["method"].where(is_plain, entries["label"])), runs, results.curves)


def _count_tuned(settings: Mapping[str, Any], method: Method) -> int:
    """Count the settings that do not define the method.

    The number is positive for algorithms that were published with per-dataset settings. For other algorithms, these
    settings are deviations (in a hyperparameter search, for example), and the number is negative, so that plain runs
    rank first.
    """
    count = len(settings) - len(method.changes)
    return count if _has_dataset_settings(method.algo) else -count


@lru_cache(maxsize=1000)
def _has_dataset_settings(algo: str) -> bool:
    """Return whether an algorithm was published with per-dataset settings.

    The TD3+BC family was not: it uses one setting for all datasets, although CORL shifts TD3+BC's rewards on some.
    """
    return algo not in TD3_BC_FAMILY and any(preset.by_dataset is not None for preset in presets_of(algo).values())


def _add_measure(runs: pd.DataFrame, curves: pd.DataFrame) -> None:
    """Add the columns `measure`, `last` and `best`.

    The measure of a dataset is the normalized score if it is known, otherwise the success rate in percent if it is
    known, and otherwise the return.
    """
    done = runs[runs["status"] == "done"]
    has_score = runs["dataset"].isin(set(done.loc[done["score_last"].notna(), "dataset"]))
    has_success = ~has_score & runs["dataset"].isin(set(done.loc[done["success_last"].notna(), "dataset"]))
    best_success = runs["run_id"].map(curves.groupby("run_id")["success_rate"].max()).fillna(runs["success_last"])
    success = {"last": 100 * runs["success_last"], "best": 100 * best_success}
    runs["measure"] = np.where(has_score, "score", np.where(has_success, "success", "return"))
    for which in ("last", "best"):
        other = np.where(has_success, success[which], runs[f"return_{which}"])
        runs[which] = np.where(has_score, runs[f"score_{which}"], other).astype(float)


def match_lengths(*tables_of_runs: pd.DataFrame) -> list[pd.DataFrame]:
    """Restrict tables of runs to their common datasets and, per dataset, to the longest common number of steps.

    Each returned table has one run per dataset and seed.
    """
    shared = reduce(pd.merge, [runs[["dataset", "steps"]].drop_duplicates() for runs in tables_of_runs])
    longest = shared.groupby("dataset", as_index=False).max()
    return [select_one_per_seed(runs.merge(longest), ["dataset"]) for runs in tables_of_runs]


def select_one_per_seed(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Select one run per seed within each group of `keys`.

    The criteria are, in this order: plain runs (see `prefer_plain`), the most steps, settings tuned as in the paper,
    the settings with the most seeds (then the newest settings), and the newest run of each seed.
    """
    if runs.empty:
        return runs
    runs = prefer_plain(runs, keys)
    for column in ("steps", "as_in_paper"):
        runs = runs[runs[column] == runs.groupby(keys)[column].transform("max")]
    by_settings = runs.fillna({"finished": ""}).groupby([*keys, "changed"], as_index=False)
    counts = by_settings.agg(seeds=("seed", "nunique"), finished=("finished", "max")).sort_values(["seeds", "finished"])
    runs = runs.merge(counts.drop_duplicates(keys, keep="last")[[*keys, "changed"]])
    runs = runs.sort_values("finished", kind="stable").drop_duplicates([*keys, "seed"], keep="last")
    return runs.sort_values([*keys, "seed"], kind="stable")


def prefer_plain(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Drop runs with modified settings in groups of `keys` that also have plain runs, whatever their lengths.

    The settings with which an algorithm was published do not count as modified.
    """
    is_plain = runs["tuned"] >= 0
    return runs[is_plain == is_plain.groupby([runs[key] for key in keys]).transform("max")]


def drop_returns(runs: pd.DataFrame) -> pd.DataFrame:
    """Drop runs measured by return. Returns have a different unit on each dataset and cannot be averaged."""
    return runs[runs["measure"] != "return"]


def scores_by_dataset(runs: pd.DataFrame, column: str = "last") -> dict[str, np.ndarray]:
    """Return the values of each dataset's runs, ordered by seed and without missing or infinite values."""
    found = runs[np.isfinite(runs[column].astype(float))].sort_values(["dataset", "seed"], kind="stable")
    return {str(name): group[column].to_numpy(float) for name, group in found.groupby("dataset", sort=False)}
