"""The paper's claims as checks on the data at hand.

A claim is one or more checks. A check is a number with a 95 % interval and a claimed range: it *holds* where the whole
interval is in the range, it *does not hold* where the whole interval is outside, and between the two there is *not
enough data*. Intervals cover datasets and seeds; with one or two datasets they cover seeds alone, and the check and the
verdict say that they are about these datasets only.

A check that cannot be made is a gap. A claim does not hold if one of its checks does not; it holds if all do and there
is no gap: no claim holds on a part of the methods, tasks or domains that it names. One about the benchmark's average or
profile neither holds nor fails without one of the domains in it. One about an effect (of the robust critic, say) that
the paper shows in all domains is judged on those that there are, and its verdict says which.

The same checks are made on the numbers that the paper prints, where it prints what a claim is about, by value alone: a
claim that these do not show says so, whatever ours do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from aspc.lab.paper_tables import DOMAINS, PaperTable, domain_of
from aspc.lab.report import paper_results, statistics
from aspc.lab.report.curves import with_measure
from aspc.lab.report.statistics import Estimate, Scores
from aspc.lab.report.tables import percent_difference, polygon_area, radar, scaled_to_range
from aspc.lab.report.view import (
    TASKS,
    WALKERS,
    Method,
    View,
    averaged,
    comparable,
    in_order,
    method,
    quality_of,
    scores,
    task_of,
)
from aspc.tasks import without_version

Verdict = Literal["holds", "does not hold", "not enough data"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "not enough data"

ASPC, TD3_BC = method("aspc"), method("td3_bc")
BASELINES = tuple(map(method, ("td3_bc", "a2pr", "iql", "wpc", "rebrac")))
IN_FIGURE_8 = tuple(map(method, ("td3_bc", "wpc", "a2pr")))
D4RL = ("MuJoCo", "Maze2d", "AntMaze", "Adroit")
CHEETAH = "halfcheetah-medium"
WITHOUT_RC = {"critic_hidden_layers": 2, "critic_layer_norm": False}

# Where the paper says "near", "nearly" or "minimal", a check needs a number; these are ours.
NEARLY_EQUAL = 5.0  # percent
MINIMAL_OVERHEAD = 25.0  # percent of TD3+BC's time
SAME_RUNTIME = 10.0  # percent
NEAR_A_TENTH = (0.03, 0.3)  # alpha, half a decade each way
SLIGHT_RISE = 1.2  # factor on alpha early in training
ALMOST_EVERY = 0.9  # share of thresholds
HIGHEST_SCORE = 150.0  # of these thresholds; Maze2d and Adroit go beyond 100
EARLY = 0.3  # share of training ("the first 0.2–0.3 M steps")
FLAT = 5.0  # percent
MILLION = 1_000_000  # steps of the paper's runs


class Claimed(NamedTuple):
    """The range in which a claim says that a number is."""

    low: float = -math.inf
    high: float = math.inf

    def verdict(self, estimate: Estimate) -> Verdict:
        """The whole interval inside, or the whole of it outside. Where all of it is one of the bounds (no run has ever
        scored, say) it says nothing."""
        if not estimate.has_interval or (estimate.low == estimate.high and estimate.low in (self.low, self.high)):
            return OPEN
        if self.low <= estimate.low and estimate.high <= self.high:
            return HOLDS
        return FAILS if estimate.high < self.low or estimate.low > self.high else OPEN


def at_least(bound: float = 0.0) -> Claimed:
    return Claimed(low=bound)


def at_most(bound: float = 0.0) -> Claimed:
    return Claimed(high=bound)


class Check(NamedTuple):
    """One comparison: what, the number with its interval, its unit, where it is claimed to be, the runs it is made of,
    and whether it lacks a part of what it is about, so that it cannot be decided."""

    what: str
    estimate: Estimate
    unit: str
    claimed: Claimed
    methods: tuple[Method, ...] = ()
    datasets: tuple[str, ...] = ()
    is_partial: bool = False

    @property
    def verdict(self) -> Verdict:
        return OPEN if self.is_partial else self.claimed.verdict(self.estimate)

    @property
    def is_about_few_datasets(self) -> bool:
        """Whether the interval covers seeds alone, so that nothing is said about further datasets."""
        return len(self.datasets) < statistics.MIN_DATASETS

    @property
    def limit(self) -> str:
        """The datasets that it is limited to, in words, where they are few."""
        return f"{listed(self.datasets)} only" if self.is_about_few_datasets else ""


COMPARABLE = "that can be compared (same dataset, same number of steps, a score)"


class Gap(NamedTuple):
    """A check that cannot be made: of which methods it needs runs; where (in any of these domains, tasks or datasets;
    anywhere if there are none); and what else these runs need, for where all of the methods have some."""

    methods: tuple[Method, ...]
    places: tuple[str, ...] = ()
    need: str = COMPARABLE


Part = Check | Gap


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, its checks, in words what is missing to make the others, the domains that its verdict is
    limited to, where the paper has more, and in words what of it the paper's own table does not show."""

    name: str
    text: str
    source: str
    checks: tuple[Check, ...]
    missing: str = ""
    only: tuple[str, ...] = ()
    not_in_paper: str = ""

    @property
    def verdict(self) -> Verdict:
        verdicts = [check.verdict for check in self.checks]
        if FAILS in verdicts:
            return FAILS
        return HOLDS if set(verdicts) == {HOLDS} and not self.missing else OPEN

    @property
    def where(self) -> str:
        """What a verdict is limited to, as words that go behind it."""
        deciding = [check for check in self.checks if check.verdict == self.verdict]
        if self.verdict == OPEN:
            return ""
        if any(check.is_about_few_datasets for check in deciding):
            few = in_order(name for check in deciding for name in check.datasets)
            return (
                f" on {listed(few)} only"
                if len(few) < statistics.MIN_DATASETS
                else f" on these {len(few)} datasets only"
            )
        return f" on {listed(self.only)}" if self.only else ""

    @property
    def datasets(self) -> list[str]:
        return in_order(name for check in self.checks for name in check.datasets)


