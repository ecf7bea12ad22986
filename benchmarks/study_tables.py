"""Write the tables, the verdicts and the pictures of docs/study.md and docs/aspc_plus.md from results: one command
after every sitting.

    python benchmarks/study_tables.py [RESULTS] [--docs docs]

RESULTS is a folder of results, or a folder of such folders (by default results/; where it is not there, nothing has run
yet). What stands between `<!-- study: NAME -->` and `<!-- end -->` is written anew, the rest is left as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from aspc import algorithms
from aspc.adaptive_scale import raw_from_scale
from aspc.algorithms.base import with_horizon
from aspc.experiments import results, suites
from aspc.experiments.plan import Plan, make_plan
from aspc.experiments.results import Results
from aspc.plugins import load_plugin
from aspc.policy import write_atomically
from aspc.presets.paper_tables import domain_of
from aspc.report import claims, stats
from aspc.report.stats import Estimate
from aspc.report.view import DOMAINS, QUALITIES, View, in_order, prepare, quality_of, scores
from aspc.training.config import replace_fields

ROOT = Path(__file__).parents[1]
TIERS = suites.get("study").parts
PLUGIN = Path(__file__).with_name("candidates.py")
TRIAL = "candidates_trial"
SEARCH = ("search", "candidates", "candidates_long", TRIAL)  # all but the first are the plugin's
TIMED = "study_time"
ABLATION_TIER = "study_b"
NOT_RUN = "Not run yet."
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#999999"
ALIKE = 2.0  # points, below which the ends of two algorithms on a dataset are not told apart in the picture
BASELINE = suites.ASPC.label
WINNER = "independent outer batch, two scales, ratio 2"  # of the search: the library's aspc_plus
VERDICT_NAMES = {claims.HOLDS: "**holds**", claims.FAILS: "**does not hold**", claims.OPEN: "not enough data"}


@dataclass(frozen=True)
class Study:
    """What was found: the runs of the study's own suites, and those of the search for a better variant."""

    study: Results | None
    search: Results | None
    view: View | None
    search_view: View | None


def read(folder: Path) -> Study:
    """The results below a folder. A run belongs to a suite by its entry: the study's claims are never made with the
    search's variants of ASPC, whatever folder they are in."""
    if not results.result_folders(folder):
        return Study(None, None, None, None)
    everything = results.read(folder)
    study, search = of_suites(everything, (*TIERS, TIMED)), of_suites(everything, SEARCH)
    if search is not None:
        search = of_suites(with_planned_entries(everything), SEARCH)
    return Study(study, search, *(None if found is None else prepare(found) for found in (study, search)))


def with_planned_entries(found: Results) -> Results:
    """Runs of the tiers are also the search's where it declares the same ones, all of their seeds: a sitting that was
    asked for the candidates alone has made no entries for what they are compared with."""
    extra = pd.DataFrame([entry for suite in SEARCH for entry in planned(suite, seeds=suites.Block.seeds).entries])
    return replace(found, entries=pd.concat([found.entries, extra]).drop_duplicates(["suite", "variant", "run_id"]))


def of_suites(found: Results, names: Iterable[str]) -> Results | None:
    entries = found.entries[found.entries["suite"].isin(list(names))]
    runs, curves = (table[table["run_id"].isin(entries["run_id"])] for table in (found.runs, found.curves))
    return None if runs.empty else replace(found, runs=runs, curves=curves, entries=entries)


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "∣") for cell in line) + " |" for line in lines)


def number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    digits = 1 if abs(value) >= 1 else 2
    return f"{value:.{digits}f}".replace("-", "−")


def interval(estimate: Estimate) -> str:
    """The number, and the ends of its 95 % interval where there is one."""
    if not math.isfinite(estimate.value):
        return "–"
    ends = f" [{number(estimate.low)}, {number(estimate.high)}]" if estimate.has_interval else ""
    return number(estimate.value) + ends


# ── what ran ────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def planned(suite: str, seeds: int | None = None) -> Plan:
    """What a suite declares, with all its data at hand."""
    if suite not in suites.names():
        load_plugin(str(PLUGIN))
    files = {name: Path(name) for name in suites.STUDIED}
    return make_plan(suites.expanded([suite]), seeds=seeds, data=files)


