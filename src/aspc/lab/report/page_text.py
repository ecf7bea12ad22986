"""The page's sentences and captions that depend on the results. Text from files is escaped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from markupsafe import Markup

from aspc.lab.paper_tables import TOTAL
from aspc.lab.report.ablations import Ablation
from aspc.lab.report.aggregates import DomainSummary
from aspc.lab.report.claims.comparisons import PAPER_STEPS
from aspc.lab.report.claims.vocabulary import FAILS, HOLDS, OPEN, Claim, ClaimCheck
from aspc.lab.report.content import ReportContent
from aspc.lab.report.formatting import choose_digits, format_interval, format_number, pluralize
from aspc.lab.report.runtime import SeriesRuntime
from aspc.lab.report.score_tables import ScoreCell, ScoreRow, ScoreTable
from aspc.lab.report.statistics import IntervalEstimate
from aspc.text import join_limited


def describe_results(content: ReportContent) -> Markup:
    """Return the lead: the best label, its margin, and the number of claims that hold."""
    scores, aggregates = content.headline_scores(), content.aggregates
    if scores is None:
        return Markup("No dataset has a score yet.")
    n = len(scores.datasets)
    data = f"On average over {n} datasets" if n > 1 else f"On {scores.datasets[0]}"
    values = scores.last
    if aggregates is not None:
        data = f"By interquartile mean over {n} {pluralize('dataset', n)}"
        values = aggregates.overall.iqm
    (label, best), *others = sorted(values.items(), key=lambda item: -item[1].value)
    verb = "ranks first with" if others else "scores"
    text = Markup("{}, <strong>{}</strong> {} {}").format(data, label, verb, format_number(best.value))
    if best.has_interval:
        text += f" (95 % interval {format_interval(best)})"
    if others:
        second, runner_up = others[0]
        is_overlap = best.has_interval and runner_up.has_interval and runner_up.high >= best.low
        text += f", ahead of {second} with {format_number(runner_up.value)}"
        text += "; their intervals overlap" if is_overlap else ""
        text += _describe_improvement(aggregates.overall, label, second) if aggregates is not None else ""
    counts = Counter(claim.verdict for claim in content.claims)
    hold, do = "holds" if counts[HOLDS] == 1 else "hold", "does" if counts[FAILS] == 1 else "do"
    return text + (
        f". Of the paper’s {len(content.claims)} claims, {counts[HOLDS]} {hold} on these results, "
        f"{counts[FAILS]} {do} not, and {counts[OPEN]} cannot be decided."
    )


def _describe_improvement(summary: DomainSummary, first: str, second: str) -> str:
    """Return a sentence on the probability that `first` beats `second`, if one of them is the reference."""
    if first == summary.reference:
        chance = summary.improvement[second]
    elif second == summary.reference:
        chance = summary.improvement[first].complement()
    else:
        return ""
    interval = f" ({format_interval(chance, 2)})" if chance.has_interval else ""
    return f". A run of {first} beats a run of {second} with probability {format_number(chance.value, 2)}{interval}"


def header_tiles(content: ReportContent) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page with their captions."""
    done, failed = len(content.view.runs), len(content.view.all_runs) - len(content.view.runs)
    low, high = content.main_table.seeds
    counts = Counter(claim.verdict for claim in content.claims)
    decided = counts[HOLDS] + counts[FAILS]
    return [
        (f"{done:,}", pluralize("run", done) + (f", {failed} failed" if failed else "")),
        (f"{len(content.datasets)}", pluralize("dataset", len(content.datasets))),
        (str(low) if low == high else f"{low} to {high}", f"{pluralize('seed', high)} per number"),
        (f"{counts[HOLDS]} / {decided}", "decided claims hold") if decided else ("–", "no claim can be decided"),
    ]


def describe_conditions(content: ReportContent) -> str:
    """Return steps, devices, revisions and precision of the runs."""
    runs = content.view.runs
    steps = sorted(set(runs["steps"]))
    text = f"{steps[0]:,} steps" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,} steps"
    if steps[-1] < PAPER_STEPS:
        text += f" (the paper: {PAPER_STEPS:,})"
    facts = [text]
    for column, name in (("device", "device"), ("git_revision", "revision"), ("matmul_precision", "precision")):
        values = [str(v) for v in runs[column].dropna().unique()]
        if column == "git_revision":
            values = [v[:10] + "+" * ("+" in v) for v in values]
        if values:
            facts.append(f"{name} {join_limited(values, 3)}")
    return " · ".join(facts)