def made(view: View, name: str, text: str, source: str, parts: Iterable[Part], shown_in: Sequence[str] = ()) -> Claim:
    """A claim of the checks and gaps that were found for all that it speaks of; `shown_in` are the domains that the
    paper shows an effect in."""
    parts = list(parts)
    checks = tuple(part for part in parts if isinstance(part, Check))
    seen = {domain_of(name) for check in checks for name in check.datasets}
    only = () if seen.issuperset(shown_in) else tuple(domain for domain in shown_in if domain in seen)
    return Claim(name, text, source, checks, missing(view, [part for part in parts if isinstance(part, Gap)]), only)


# ── what is missing ─────────────────────────────────────────────────────────────────────────────────────────────────


def missing(view: View, gaps: Iterable[Gap]) -> str:
    """One sentence that says what is not there, or nothing if there are no gaps."""
    absent: dict[str, dict[str, None]] = {}  # method → places, in order; "" is every method, or every place
    unfit: dict[tuple[str, str], dict[str, None]] = {}  # (place, need) → methods that have runs there
    for gap in gaps:
        here, place = view.runs[at(view.runs, gap.places)], listed(gap.places, "or")
        without = [m for m in gap.methods if not (here["method"] == m.name).any()]
        for one in without:
            if not (view.runs["method"] == one.name).any():
                absent.setdefault(spoken(one), {})[""] = None
            elif not here.empty:
                absent.setdefault(spoken(one), {})[place] = None
        if here.empty:
            absent.setdefault("", {})[place] = None
        elif not without:
            unfit.setdefault((place, gap.need), {}).update(dict.fromkeys(map(spoken, gap.methods)))
    together: dict[str, list[str]] = {}
    for name, places in absent.items():
        together.setdefault(listed(filter(None, places)), []).append(name)
    phrases = [runs_of(names, place) for place, names in together.items()]
    phrases += [f"{runs_of(names, place)} {need}" for (place, need), names in unfit.items()]
    return f"Missing: {'; '.join(phrases)}." if phrases else ""


def at(runs: pd.DataFrame, places: Sequence[str]) -> pd.Series:
    """Which runs are in one of these domains, tasks or datasets (of whatever version)."""
    names = (runs["domain"], runs["task"], runs["dataset"].map(without_version))
    return pd.concat([column.isin(places) for column in names], axis=1).any(axis=1) | (not places)


def runs_of(names: Iterable[str], place: str) -> str:
    methods = listed(filter(None, names))
    return "runs" + (f" of {methods}" if methods else "") + (f" on {place}" if place else "")


def spoken(wanted: Method) -> str:
    """A method's name for a list that has commas of its own."""
    plain, _, rest = wanted.name.partition(", ")
    return f"{plain} ({rest})" if rest else plain


def listed(words: Iterable[str], last: str = "and") -> str:
    *others, end = [*words] or [""]
    return f"{', '.join(others)} {last} {end}" if others else end


# ── comparisons ─────────────────────────────────────────────────────────────────────────────────────────────────────


def pair(view: View, a: Method, b: Method, domains: Iterable[str] | None = None) -> tuple[Scores, Scores]:
    """Scores of two methods on the datasets that both have, at the same number of steps."""
    kept = list(map(averaged, view.pair(a, b)))
    if domains is not None:
        kept = [runs[runs["domain"].isin(list(domains))] for runs in kept]
    return common(*(scores(runs) for runs in kept))


def common(a: Scores, b: Scores) -> tuple[Scores, Scores]:
    """The datasets that both have, in order."""
    names = [name for name in in_order(a) if name in b]
    return {n: a[n] for n in names}, {n: b[n] for n in names}