def what_ran(study: Study) -> str:
    rows = []
    for suite in (*TIERS, TIMED, *SEARCH):
        wanted = set(planned(suite).runs)
        found = study.search if suite in SEARCH else study.study
        runs = None if found is None else found.runs[found.runs["run_id"].isin(wanted)]
        done, failed = (0 if runs is None else int((runs["status"] == s).sum()) for s in ("done", "failed"))
        hours = "–" if runs is None or runs.empty else f"{group_hours(runs):.2f}"
        rows.append((f"`{suite}`", suites.get(suite).title, f"{len(wanted):,}", f"{done:,}", f"{failed:,}", hours))
    return "\n\n".join(
        [table(("suite", "what", "runs", "done", "failed", "hours of groups"), rows), circumstances(study)]
    )


def group_hours(runs: pd.DataFrame) -> float:
    """Of all groups together: a group's seconds count once, what suites share counts in each, and groups that share a
    device count each by itself."""
    return float(runs.groupby("group_id")["seconds"].max().sum()) / 3600


def circumstances(study: Study) -> str:
    """When and where it ran, and by which commands."""
    parts = [part.runs for part in (study.study, study.search) if part is not None]
    if not parts:
        return NOT_RUN
    runs = pd.concat(parts).drop_duplicates("run_id")
    facts = [
        f"From {runs['started'].min()} to {runs['finished'].max()}.",
        f"Device: {listed(runs['device'])}. Machine: {listed(runs['machine'])}.",
        f"Revision: {listed(runs['git_revision'])}. Precision of products: {listed(runs['matmul_precision'])}.",
    ]
    commands = sorted(set(runs["command"].dropna()))
    return "\n".join([*facts, *(["Commands:", "", "```text", *commands, "```"] if commands else [])])


def listed(values: pd.Series) -> str:
    return ", ".join(sorted(set(values.dropna().astype(str)))) or "not said"


# ── claims ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def verdicts(study: Study) -> str:
    """One line for each claim of the paper, then the numbers behind it."""
    found = claims.check_all(study.view) if study.view is not None else []
    if not found:
        return NOT_RUN
    rows, details = [], []
    for claim in found:
        verdict = VERDICT_NAMES[claim.verdict] + claim.where if claim.checks else "not run"
        held = sum(check.verdict == claims.HOLDS for check in claim.checks)
        counted = f"{held} of {len(claim.checks)} checks hold." if claim.checks else ""
        here = " ".join(filter(None, (counted, claim.missing)))
        rows.append((f"`{claim.name}`", claim.text, claim.source, here, verdict))
        for check in claim.checks:
            value = f"{interval(check.estimate)} {check.unit}"
            basis = str(len(set(check.datasets)))
            details.append((f"`{claim.name}`", check.what, basis, value, VERDICT_NAMES[check.verdict]))
    summary = table(("claim", "the paper says", "where", "here", "verdict"), rows)
    head = ("claim", "what was measured", "datasets", "number [95 % interval]", "verdict")
    return "\n\n".join([summary, table(head, details)])


# ── scores ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def by_label(view: View, suite: str) -> dict[str, pd.DataFrame]:
    runs = view.suite(suite)
    declared = [variant.label for block in suites.get(suite).blocks for variant in block.variants]
    return {label: runs[runs["label"] == label] for label in dict.fromkeys(declared) if (runs["label"] == label).any()}


def main_pair(study: Study) -> dict[str, pd.DataFrame]:
    """Tier a's runs by label; none where nothing has run."""
    return {} if study.view is None else by_label(study.view, "study_a")


def averages(study: Study) -> str:
    """For each comparison of a tier its variants: averages of domains over the datasets that all of them have."""
    parts = []
    for tier in TIERS:
        found = {} if study.view is None else by_label(study.view, tier)
        for title, labels in comparisons(tier).items():
            inside = {label: scores(found[label]) for label in labels if label in found}
            parts.append(f"### Tier {tier[-1]}: {title}")
            parts.append(domain_table(inside) if inside else NOT_RUN)
    return "\n\n".join(parts)


