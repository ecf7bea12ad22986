"""Results made ready for reading: what each run is, how it is measured, and which runs belong together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from aspc.lab.paper_tables import PaperTable, domain_of, tables
from aspc.lab.results import Results, parse_json
from aspc.presets import presets_of
from aspc.tasks import without_version

ALGORITHMS = {
    "aspc": "ASPC",
    "aspc_plus": "ASPC+",
    "aspc_averaged": "ASPC, averaged policy",
    "td3_bc": "TD3+BC",
    "td3_bc_two_policies": "TD3+BC, two policies",
    "mcep": "MCEP",
    "rapo": "RAPO",
    "wpc": "wPC",
    "a2pr": "A2PR",
    "iql": "IQL",
    "rebrac": "ReBRAC",
    "cql": "CQL",
    "diffusion_ql": "Diffusion-QL",
    "fql": "FQL",
    "bc": "BC",
}
WALKERS = ("halfcheetah", "hopper", "walker2d")
TASKS = (*WALKERS, "maze2d", "antmaze", "pen", "door", "hammer", "relocate")
QUALITIES = ("expert", "medium-expert", "medium", "medium-replay", "full-replay", "random")  # best data first
DOMAINS = ("MuJoCo", "Maze2d", "AntMaze", "Adroit", "OGBench", "Other")
MEASURES = {"score": "normalised score", "success": "success rate, %", "return": "return"}
# Settings that make another method of an algorithm. Others (sizes, a preset's tuned values) leave it what it is.
OF_THE_SCALE = (
    *("acting_ratio", "bc", "evaluation_alpha", "k_alpha", "l2", "l3_form", "outer_batch", "outer_loss", "scale_lr"),
    "scale_mode",
)
OF_TD3_BC = ("alpha", "critic_hidden_layers", "critic_layer_norm")
OWN_SCALE = ("aspc", "aspc_averaged", "aspc_plus", "rapo")  # learn alpha without a base in their names
ON_TD3_BC = (*OWN_SCALE, "mcep", "td3_bc", "td3_bc_two_policies", "wpc")
ONE_SETTING = ("a2pr",)  # has settings for some datasets, but the paper compares it with one for all
FOLLOWS = ("scale_target", "scale_horizon")  # settings that follow from the dataset and the length of the run


class Method(NamedTuple):
    """An algorithm with the settings that make it another method."""

    algo: str
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        changes = dict(self.changes)
        plain = "+".join(ALGORITHMS.get(part, part) for part in self.algo.split("+"))
        if changes.pop("bc", None) == "advantage_weighted":
            plain += "+AW"
        words = []
        if changes.get("critic_hidden_layers") == 2 and changes.get("critic_layer_norm") is False:
            changes = {k: v for k, v in changes.items() if not k.startswith("critic_")}
            words.append("without RC")
        words += [_words(self.algo, key, value) for key, value in changes.items()]
        return ", ".join([plain, *words])


def _words(algo: str, key: str, value: Any) -> str:
    if key == "outer_loss":
        return f"{value} only" if value == "L1" else str(value)
    if key == "l3_form":
        return f"L3 form {value}"
    if key == "scale_mode":
        return f"{value} alpha"
    name = {"scale_lr": "lr", "alpha": "alpha0" if algo in OWN_SCALE else "alpha"}.get(key, key)
    return f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"


def method(algo: str, **changes: Any) -> Method:
    return Method(algo, tuple(sorted(changes.items())))


def method_of(algo: str, settings: Mapping[str, Any]) -> Method:
    keys = OF_THE_SCALE + (OF_TD3_BC if algo in ON_TD3_BC else ())
    return Method(algo, tuple(sorted((k, v) for k, v in settings.items() if k in keys)))


@dataclass(frozen=True)
class View:
    """Runs that are done, annotated; their places in suites; all runs; and curves.

    `last` and `best` are in the unit that `measure` names; `series` is a place's name on this page: plain ASPC is
    "ASPC" in whatever suite, while a label that says more than the settings do is kept.
    """

    runs: pd.DataFrame
    places: pd.DataFrame
    all_runs: pd.DataFrame
    curves: pd.DataFrame

    def of(self, wanted: Method) -> pd.DataFrame:
        """The runs that stand for a method, each seed once: those with the most steps, tuned per dataset rather than
        not where the paper's are."""
        return one_each(self.standing_for(wanted), ["dataset"])

    def standing_for(self, wanted: Method) -> pd.DataFrame:
        """All runs of a method; on datasets where it was run plain, the plain ones alone."""
        return plain_if_any(self.runs[self.runs["method"] == wanted.name], ["dataset"])

    def pair(self, a: Method, b: Method) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The runs of two methods that can be compared."""
        first, second = comparable(self.standing_for(a), self.standing_for(b))
        return first, second

    def suite(self, name: str) -> pd.DataFrame:
        """The runs of a suite with their labels there; each dataset, label and seed once."""
        return one_each(self._places_of(name), ["dataset", "label"])

    def compared(self, name: str) -> pd.DataFrame:
        """The runs of a suite as `suite` has them, but of one length on each dataset: the longest that at least half of
        the labels have there, or else the one that most have."""
        places = plain_if_any(self._places_of(name), ["dataset", "label"])
        labels = places.groupby(["dataset", "steps"], as_index=False)["label"].nunique()
        most = places.groupby("dataset")["label"].nunique()
        labels["label"] = labels["label"].clip(upper=np.ceil(labels["dataset"].map(most) / 2))
        chosen = labels.sort_values(["label", "steps"], kind="stable").drop_duplicates("dataset", keep="last")
        return one_each(places.merge(chosen[["dataset", "steps"]]), ["dataset", "label"])

    def _places_of(self, suite: str) -> pd.DataFrame:
        return self.places[self.places["suite"] == suite]

    def suites(self) -> list[str]:
        """Suites with runs: the paper's tables first, in its order."""
        order = list(tables())
        found = self.places["suite"].unique()
        return sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))