def better(
    view: View,
    a: Method,
    b: Method,
    domains: Sequence[str] | None = None,
    where: str = "",
) -> list[Part]:
    """One check of the average difference in score."""
    first, second = pair(view, a, b, domains)
    if not first:
        return [Gap((a, b), tuple(domains or ()))]
    estimate = statistics.difference(first, second)
    values = f"{statistics.grand_mean(first):.1f} against {statistics.grand_mean(second):.1f}"
    if len(first) >= statistics.MIN_DATASETS:
        values += f"; median of the datasets' differences {statistics.median_difference(first, second).value:.1f}"
    what = f"{a.name} − {b.name}{f' on {where}' if where else ''} ({values})"
    return [Check(what, estimate, "points", at_least(), (a, b), tuple(first))]


def nearly_equal(view: View, a: Method, b: Method, domains: Sequence[str] | None = None, where: str = "") -> list[Part]:
    """One check that two averages differ by few percent."""
    first, second = pair(view, a, b, domains)
    if not first:
        return [Gap((a, b), tuple(domains or ()))]
    estimate = percent_difference(first, second)
    what = f"{a.name} against {b.name}{f' on {where}' if where else ''}"
    return [Check(what, estimate, "%", Claimed(-NEARLY_EQUAL, NEARLY_EQUAL), (a, b), tuple(first))]


def in_each_domain(
    check: Callable[..., list[Part]], view: View, a: Method, b: Method, wanted: Sequence[str]
) -> list[Part]:
    return [part for domain in wanted for part in check(view, a, b, [domain], domain)]


def better_over_all(view: View, a: Method, b: Method, domains: Sequence[str]) -> list[Part]:
    """One check of the average difference over all of these domains."""
    return over_all(better(view, a, b, domains), a, b, domains)


def over_all(parts: Iterable[Part], a: Method, b: Method, domains: Sequence[str]) -> list[Part]:
    """Checks of two methods, and a gap for each domain that they are without: with one they are open, since that
    domain could turn them."""
    checks = [part for part in parts if isinstance(part, Check)]
    inside = {domain_of(name) for check in checks for name in check.datasets}
    gaps = [Gap((a, b), (domain,)) for domain in domains if domain not in inside]
    return [*(check._replace(is_partial=bool(gaps)) for check in checks), *gaps]


# ── the benchmark ───────────────────────────────────────────────────────────────────────────────────────────────────


def beats_td3_bc(view: View) -> Claim:
    first, second = pair(view, ASPC, TD3_BC, D4RL)
    parts = better_over_all(view, ASPC, TD3_BC, D4RL)
    if first:
        percent = percent_difference(first, second)
        partial = any(isinstance(part, Gap) for part in parts)
        parts.append(Check("improvement over TD3+BC", percent, "%", at_least(), (ASPC, TD3_BC), tuple(first), partial))
    return made(
        view,
        "beats_td3_bc",
        "ASPC's average is above TD3+BC's (by 35 % on the paper's 39 datasets).",
        "Abstract, Table 1",
        parts,
    )


def beats_all_on_average(view: View) -> Claim:
    parts = [part for other in BASELINES for part in better_over_all(view, ASPC, other, D4RL)]
    return made(
        view,
        "beats_all_on_average",
        "On average over all domains ASPC is above every baseline, those tuned for each dataset included.",
        "Section 5.1, Table 1",
        parts,
    )


def best_on_locomotion_and_mazes(view: View) -> Claim:
    parts = [part for o in BASELINES for part in in_each_domain(better, view, ASPC, o, ("MuJoCo", "Maze2d"))]
    return made(
        view,
        "best_on_locomotion_and_mazes",
        "ASPC is the best on MuJoCo and on Maze2d.",
        "Section 5.1, Table 1",
        parts,
    )


def profile_above(view: View) -> Claim:
    parts: list[Part] = []
    for other in BASELINES:
        first, second = pair(view, ASPC, other, D4RL)
        if len(first) < statistics.MIN_DATASETS:  # a profile of one or two datasets has no shape
            parts.append(Gap((ASPC, other), D4RL, "that can be compared on at least three datasets"))
            continue
        names = list(first)
        estimate = Estimate(
            *map(float, statistics.bootstrap(share_above, statistics.stack([first, second], names)))
        ).times(100)
        what = f"thresholds that only a part of the runs reach, where ASPC's profile is at or above {other.name}'s"
        found = Check(what, estimate, "% of thresholds", at_least(100 * ALMOST_EVERY), (ASPC, other), tuple(names))
        parts += over_all([found], ASPC, other, D4RL)
    return made(
        view,
        "profile_above",
        "ASPC's performance profile is above every baseline's at almost every threshold "
        f"({100 * ALMOST_EVERY:.0f} % here).",
        "Section 5.1, Figure 2",
        parts,
    )


def share_above(both: np.ndarray) -> np.ndarray:
    """The share of thresholds at which the first method's profile is at or above the second's, of those that not all or
    none of the runs of both reach. `both` is [seeds, datasets, 2]."""
    first, second = statistics.profile(both, np.linspace(0, HIGHEST_SCORE, 61))
    told = (np.minimum(first, second) < 1) & (np.maximum(first, second) > 0)
    return np.asarray((first >= second)[told].mean() if told.any() else np.nan)