def comparisons(tier: str) -> dict[str, list[str]]:
    """Title → labels: each ablation by itself, so that one that has run everywhere does not wait for the others."""
    if tier == ABLATION_TIER:
        return {title: [variant.label for variant in variants] for title, variants in suites.ABLATIONS.items()}
    suite = suites.get(tier)
    return {suite.title: [variant.label for block in suite.blocks for variant in block.variants]}


def by_domain(names: Iterable[str]) -> dict[str, list[str]]:
    """Domain → its datasets, both in order; only domains that have some."""
    ordered = in_order(names)
    inside = {domain: [name for name in ordered if domain_of(name) == domain] for domain in DOMAINS}
    return {domain: found for domain, found in inside.items() if found}


def domain_table(found: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    shared = set.intersection(*(set(scores_) for scores_ in found.values()))
    if not shared:
        return "No dataset has been run with all of them yet."
    columns = by_domain(shared)
    if len(columns) > 1:
        columns["all"] = in_order(shared)
    rows = []
    for label, scores_ in found.items():
        averaged = (stats.average({name: scores_[name] for name in names}) for names in columns.values())
        rows.append((label, *map(interval, averaged)))
    return table(["variant", *(f"{column} ({len(names)})" for column, names in columns.items())], rows)


def by_dataset(study: Study) -> str:
    """The main pair on every dataset, with the scale that was learned and the score of the data."""
    found = main_pair(study)
    if not found:
        return NOT_RUN
    every = {label: scores(runs) for label, runs in found.items()}
    learned = found[BASELINE] if BASELINE in found else next(iter(found.values())).iloc[:0]
    alphas = scores(learned, "scale_last")
    shares = {name: [rise_share(run) for _, run in runs.iterrows()] for name, runs in learned.groupby("dataset")}
    behaviour = pd.concat(found.values()).groupby("dataset")["behaviour_score"].first()
    rows = []
    for name in in_order({name for values in every.values() for name in values}):
        cells = [interval(stats.mean(values[name])) if name in values else "–" for values in every.values()]
        alpha = interval(stats.mean(alphas[name])) if name in alphas else "–"
        share = f"{100 * np.mean(shares[name]):.0f} %" if name in shares else "–"
        rows.append((name, number(behaviour[name]), *cells, alpha, share))
    return table(("dataset", "data", *every, "final alpha", "of the way up"), rows)


def rise_share(run: pd.Series) -> float:
    """How much of the way up the scale went that its learning rates allow.

    A step of Adam on a gradient of one sign is as long as the learning rate, so all of them together are that way; it
    is one on softplus⁻¹(α), where the steps are made.
    """
    settings = json.loads(run["settings"])
    algorithm = with_horizon(replace_fields(algorithms.default(run["algo"]), settings), int(run["steps"]))
    rates = np.asarray(algorithm.scale_optimiser().learning_rate(jnp.arange(algorithm.scale_updates())))
    start, end = (float(raw_from_scale(scale)) for scale in (algorithm.base.scale, run["scale_last"]))
    return (end - start) / float(rates.sum())


def at_every_step(found: Mapping[str, pd.DataFrame], curves: pd.DataFrame) -> dict[str, dict[str, dict[int, Estimate]]]:
    """Domain and its number of datasets → label → averages at every evaluation, over the datasets that all have."""
    shared = set.intersection(*(set(runs["dataset"]) for runs in found.values()))
    evaluations = curves.dropna(subset="score")

    def averages_of(runs: pd.DataFrame, names: list[str]) -> dict[int, Estimate]:
        known = evaluations.merge(runs.loc[runs["dataset"].isin(names), ["run_id", "dataset", "seed"]], on="run_id")
        return {int(step): stats.average(scores(some, "score")) for step, some in known.groupby("step")}

    return {
        f"{domain} ({len(names)})": {label: averages_of(runs, names) for label, runs in found.items()}
        for domain, names in by_domain(shared).items()
    }


def by_step(study: Study) -> str:
    """The main pair's averages at the evaluations that both have."""
    pair = main_pair(study)
    if study.study is None or not pair:
        return NOT_RUN
    found = at_every_step(pair, study.study.curves)
    columns = {f"{label}, {domain}": line for domain, lines in found.items() for label, line in lines.items()}
    steps = sorted(set.intersection(*map(set, columns.values())))
    rows = [(f"{step:,}", *(interval(line[step]) for line in columns.values())) for step in steps]
    return table(["steps", *columns], rows)


def draw_averages(axes: Any, lines: Mapping[str, Mapping[int, Estimate]], colours: Mapping[str, str]) -> None:
    """Averages over training with their intervals as bands."""
    for label, line in lines.items():
        steps = sorted(line)
        millions, bands = [step / 1e6 for step in steps], [line[step] for step in steps]
        axes.plot(millions, [band.value for band in bands], color=colours[label], label=label)
        low, high = [band.low for band in bands], [band.high for band in bands]
        axes.fill_between(millions, low, high, color=colours[label], alpha=0.2, lw=0)
    axes.set(xlabel="million steps", ylabel="average score")
    axes.legend(frameon=False)


def panels(number_of: int) -> tuple[Any, Sequence[Any]]:
    """A figure with a row of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * number_of, 3.2), layout="constrained")
    row = figure.subplots(1, number_of, squeeze=False)[0]
    for axes in row:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, row


def as_png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=110, metadata={"Software": None})
    return file.getvalue()


def picture(study: Study) -> bytes | None:
    """The same averages as curves, and alpha on every dataset: blue where ASPC ends above TD3+BC, orange below."""
    pair = main_pair(study)
    if study.study is None or len(pair) != 2:
        return None
    found = at_every_step(pair, study.study.curves)
    figure, row = panels(len(found) + 1)
    for (domain, lines), axes in zip(found.items(), row, strict=False):
        draw_averages(axes, lines, dict(zip(pair, (BLUE, ORANGE), strict=True)))
        axes.set_title(domain)
    draw_alphas(row[-1], study.study.curves, pair)
    return as_png(figure)


def draw_alphas(axes: Any, curves: pd.DataFrame, pair: Mapping[str, pd.DataFrame]) -> None:
    """Alpha's mean over seeds on every dataset, coloured by what came of it."""
    (learned, fixed) = (scores(runs) for runs in pair.values())
    known = curves.dropna(subset="scale").merge(next(iter(pair.values()))[["run_id", "dataset"]], on="run_id")
    for name, here in known.groupby("dataset"):
        lead = learned[name].mean() - fixed[name].mean() if name in fixed else 0.0
        colour = GREY if abs(lead) < ALIKE else BLUE if lead > 0 else ORANGE
        alpha = here.groupby("step")["scale"].mean()
        axes.plot(alpha.index / 1e6, alpha, color=colour, lw=1)
    names = {BLUE: "ASPC ends higher", ORANGE: "ASPC ends lower", GREY: f"within {ALIKE:g} points"}
    for colour, name in names.items():
        axes.plot([], [], color=colour, label=name)
    room = 1.4 * axes.get_ylim()[1]  # for the legend
    axes.set(title="alpha on every dataset", xlabel="million steps", ylabel="alpha", ylim=(0, room))
    axes.legend(frameon=False, fontsize=8)


def ablated(study: Study) -> str:
    """The ablations on every dataset: mean score, and the mean of the final alpha where one is learned."""
    found = {} if study.view is None else by_label(study.view, ABLATION_TIER)
    if not found:
        return NOT_RUN
    # Plain ones are in several comparisons, under other names: the first stands for all.
    once = {tuple(sorted(runs["run_id"])): label for label, runs in reversed(found.items())}
    labels = [label for label in found if label in once.values()]
    parts = []
    for names in by_domain({name for runs in found.values() for name in runs["dataset"]}).values():
        rows = [(label, *(score_and_scale(found[label], name) for name in names)) for label in labels]
        parts.append(table(("variant", *names), [row for row in rows if set(row[1:]) != {"–"}]))
    return "\n\n".join(parts)


def score_and_scale(runs: pd.DataFrame, dataset: str) -> str:
    here = runs[runs["dataset"] == dataset]
    if here.empty:
        return "–"
    learned = f" ({number(here['scale_last'].mean())})" if here["algo"].iloc[0] == "aspc" else ""
    return number(here["last"].mean()) + learned


SETTLED, EARLY, HALF = 0.2, 0.05, 0.5  # of training: from where on curves are said to swing, and looks at alpha


def by_curve(study: Study) -> str:
    """How far the evaluations of the main pair swing, how the worst of its runs ends, how many of the last episodes
    reach a goal where there is one, and how alpha moves."""
    found = main_pair(study)
    if study.study is None or not found:
        return NOT_RUN
    curves, rows = study.study.curves, []
    for name in in_order({name for runs in found.values() for name in runs["dataset"]}):
        for label, runs in found.items():
            own = runs[runs["dataset"] == name]
            here = curves[curves["run_id"].isin(own["run_id"])]
            if not here.empty:
                success = own["success_last"].astype(float).mean()
                reached = f"{100 * success:.0f} %" if math.isfinite(success) else "–"
                rows.append((name, label, *swing(here.dropna(subset="score")), reached, *scale_on_its_way(here)))
    shares = [f"{100 * share:.0f} %" for share in (SETTLED, EARLY, HALF)]
    alphas = ("lowest alpha", f"alpha at {shares[1]}", f"at {shares[2]}")
    head = ("dataset", "variant", f"evaluations from {shares[0]} on", "lowest last one", "goal reached at the end")
    return table((*head, *alphas), rows)


def swing(evaluations: pd.DataFrame) -> tuple[str, str]:
    """The range of the evaluations, and the lowest of the runs' last ones."""
    late = evaluations[evaluations["step"] >= SETTLED * evaluations["step"].max()]["score"]
    last = evaluations.sort_values("step").groupby("run_id")["score"].last()
    return f"{number(late.min())} to {number(late.max())}", number(last.min())


def scale_on_its_way(curves: pd.DataFrame) -> tuple[str, str, str]:
    """Alpha's lowest value in any run, and its means early and at half of training."""
    known = curves.dropna(subset="scale")
    early, half = (known.loc[known["step"] == share * known["step"].max(), "scale"].mean() for share in (EARLY, HALF))
    lowest = "–" if known.empty else f"{known['scale'].min():.3f}"
    return lowest, number(early), number(half)


# ── search ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def searched(study: Study) -> str:
    """The search, its short runs and its long ones each by themselves."""
    if study.search_view is None:
        return NOT_RUN
    places = study.search_view.places
    runs = places[places["suite"] != TRIAL].drop_duplicates(["label", "run_id"])
    parts = {f"{steps:,} steps": halves(runs[runs["steps"] == steps]) for steps in sorted(set(runs["steps"]))}
    parts["Trials"] = tried(by_label(study.search_view, TRIAL))
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts.items())