def comparable(*found: pd.DataFrame) -> list[pd.DataFrame]:
    """Of several tables of runs those on the same datasets, with the same number of steps (the most that all have);
    each seed once."""
    shared = reduce(pd.merge, [runs[["dataset", "steps"]].drop_duplicates() for runs in found])
    longest = shared.groupby("dataset", as_index=False).max()
    return [one_each(runs.merge(longest), ["dataset"]) for runs in found]


def one_each(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Each seed once: the plain runs if they are to stand for the others; of these those with the most steps, of these
    the most tuned (where the paper's are), of these those of the settings that have the most seeds (then the newest),
    and of these each seed's newest."""
    if runs.empty:
        return runs
    runs = plain_if_any(runs, keys)
    for column in ("steps", "as_in_paper"):
        runs = runs[runs[column] == runs.groupby(keys)[column].transform("max")]
    alike = runs.fillna({"finished": ""}).groupby([*keys, "changed"], as_index=False)
    kinds = alike.agg(seeds=("seed", "nunique"), finished=("finished", "max")).sort_values(["seeds", "finished"])
    runs = runs.merge(kinds.drop_duplicates(keys, keep="last")[[*keys, "changed"]])
    runs = runs.sort_values("finished", kind="stable").drop_duplicates([*keys, "seed"], keep="last")
    return runs.sort_values([*keys, "seed"], kind="stable")


def plain_if_any(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Without runs of changed settings (a search's, say) wherever plain ones are beside them, however short. Settings
    that an algorithm is published with are no changes."""
    plain = runs["tuned"] >= 0
    return runs[plain == plain.groupby([runs[key] for key in keys]).transform("max")]


def prepare(results: Results) -> View:
    """Annotate runs with task, domain, method and measure."""
    runs = results.runs.copy()
    runs["domain"] = runs["dataset"].map(domain_of)
    runs["task"] = runs["dataset"].map(task_of)
    settings = [settings_of(s, c) for s, c in zip(runs["settings"], runs["config"], strict=True)]
    methods = [method_of(algo, s) for algo, s in zip(runs["algo"], settings, strict=True)]
    runs["method"] = [m.name for m in methods]
    runs["tuned"] = [_tuned(s, m) for s, m in zip(settings, methods, strict=True)]
    runs["as_in_paper"] = runs["tuned"].where(~runs["algo"].isin(ONE_SETTING), -runs["tuned"])
    runs["changed"] = [json.dumps(s, sort_keys=True) for s in settings]
    _measure(runs, results.curves)
    done = runs[runs["status"] == "done"].reset_index(drop=True)
    entries = results.entries[["suite", "variant", "run_id"]].rename(columns={"variant": "label"})
    places = entries.merge(done.drop(columns=["suite", "variant"]), on="run_id")
    plain = places["algo"].isin(ON_TD3_BC) & (places["tuned"] == 0)
    return View(done, places.assign(series=places["method"].where(plain, places["label"])), runs, results.curves)


def _tuned(settings: Mapping[str, Any], method: Method) -> int:
    """How many settings are tuned, where an algorithm is published with settings for each dataset. Changes to another
    algorithm (a search's, say) count below none: the plain one stands for it."""
    others = len(settings) - len(method.changes)
    return others if _has_settings_by_dataset(method.algo) else -others


@lru_cache(maxsize=1000)
def _has_settings_by_dataset(algo: str) -> bool:
    """Not those on TD3+BC: they are one setting for all, though CORL shifts TD3+BC's rewards on some datasets."""
    return algo not in ON_TD3_BC and any(preset.by_dataset is not None for preset in presets_of(algo).values())


def settings_of(settings: Any, config: Any) -> dict[str, Any]:
    """What differs from the defaults, by the last part of its dotted name; the BC term may be in the config alone."""
    found = {key.rpartition(".")[2]: value for key, value in parse_json(settings).items()}
    if "bc" not in found and parse_json(config).get("bc") == "advantage_weighted":
        found["bc"] = "advantage_weighted"
    if found.get("bc") == "plain":
        del found["bc"]
    return {k: v for k, v in found.items() if k not in FOLLOWS and isinstance(v, str | int | float | bool)}


def _measure(runs: pd.DataFrame, curves: pd.DataFrame) -> None:
    """Score where there is one, else success in percent, else return: the same for all runs of a dataset."""
    done = runs[runs["status"] == "done"]
    scored = runs["dataset"].isin(set(done.loc[done["score_last"].notna(), "dataset"]))
    succeeding = ~scored & runs["dataset"].isin(set(done.loc[done["success_last"].notna(), "dataset"]))
    best_success = runs["run_id"].map(curves.groupby("run_id")["success_rate"].max()).fillna(runs["success_last"])
    success = {"last": 100 * runs["success_last"], "best": 100 * best_success}
    runs["measure"] = np.where(scored, "score", np.where(succeeding, "success", "return"))
    for which in ("last", "best"):
        other = np.where(succeeding, success[which], runs[f"return_{which}"])
        runs[which] = np.where(scored, runs[f"score_{which}"], other).astype(float)


def averaged(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs that are averaged over datasets: returns are in units of their own, so they are not."""
    return runs[runs["measure"] != "return"]


def scores(runs: pd.DataFrame, column: str = "last") -> dict[str, np.ndarray]:
    """Dataset → one number for each seed, in the order of seeds; missing and infinite numbers are left out."""
    found = runs[np.isfinite(runs[column].astype(float))].sort_values(["dataset", "seed"], kind="stable")
    return {str(name): group[column].to_numpy(float) for name, group in found.groupby("dataset", sort=False)}


def task_of(dataset: str) -> str:
    """Return the task of a D4RL name (its first word); other names are their own task."""
    word = without_version(dataset).split("-")[0]
    is_d4rl = word in TASKS and domain_of(dataset) not in ("OGBench", "Other")
    return word if is_d4rl else without_version(dataset)


def quality_of(dataset: str) -> str | None:
    """The quality in a locomotion dataset's name."""
    task, _, rest = without_version(dataset).partition("-")
    return rest if task in WALKERS and rest in QUALITIES else None


def in_order(datasets: Iterable[str]) -> list[str]:
    """Domains in the paper's order, D4RL's and OGBench's datasets in the order of its tables, others by name."""
    printed = [name for table in ("main_table", "ogbench") for name in tables()[table].rows]
    known = {without_version(name): i for i, name in enumerate(printed)}

    def place(name: str) -> tuple[int, int, str]:
        return DOMAINS.index(domain_of(name)), known.get(without_version(name), len(known)), name

    return sorted(set(datasets), key=place)


def paper_row(table: PaperTable, dataset: str) -> str | None:
    """The paper's name of a dataset: the same, or the same but for the version (data that was generated anew)."""
    return next((row for row in table.rows if row == dataset or without_version(row) == dataset), None)