def largest_polygon(view: View) -> Claim:
    wanted = (ASPC, *BASELINES)
    scored = {m: runs for m in wanted if not (runs := averaged(view.standing_for(m))).empty}
    tables = comparable(*scored.values()) if scored else []
    found = dict(zip(scored, map(scores, tables), strict=True))
    names = [n for n in in_order(set.intersection(*map(set, found.values())) if found else ()) if domain_of(n) in D4RL]
    covered = {task_of(name) for name in names} if len(found) == len(wanted) else set()
    need = "with scores on the same dataset and the same number of steps"
    parts: list[Part] = [Gap(wanted, (t,), need) for t in TASKS if t not in covered]
    picture = radar({m.name: {n: s[n] for n in names} for m, s in found.items()}) if ASPC in found else None
    if picture is not None:
        rivals = [{n: found[m][n] for n in names} for m in found if m != ASPC]
        estimate = lead_in_area({n: found[ASPC][n] for n in names}, rivals, picture.tasks)
        what = f"area of ASPC's polygon − the largest other, over {len(picture.tasks)} tasks"
        parts.append(Check(what, estimate, "of the radar", at_least(), tuple(found), tuple(names)))
    return made(
        view,
        "largest_polygon",
        "ASPC has the largest polygon in the radar over the nine tasks.",
        "Section 5.1, Figure 2",
        parts,
    )


def lead_in_area(ours: Scores, rivals: Sequence[Scores], tasks: Sequence[str]) -> Estimate:
    """Area of our polygon in the radar minus the largest other one. Tasks are as they are; the bootstrap draws datasets
    within each task, the same for all, and seeds within datasets."""
    methods, rng = [ours, *rivals], np.random.default_rng(0)
    means, drawn = [], []  # of each task: [methods], [methods, repetitions]
    for task in tasks:
        names = [name for name in ours if task_of(name) == task]
        draws = rng.integers(len(names), size=(statistics.REPETITIONS, len(names)))
        means.append([np.mean([scores[n].mean() for n in names]) for scores in methods])
        drawn.append([statistics.resampled_means([s[n] for n in names], draws, rng).mean(axis=1) for s in methods])
    value = float(_lead(np.array(means).T))
    if not statistics.can_resample(len(ours), min(len(x) for scores in methods for x in scores.values())):
        return Estimate(value, math.nan, math.nan)
    return Estimate(value, *statistics.percentile_interval(_lead(np.array(drawn).transpose(1, 2, 0))))


def _lead(means: np.ndarray) -> np.ndarray:
    """Of means [methods, ..., tasks]: the first method's area minus the largest other, each task scaled from the worst
    method to the best."""
    areas = polygon_area(scaled_to_range(means))
    return np.asarray(areas[0] - areas[1:].max(axis=0))


def rises_faster(view: View) -> Claim:
    parts: list[Part] = []
    for other in IN_FIGURE_8:
        scored = (runs[runs["domain"].isin(D4RL)] for runs in map(averaged, view.pair(ASPC, other)))
        first, second = common(*(at_share(view, runs, "score", EARLY) for runs in scored))
        if not first:
            early = f"an evaluation in the first {100 * EARLY:.0f} %"
            need = f"with curves that can be compared (same dataset, same number of steps, {early})"
            parts.append(Gap((ASPC, other), need=need))
            continue
        estimate = statistics.difference(first, second)
        what = f"ASPC − {other.name} at {100 * EARLY:.0f} % of training"
        parts.append(Check(what, estimate, "points", at_least(), (ASPC, other), tuple(first)))
    return made(
        view,
        "rises_faster",
        "ASPC rises faster: within the first 0.3 M of 1 M steps it is above TD3+BC, wPC and A2PR.",
        "Appendix C, Figure 8",
        parts,
        shown_in=D4RL,
    )


def no_late_collapse(view: View) -> Claim:
    runs = averaged(of_d4rl(view.of(ASPC)))
    runs = runs[(runs["best"] > 0) & (runs["steps"] >= MILLION)]  # what is late in a short run is early in the paper's
    last, best = scores(runs, "last"), scores(runs, "best")
    names = [n for n in in_order(last) if n in best and len(last[n]) == len(best[n])]
    parts: list[Part] = [] if names else [Gap((ASPC,), D4RL, "with a score above zero, a million steps long")]
    if names:
        kept = statistics.average({n: last[n] - best[n] for n in names}).times(100 / statistics.grand_mean(best))
        what = "last evaluation against each run's best one; the claim is read as a loss of at most 15 %"
        parts.append(Check(what, kept, "%", at_least(-15.0), (ASPC,), tuple(names)))
    text = "ASPC's curves show no late collapse."
    return made(view, "no_late_collapse", text, "Appendix C, Figure 8", parts, shown_in=D4RL)