def tried(found: Mapping[str, pd.DataFrame]) -> str:
    """What was tried on a part of the half that chooses before candidates were declared."""
    if not found:
        return NOT_RUN
    rows = []
    for label, runs in found.items():
        for name, values in scores(runs).items():
            alpha = scores(runs, "scale_last")[name].mean()
            rows.append((f"`{label}`", name, str(len(values)), interval(stats.mean(values)), number(alpha)))
    return table(("what", "dataset", "seeds", "score", "final alpha"), rows)


def halves(runs: pd.DataFrame) -> str:
    """Which candidate the first half chooses, and what the second half says of it."""
    tune, report = (candidates(runs[runs["dataset"].isin(half)]) for half in (suites.TUNED_ON, suites.REPORTED_ON))
    if not all(found.keys() - {BASELINE, suites.TD3_BC.label} for found in (tune, report)):
        return "No candidate has been run on both halves yet."
    compared = widely_run(tune).keys() & widely_run(report).keys()
    tuned, reported = ({k: v for k, v in found.items() if k in compared} for found in (tune, report))
    shared = set.intersection(*(set(values) for values in tuned.values()))
    if not shared or not compared - {BASELINE, suites.TD3_BC.label}:
        return "No dataset of the half that chooses has been run with all of them yet."
    total = {label: stats.average({n: v for n, v in values.items() if n in shared}) for label, values in tuned.items()}
    chosen = max(total, key=lambda label: total[label].value)
    first, second = leads_over_baseline(tune), leads_over_baseline(report)
    rows = [
        (
            label,
            *(f"{interval(lead[label])} ({on_both(half, label)})" for lead, half in ((first, tune), (second, report))),
        )
        for label in first
        if label in second
    ]
    parts = [
        *("#### On the half that chooses", domain_table(tuned)),
        f"The highest average has **{chosen}**, on the {len(shared)} of {len(suites.TUNED_ON)} datasets that all have.",
    ]
    if left_out := [label for label in tune if label not in compared]:
        parts.append(f"Not among them, since too few of their datasets have run: {'; '.join(left_out)}.")
    parts += [
        *("#### On the half that judges", domain_table(reported)),
        "#### Against ASPC, on the datasets that both have (their number)",
        table((f"points above {BASELINE}", "half that chooses", "half that judges"), rows),
    ]
    if chosen in second:
        verdict = {claims.HOLDS: "is better than", claims.FAILS: "is worse than"}.get(claims.at_least(second[chosen]))
        said = f"{chosen} {verdict} {BASELINE}" if verdict else f"{chosen} cannot be told from {BASELINE}"
        both = f"{on_both(report, chosen)} of {len(suites.REPORTED_ON)} datasets"
        parts.append(f"{said}: {interval(second[chosen])} points on {both} of the half that judges.")
    if chosen in second and (tests := len(second.keys() - {suites.TD3_BC.label})) > 1:
        level = 1 - (1 - stats.LEVEL) / tests
        wider = stats.difference(report[chosen], report[BASELINE], level=level)
        parts.append(
            f"That half was looked at with {tests} candidates of this length. With an interval that allows for all of "
            f"them ({100 * level:.2f} % instead of 95 %, Bonferroni) it is {interval(wider)}."
        )
    learned = runs[runs["algo"].str.endswith("aspc")]
    alphas = {label: scores(some, "scale_last") for label, some in learned.groupby("label")}
    found = dataset_by_dataset({"chooses": tune, "judges": report}, alphas)
    parts += ["#### On every dataset", "Means over seeds, with the final alpha where it is learned.", found]
    return "\n\n".join(parts)