def describe_table(table: ScoreTable) -> str:
    """Return a table's title: its source in the paper, its topic and its suite."""
    topic = table.title[:1].upper() + table.title[1:]
    source = f"{table.source} of the paper" if table.source else ""
    return " · ".join(filter(None, (source, topic, table.suite)))


def describe_count(cell: ScoreCell, row: ScoreRow) -> str:
    """Return the number of datasets or seeds behind a cell."""
    if row.is_average:
        return f"{cell.n} of {len(row.datasets)} datasets"
    return f"{cell.n} {pluralize('seed', cell.n)}"


def describe_spread(std: float) -> str:
    return f"; standard deviation over seeds ± {format_number(std)}" if math.isfinite(std) else ""


def summary_title(summary: DomainSummary) -> str:
    """Return the title of a summary table."""
    name = "All domains" if summary.domain == TOTAL else summary.domain
    n = len(summary.datasets)
    return f"{name} · {f'{n} datasets' if n > 1 else summary.datasets[0]}"


def summary_columns(summary: DomainSummary) -> list[tuple[str, Mapping[str, IntervalEstimate], int]]:
    """Return each summary column's title, values per label and number of decimals, robust statistics first."""
    return [
        ("Interquartile mean", summary.iqm, 1),
        (f"P({summary.reference} is better)", summary.improvement, 2),
        ("Mean", summary.mean, 1),
        (f"{summary.reference} − algorithm, mean", summary.difference, 1),
        (f"{summary.reference} − algorithm, median of datasets", summary.median_difference, 1),
    ]


def summary_labels(summary: DomainSummary) -> list[str]:
    """Return the labels of a summary, best interquartile mean first."""
    return sorted(summary.labels, key=lambda label: -summary.iqm[label].value)


def deciding_check(claim: Claim) -> ClaimCheck:
    """Return the first check with the claim's verdict, or the first check if all hold but runs are missing."""
    return next((check for check in claim.checks if check.verdict == claim.verdict), claim.checks[0])


def describe_checks(claim: Claim) -> str:
    """Return a claim's number of checks by verdict, and its number of datasets."""
    counts = Counter(check.verdict for check in claim.checks)
    words = {HOLDS: ("holds", "hold"), FAILS: ("does not hold", "do not hold"), OPEN: ("undecided", "undecided")}
    parts = ", ".join(f"{n} {words[verdict][n > 1]}" for verdict in words if (n := counts[verdict]))
    n = len(claim.datasets)
    return f"{len(claim.checks)} checks ({parts}), {n} {pluralize('dataset', n)}"


def check_value(check: ClaimCheck) -> str:
    """Return a check's estimate with its unit."""
    return f"{format_number(check.estimate.value, choose_digits(check.estimate.value))} {check.unit}"


def check_interval(check: ClaimCheck) -> str:
    """Return a check's interval and the datasets to which it is limited."""
    interval = format_interval(check.estimate, choose_digits(check.estimate.value))
    return "; ".join(filter(None, (interval or "too few seeds for an interval", check.scope)))


def describe_ablation(ablation: Ablation) -> str:
    """Return the caption of an ablation."""
    counts = ", ".join(f"{domain} {n}" for domain, n in ablation.datasets.items())
    text = f"% difference from {ablation.group.baseline} · {ablation.group.source} · datasets: {counts}"
    if ablation.without_paper:
        domains = ", ".join(ablation.without_paper)
        text += f" · no diamond on {domains}: the paper’s numbers cover more datasets"
    return text


def describe_runtime(runtime: SeriesRuntime) -> str:
    """Return the conditions under which a runtime was measured."""
    text = f"{runtime.dataset} on {runtime.device}, {runtime.concurrency}; without compilation"
    if runtime.concurrent > 1:
        text += ". Other groups may have shared the device, so this is not the cost of an algorithm alone"
    return text