def one_setting_degrades(view: View) -> Claim:
    parts: list[Part] = []
    for one in (method("rebrac"), method("a2pr")):
        runs = averaged(view.standing_for(one))
        plain, tuned = common(*map(scores, comparable(runs[runs["tuned"] <= 0], runs[runs["tuned"] > 0])))
        if not plain:
            need = "both with one setting and tuned for each dataset, on the same dataset with the same number of steps"
            parts.append(Gap((one,), need=need))
            continue
        estimate = percent_difference(plain, tuned)
        what = f"{one.name} with one setting against tuned for each dataset"
        parts.append(Check(what, estimate, "%", at_most(), (one,), tuple(plain)))
    return made(
        view,
        "one_setting_degrades",
        "ReBRAC and A2PR lose performance when one setting serves all datasets.",
        "Section 1, Figure 1b",
        parts,
    )


# ── the scale ───────────────────────────────────────────────────────────────────────────────────────────────────────


def of_d4rl(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs on the data that the paper's figures are about."""
    return runs[runs["domain"].isin(D4RL)]


def log_scales(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """Dataset → log10 of the final alpha, for each seed."""
    runs = runs[runs["scale_last"] > 0]
    return scores(runs.assign(log_scale=np.log10(runs["scale_last"].astype(float))), "log_scale")


def smaller_on_better_data(view: View) -> Claim:
    parts: list[Part] = []
    qualities = ("expert", "medium-expert", "medium", "medium-replay")
    runs = view.of(ASPC)
    for task in WALKERS:
        of_task = runs[runs["task"] == task]
        # A longer run lets alpha go further, so those of one length are compared.
        found = log_scales(of_task[of_task["steps"] == of_task["steps"].max()])
        by_quality = {quality_of(n): n for n in in_order(found)}
        ladder = [q for q in qualities if q in by_quality]
        unseen = [f"{high} and {low}" for high, low in pairwise(qualities) if (high, low) not in pairwise(ladder)]
        if unseen:
            parts.append(Gap((ASPC,), (task,), f"of one length on two qualities ({', '.join(unseen)})"))
        for high, low in pairwise(ladder):
            names = by_quality[high], by_quality[low]
            estimate = statistics.difference({"": found[names[1]]}, {"": found[names[0]]})
            alphas = [f"{10 ** found[n].mean():.3g}" for n in names]
            what = f"{task}: log₁₀ alpha on {low} − on {high} (alpha {alphas[1]} against {alphas[0]})"
            parts.append(Check(what, estimate, "decades", at_least(), (ASPC,), names))
    return made(
        view,
        "smaller_on_better_data",
        "Alpha ends smaller on higher-quality data of each locomotion task: "
        "expert < medium-expert < medium < medium-replay.",
        "Section 5.2, Figure 3",
        parts,
    )


def in_figure_4(dataset: str) -> bool:
    """The paper names tasks, not datasets. Hands are read as experts', as in the suite: humans' alpha is another."""
    return domain_of(dataset) != "Adroit" or without_version(dataset).endswith("-expert")


def scale_by_task(view: View) -> Claim:
    runs = view.of(ASPC)
    # Alpha's learning rate decays over the run, so that in a shorter one it cannot get as far as in the paper's.
    found = {n: v for n, v in log_scales(runs[runs["steps"] >= MILLION]).items() if in_figure_4(n)}
    without = [d for d in ("Adroit", "AntMaze", "Maze2d") if d not in map(domain_of, found)]
    parts: list[Part] = [Gap((ASPC,), (domain,), "with a final alpha after a million steps") for domain in without]
    low, high = (math.log10(x) for x in NEAR_A_TENTH)
    for task in ("pen", "door", "hammer", "relocate", "antmaze", "maze2d"):
        values = {n: found[n] for n in in_order(found) if task_of(n) == task}
        if not values:
            continue
        estimate = statistics.average(values)
        hand = domain_of(next(iter(values))) == "Adroit"
        wanted = Claimed(low, high) if hand else at_least(1.0)
        claimed = f"{NEAR_A_TENTH[0]} to {NEAR_A_TENTH[1]}" if hand else "above 10"
        what = f"{task}: log₁₀ of the final alpha (alpha {10**estimate.value:.3g}, claimed {claimed})"
        parts.append(Check(what, estimate, "decades", wanted, (ASPC,), tuple(values)))
    return made(
        view,
        "scale_by_task",
        "On Adroit alpha settles near 0.1, on AntMaze and Maze2d it goes above 10.",
        "Section 5.2, Figure 4",
        parts,
    )


def drops_then_rises(view: View) -> Claim:
    runs = of_d4rl(view.of(ASPC))
    start = scores(runs, "scale_initial")
    early, late = {}, {}
    for name, seeds in curves_of(view, runs, "scale").items():
        if name in start and all(len(values) >= 5 and (values > 0).all() for _, values in seeds):
            firsts = [values[: max(2, round(EARLY * len(values)))] for _, values in seeds]
            early[name] = np.array([math.log10(first[-1] / start[name].mean()) for first in firsts])
            late[name] = np.array([math.log10(v[-1] / f.min()) for (_, v), f in zip(seeds, firsts, strict=True)])
    parts: list[Part] = [] if early else [Gap((ASPC,), need="with at least five points of alpha's curve")]
    for task in dict.fromkeys(task_of(n) for n in in_order(early)):
        names = tuple(n for n in in_order(early) if task_of(n) == task)
        slight = statistics.average({n: early[n] for n in names})
        early_on = f"log₁₀ of alpha's change in the first {100 * EARLY:.0f} %"
        what = f"{task}: {early_on}; claimed at most a factor of {SLIGHT_RISE}"
        parts.append(Check(what, slight, "decades", at_most(math.log10(SLIGHT_RISE)), (ASPC,), names))
        rise = statistics.average({n: late[n] for n in names})
        what = f"{task}: log₁₀ of alpha's rise from its early minimum to the end"
        parts.append(Check(what, rise, "decades", at_least(), (ASPC,), names))
    return made(
        view,
        "drops_then_rises",
        "Alpha first drops, or rises only slightly, and then increases as the critic becomes stable.",
        "Section 5.2, Figures 3 and 4",
        parts,
    )


def dynamic_is_best(view: View) -> Claim:
    converged, linear = method("aspc", scale_mode="converged"), method("aspc", scale_mode="linear")
    pairs = ((ASPC, converged), (converged, TD3_BC), (ASPC, linear), (linear, TD3_BC))
    return made(
        view,
        "dynamic_is_best",
        "Dynamic alpha ≥ converged alpha ≥ naive alpha, and a linear schedule closes only part of the gap.",
        "Section 5.3, Table 2",
        [part for a, b in pairs for part in better(view, a, b, D4RL)],
        shown_in=D4RL,
    )


# ── runtime ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def time_ratio(view: View, a: Method, b: Method) -> tuple[Estimate, tuple[str, ...]]:
    """How much longer a step of `a` takes, in percent, over the settings (dataset, device, machine) of both.

    Only runs that trained alone are timed: those of a group have one time, and groups may share a device.
    """
    runs = pd.concat([view.standing_for(a), view.standing_for(b)])
    runs = runs[(runs["steps_per_second"] > 0) & (runs["runs_together"].fillna(1) == 1)]
    if runs.empty:
        return statistics.NONE, ()
    keys = [runs["dataset"], runs["device"].fillna(""), runs["machine"].fillna("")]
    setting = pd.Series(["\n".join(k) for k in zip(*keys, strict=True)], runs.index)
    logs = -np.log(runs["steps_per_second"].astype(float))
    found = [
        {str(s): logs[g.index].to_numpy() for s, g in runs[runs["method"] == m.name].groupby(setting)} for m in (a, b)
    ]
    settings = [s for s in found[0] if s in found[1]]
    if not settings:
        return statistics.NONE, ()
    ratio = statistics.difference(*found)
    return Estimate(*(100 * (math.exp(x) - 1) for x in ratio)), tuple(in_order(s.split("\n")[0] for s in settings))


def runtime_checks(view: View, a: Method, claimed: Claimed) -> list[Part]:
    estimate, datasets = time_ratio(view, a, TD3_BC)
    if not datasets:
        return [Gap((a, TD3_BC), need="timed alone on the same dataset, device and machine")]
    return [Check(f"time of a step, {a.name} against TD3+BC", estimate, "%", claimed, (a, TD3_BC), datasets)]


def small_overhead(view: View) -> Claim:
    return made(
        view,
        "small_overhead",
        f"ASPC adds only minimal time to TD3+BC (at most {MINIMAL_OVERHEAD:.0f} % here).",
        "Section 5.4, Figure 5a",
        runtime_checks(view, ASPC, at_most(MINIMAL_OVERHEAD)),
    )


def interval_of_thirty(view: View) -> Claim:
    thirty = method("aspc", k_alpha=30)
    timed = runtime_checks(view, thirty, Claimed(-SAME_RUNTIME, SAME_RUNTIME))
    return made(
        view,
        "interval_of_thirty",
        f"With k_alpha = 30 a run takes as long as TD3+BC (within {SAME_RUNTIME:.0f} %) and scores as with 10.",
        "Section 5.4, Figure 5b",
        [*timed, *nearly_equal(view, thirty, ASPC, D4RL)],
    )


# ── ablations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def robust_critic_helps(view: View) -> Claim:
    pairs = [(method(algo), method(algo, **WITHOUT_RC)) for algo in ("aspc", "wpc")]
    return made(
        view,
        "robust_critic_helps",
        "ASPC and wPC need the robust critic: without it they score less.",
        "Section 5.5, Figure 6a",
        [part for a, b in pairs for part in better(view, a, b, D4RL)],
        shown_in=D4RL,
    )


def loss(terms: str) -> Method:
    return method("aspc", outer_loss=terms)


def l1_alone_is_worst(view: View) -> Claim:
    others = (loss("L1+L2"), loss("L1+L3"), ASPC)
    return made(
        view,
        "l1_alone_is_worst",
        "L1 alone gives the poorest performance of all outer losses.",
        "Section 5.5, Figure 6b",
        [part for other in others for part in better(view, other, loss("L1"), D4RL)],
        shown_in=D4RL,
    )


def losses_by_domain(view: View) -> Claim:
    parts = [
        *in_each_domain(nearly_equal, view, loss("L1+L2"), ASPC, ("MuJoCo", "Adroit")),
        *in_each_domain(better, view, loss("L1+L3"), loss("L1"), ("AntMaze",)),
        *in_each_domain(better, view, ASPC, loss("L1+L2"), ("Maze2d",)),
        *in_each_domain(better, view, ASPC, loss("L1+L3"), ("Maze2d",)),
    ]
    return made(
        view,
        "losses_by_domain",
        "L1+L2 reaches full ASPC on MuJoCo and Adroit, L3 is what helps on AntMaze, and Maze2d needs both.",
        "Section 5.5, Figure 6b",
        parts,
    )


def form(number: int) -> Method:
    return ASPC if number == 4 else method("aspc", l3_form=number)


def l2_inside_l3_matters(view: View) -> Claim:
    wanted = [(a, b, d) for d in ("Maze2d", "AntMaze") for a in (3, 4, 5) for b in (1, 2)]
    return made(
        view,
        "l2_inside_l3_matters",
        "L3's forms with L2 in them (3, 4, 5) beat those without (1, 2) on Maze2d and AntMaze.",
        "Appendix E.2, Table 13",
        [part for a, b, d in wanted for part in in_each_domain(better, view, form(a), form(b), (d,))],
    )


def form_five_is_form_four(view: View) -> Claim:
    return made(
        view,
        "form_five_is_form_four",
        f"L3 with means in place of suprema (form 5) scores as form 4 (within {NEARLY_EQUAL:.0f} %).",
        "Appendix E.2, Table 13",
        nearly_equal(view, form(5), form(4), D4RL),
        shown_in=D4RL,
    )


def l3_matters_little_on_adroit(view: View) -> Claim:
    parts = [part for n in (1, 2, 3, 5) for part in in_each_domain(nearly_equal, view, form(n), form(4), ("Adroit",))]
    return made(
        view,
        "l3_matters_little_on_adroit",
        f"On Adroit the form of L3 makes little difference (within {NEARLY_EQUAL:.0f} %).",
        "Appendix E.2, Table 13",
        parts,
    )


def middle_start_is_best(view: View) -> Claim:
    others = [method("aspc", alpha=a) for a in (0.1, 10.0)]
    parts = [part for o in others for part in in_each_domain(better, view, ASPC, o, ("MuJoCo", "AntMaze", "Adroit"))]
    return made(
        view,
        "middle_start_is_best",
        "Starting alpha at 2.5 is better than at 0.1 or 10 on MuJoCo, AntMaze and Adroit.",
        "Appendix F.1, Figure 11",
        parts,
    )


def middle_rate_is_best(view: View) -> Claim:
    parts = [part for lr in (2e-2, 2e-4) for part in better(view, ASPC, method("aspc", scale_lr=lr), D4RL)]
    return made(
        view,
        "middle_rate_is_best",
        "A learning rate of alpha that is ten times smaller or larger than 2e-3 scores less on average.",
        "Appendix F.2, Figure 12",
        parts,
        shown_in=D4RL,
    )


# ── other algorithms, other data ────────────────────────────────────────────────────────────────────────────────────


def improves_each_base(view: View) -> Claim:
    bases = ("iql", "cql", "diffusion_ql")
    return made(
        view,
        "improves_each_base",
        "+ASPC improves the average of each base on MuJoCo: IQL, CQL and Diffusion-QL.",
        "Section 5.6, Table 3",
        [part for b in bases for part in in_each_domain(better, view, method(f"{b}+aspc"), method(b), ("MuJoCo",))],
    )


def holds_on_ogbench(view: View) -> Claim:
    others = tuple(map(method, ("td3_bc", "iql", "rebrac", "fql")))
    pairs = (*((ASPC, other) for other in others), (method("fql+aspc"), method("fql")))
    return made(
        view,
        "holds_on_ogbench",
        "The gains hold on OGBench: ASPC is above every baseline, and FQL+ASPC above FQL.",
        "Section 5.7, Table 4",
        [part for a, b in pairs for part in in_each_domain(better, view, a, b, ("OGBench",))],
    )


def weighting_helps_where_rewards_are_sparse(view: View) -> Claim:
    weighted = method("aspc", bc="advantage_weighted")
    return made(
        view,
        "weighting_helps_where_rewards_are_sparse",
        "Advantage-weighted BC (ASPC+AW) improves ASPC on AntMaze and on Adroit.",
        "Appendix E.1, Figure 9",
        in_each_domain(better, view, weighted, ASPC, ("AntMaze", "Adroit")),
    )


def keeps_rising(view: View) -> Claim:
    parts: list[Part] = []
    for metric, name in (("q", "Q"), ("bc_loss", "BC loss"), ("score", "score")):
        ours = on_cheetah(growth(view, view.of(ASPC), metric))
        if not ours:
            parts.append(Gap((ASPC,), (CHEETAH,), f"with a curve of {name}"))
        else:
            rise = statistics.average(ours)
            what = f"{name} with ASPC: last fifth of training against the second fifth"
            parts.append(Check(what, rise, "%", at_least(), (ASPC,), tuple(ours)))
        first, second = common(*(on_cheetah(growth(view, runs, metric)) for runs in view.pair(ASPC, TD3_BC)))
        if not first:
            parts.append(Gap((ASPC, TD3_BC), (CHEETAH,), f"with curves of {name} that can be compared"))
        else:
            lead, flat = statistics.difference(first, second), statistics.average(second)
            what = f"{name}: that rise, ASPC − TD3+BC"
            parts.append(Check(what, lead, "points of %", at_least(), (ASPC, TD3_BC), tuple(first)))
            what = f"{name}: that rise with TD3+BC; flat is read as within {FLAT:.0f} %"
            parts.append(Check(what, flat, "%", Claimed(-FLAT, FLAT), (TD3_BC,), tuple(second)))
    return made(
        view,
        "keeps_rising",
        "On halfcheetah-medium Q, BC loss and score all keep rising with ASPC, while TD3+BC stays flat.",
        "Appendix E.3, Figure 10",
        parts,
    )


def on_cheetah(found: Scores) -> dict[str, np.ndarray]:
    return {name: found[name] for name in in_order(found) if without_version(name) == CHEETAH}


# ── curves ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def curves_of(view: View, runs: pd.DataFrame, metric: str) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Dataset → (steps, values) of each seed; points that are missing are left out."""
    table = with_measure(view.curves.merge(runs[["run_id", "dataset", "measure"]], on="run_id"))
    table = table[np.isfinite(table[metric].astype(float))]
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for (dataset, _), group in table.groupby(["dataset", "run_id"]):
        found.setdefault(str(dataset), []).append((group["step"].to_numpy(), group[metric].to_numpy(float)))
    return found


def at_share(view: View, runs: pd.DataFrame, metric: str, share: float) -> dict[str, np.ndarray]:
    """The values at a share of training: the last point up to there."""
    out = {}
    for dataset, seeds in curves_of(view, runs, metric).items():
        points = [values[steps <= share * steps[-1]] for steps, values in seeds]
        if all(len(p) for p in points):
            out[dataset] = np.array([p[-1] for p in points])
    return out


def growth(view: View, runs: pd.DataFrame, metric: str) -> dict[str, np.ndarray]:
    """Percent by which the last fifth of each curve is above its second fifth; the first is start-up."""
    out = {}
    for dataset, seeds in curves_of(view, runs, metric).items():
        if all(len(values) >= 5 for _, values in seeds):
            fifths = [np.array_split(values, 5) for _, values in seeds]
            before, after = (np.array([f[i].mean() for f in fifths]) for i in (1, 4))
            if (before != 0).all():
                out[dataset] = 100 * (after - before) / np.abs(before)
    return out


ALL: tuple[Callable[[View], Claim], ...] = (
    beats_td3_bc,
    beats_all_on_average,
    best_on_locomotion_and_mazes,
    profile_above,
    largest_polygon,
    rises_faster,
    no_late_collapse,
    one_setting_degrades,
    smaller_on_better_data,
    scale_by_task,
    drops_then_rises,
    dynamic_is_best,
    small_overhead,
    interval_of_thirty,
    robust_critic_helps,
    l1_alone_is_worst,
    losses_by_domain,
    l2_inside_l3_matters,
    form_five_is_form_four,
    l3_matters_little_on_adroit,
    middle_start_is_best,
    middle_rate_is_best,
    improves_each_base,
    holds_on_ogbench,
    weighting_helps_where_rewards_are_sparse,
    keeps_rising,
)


def check_all(view: View) -> list[Claim]:
    """Every claim, in the paper's order."""
    found = [(claim, claim(view)) for claim in ALL]
    return [replace(checked, not_in_paper=not_in_paper(claim, checked.source)) for claim, checked in found]


@cache
def not_in_paper(claim: Callable[[View], Claim], source: str) -> str:
    """What the tables that a claim's source names do not show of it; nothing where they do, or where there are none."""
    checked = [(table, claim(paper_results.view_of(table.name)).checks) for table in paper_results.named_in(source)]
    return " ".join(filter(None, (_not_shown(table, checks) for table, checks in checked)))


def _not_shown(table: PaperTable, checks: Sequence[Check]) -> str:
    failed = [check for check in checks if check._replace(estimate=check.estimate.exact()).verdict == FAILS]
    if not failed:
        return ""
    each = "domain" if table.rows[0] in DOMAINS else "dataset"
    numbers = "; ".join(f"{check.what}: {check.estimate.value:.1f} {check.unit}" for check in failed)
    return (
        f"The paper's own {table.source} does not show this. By the mean that it prints for each {each}, in the place "
        f"of runs, {len(failed)} of {len(checks)} checks {'do' if len(failed) > 1 else 'does'} not hold: {numbers}."
    )