def widely_run(found: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Mapping[str, np.ndarray]]:
    """Those that have at least half of ASPC's datasets: averages are over what all have, and a candidate that has just
    begun would leave little of that."""
    if BASELINE not in found:
        return dict(found)
    return {label: values for label, values in found.items() if 2 * on_both(found, label) >= len(found[BASELINE])}


def on_both(found: Mapping[str, Mapping[str, np.ndarray]], label: str) -> int:
    """How many datasets a candidate shares with ASPC."""
    return len(found[label].keys() & found[BASELINE].keys())


def dataset_by_dataset(
    found: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]], alphas: Mapping[str, Mapping[str, np.ndarray]]
) -> str:
    """Every candidate's mean over seeds on every dataset, and its alpha, half after half."""
    labels = list(dict.fromkeys(label for half in found.values() for label in half))

    def cell(scores_of: Mapping[str, Mapping[str, np.ndarray]], label: str, name: str) -> str:
        if name not in scores_of.get(label, {}):
            return "–"
        score, alpha = scores_of[label][name].mean(), alphas.get(label, {}).get(name)
        return number(score) if alpha is None else f"{number(score)} (α {number(alpha.mean())})"

    rows = []
    for half, scores_of in found.items():
        for name in in_order({name for values in scores_of.values() for name in values}):
            rows.append((name, half, *(cell(scores_of, label, name) for label in labels)))
    return table(("dataset", "half that", *labels), rows)


def candidates(runs: pd.DataFrame) -> dict[str, dict[str, np.ndarray]]:
    """Label → scores, the library's candidates first."""
    known = [variant.label for variant in suites.CANDIDATES]
    labels = [*known, *sorted(set(runs["label"]) - set(known))]
    return {label: scores(runs[runs["label"] == label]) for label in labels if (runs["label"] == label).any()}


def leads_over_baseline(found: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Estimate]:
    """How far each candidate is above ASPC."""
    if BASELINE not in found:
        return {}
    return {k: stats.difference(v, found[BASELINE]) for k, v in found.items() if k != BASELINE}


# ── ASPC+ ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_the_winner(study: Study) -> dict[str, pd.DataFrame]:
    """ASPC+'s long runs, and those of what it is held against; none as long as one of the three has not run."""
    if study.search_view is None:
        return {}
    runs = study.search_view.places
    runs = runs[runs["steps"] == suites.MILLION].drop_duplicates(["label", "run_id"])
    labels = {suites.TD3_BC.label: suites.TD3_BC.label, BASELINE: BASELINE, "ASPC+": WINNER}
    found = {name: runs[runs["label"] == label] for name, label in labels.items()}
    return found if all(len(some) for some in found.values()) else {}


def winner_by_kind(study: Study) -> str:
    """ASPC+ beside ASPC and TD3+BC: averages by the kind of the data, over all datasets, and over each half."""
    found = {label: scores(runs) for label, runs in with_the_winner(study).items()}
    if not found:
        return NOT_RUN
    names = in_order(set.intersection(*map(set, found.values())))
    kinds = {kind: [name for name in names if quality_of(name) == kind] for kind in QUALITIES}
    kinds["locomotion"] = [name for name in names if quality_of(name)]
    kinds["Maze2d"] = [name for name in names if domain_of(name) == "Maze2d"]
    kinds["**all**"] = names
    kinds["the half that chose it"] = [name for name in names if name in suites.TUNED_ON]
    kinds["**the half that judges**"] = [name for name in names if name in suites.REPORTED_ON]
    rows = []
    for kind, inside in ((kind, inside) for kind, inside in kinds.items() if inside):
        here = {label: {name: values[name] for name in inside} for label, values in found.items()}
        leads = (stats.difference(here["ASPC+"], here[label]) for label in (BASELINE, suites.TD3_BC.label))
        averaged = (number(stats.average(values).value) for values in here.values())
        rows.append((f"{kind} ({len(inside)})", *averaged, *map(interval, leads)))
    return table(("data", *found, f"ASPC+ − {BASELINE}", f"ASPC+ − {suites.TD3_BC.label}"), rows)


def winner_by_dataset(study: Study) -> str:
    """The three on every dataset, with the scale of ASPC+'s first policy."""
    found = with_the_winner(study)
    if not found:
        return NOT_RUN
    every, alphas = {label: scores(runs) for label, runs in found.items()}, scores(found["ASPC+"], "scale_last")
    rows = [
        (name, *(interval(stats.mean(values[name])) for values in every.values()), interval(stats.mean(alphas[name])))
        for name in in_order(set.intersection(*map(set, every.values())))
    ]
    return table(("dataset", *every, "its alpha"), rows)


def winner_picture(study: Study) -> bytes | None:
    """The averages of the three over training, a panel for each domain."""
    three = with_the_winner(study)
    if study.search is None or not three:
        return None
    found = at_every_step(three, study.search.curves)
    figure, row = panels(len(found))
    for (domain, lines), axes in zip(found.items(), row, strict=True):
        draw_averages(axes, lines, dict(zip(three, (ORANGE, BLUE, GREEN), strict=True)))
        axes.set_title(domain)
    return as_png(figure)


# ── the document ────────────────────────────────────────────────────────────────────────────────────────────────────

STUDY = {
    "ran": what_ran,
    "claims": verdicts,
    "averages": averages,
    "datasets": by_dataset,
    "steps": by_step,
    "ablations": ablated,
    "curves": by_curve,
    "search": searched,
}
PLUS = {"kinds": winner_by_kind, "datasets": winner_by_dataset}
DOCUMENTS = {"study": (STUDY, picture), "aspc_plus": (PLUS, winner_picture)}


def filled(text: str, study: Study, sections: Mapping[str, Callable[[Study], str]] = STUDY) -> str:
    """The document with every marked section made anew."""
    for name, make in sections.items():
        pattern = re.compile(rf"(<!-- study: {name} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise SystemExit(f"The document has no section {name!r} between its markers.")
        before, begin, end, after = pattern.split(text)
        text = before + begin + make(study) + end + after
    return text


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=ROOT / "results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    asked = parser.parse_args(argv)
    found = read(asked.results)
    for name, (sections, draw) in DOCUMENTS.items():
        document = asked.docs / f"{name}.md"
        text = filled(document.read_text("utf-8"), found, sections)
        write_atomically(document, text.encode())
        if drawn := draw(found):
            path = asked.docs / "images" / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, drawn)
        print(f"wrote {document}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
