"""Sentences and captions of the page that depend on the results. Text from files is escaped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from aspc.lab.paper_tables import TOTAL, tables
from aspc.lab.report.ablations import Ablation
from aspc.lab.report.aggregates import DomainSummary
from aspc.lab.report.claims.comparisons import PAPER_STEPS
from aspc.lab.report.claims.vocabulary import FAILS, HOLDS, OPEN, Claim, ClaimCheck, join_words
from aspc.lab.report.content import ReportContent
from aspc.lab.report.formatting import choose_digits, format_interval, format_number, pluralize
from aspc.lab.report.paper_results import paper_table_of
from aspc.lab.report.recommendation import Recommendation
from aspc.lab.report.runtime import SeriesRuntime
from aspc.lab.report.score_tables import ScoreCell, ScoreRow, ScoreTable
from aspc.lab.report.statistics import IntervalEstimate
from aspc.lab.works import works
from aspc.text import join_limited


def describe_results(content: ReportContent) -> Markup:
    """Return the lead paragraph: the recommended (or best) label, its margin, and the number of claims that hold."""
    if content.recommendation is not None and content.aggregates is not None:
        text = describe_recommendation(content.recommendation, content.aggregates.overall)
    else:
        text = describe_best(content)
    counts = Counter(claim.verdict for claim in content.claims)
    hold, do = "holds" if counts[HOLDS] == 1 else "hold", "does" if counts[FAILS] == 1 else "do"
    return text + (
        f" Of the paper’s {len(content.claims)} claims, {counts[HOLDS]} {hold} on these results, "
        f"{counts[FAILS]} {do} not, and {counts[OPEN]} cannot be decided yet."
    )


def describe_recommendation(recommendation: Recommendation, overall: DomainSummary) -> Markup:
    """Return sentences that state the recommended label, the number of datasets, and the label's margin over others."""
    done, planned = (sum(counts) for counts in zip(*recommendation.datasets.values(), strict=True))
    label = recommendation.label
    if label is None or label not in overall.iqm:
        return Markup(
            "No method is recommended. With results on {} of {} datasets, none of the candidates ({}) meets the "
            "criteria."
        ).format(done, planned, join_names(recommendation.candidates))
    best = overall.iqm[label]
    text = Markup("Recommended so far, with results on {} of {} datasets: <strong>{}</strong>.").format(
        done, planned, label
    )
    text += f" Its interquartile mean is {format_number(best.value)}{_in_brackets(best)}"
    others = [other for other in (*recommendation.candidates, *overall.labels) if other != label]
    shown = [other for other in dict.fromkeys(others) if other in overall.iqm][:3]
    values = join_words(f"{format_number(overall.iqm[x].value)} for {name_in_list(x)}" for x in shown)
    text += Markup(", compared with {}.").format(values)
    if any(_overlap(best, overall.iqm[other]) for other in shown):
        text += " Some intervals overlap, so the order could still change."
    rival = next((other for other in recommendation.rivals if other in overall.improvement), None)
    if rival is not None and label == overall.reference:
        chance = overall.improvement[rival]
        text += Markup(" A run of {} beats a run of {} with probability {}{}.").format(
            label, rival, format_number(chance.value, 2), _in_brackets(chance, 2)
        )
    return text


def describe_rule(recommendation: Recommendation) -> str:
    """Return sentences that state the number of datasets per domain and the criteria for a recommendation."""
    counts = ", ".join(f"{domain} {done} of {planned}" for domain, (done, planned) in recommendation.datasets.items())
    return (
        f"Datasets with results: {counts}. Candidates are {join_names(recommendation.candidates)}. A candidate "
        f"qualifies if it is not behind {join_words(map(name_in_list, recommendation.rivals), 'or')} on any domain "
        "(95 % intervals) and is ahead of each of them over all common datasets. The qualified candidate with the "
        "highest interquartile mean is recommended."
    )


def name_in_list(label: str) -> str:
    """Return a label without a comma: "IQL (tuned)"."""
    name, comma, rest = label.partition(", ")
    return f"{name} ({rest})" if comma else name


def join_names(labels: Sequence[str]) -> str:
    return join_words(map(name_in_list, labels))


def list_names(labels: Sequence[str]) -> str:
    """Return the first five labels, and the number of any others."""
    return join_limited([name_in_list(label) for label in labels], 5)


def _in_brackets(estimate: IntervalEstimate, digits: int = 1) -> str:
    return f" ({format_interval(estimate, digits)})" if estimate.has_interval else ""


def _overlap(first: IntervalEstimate, second: IntervalEstimate) -> bool:
    return first.has_interval and second.has_interval and second.high >= first.low and first.high >= second.low


def describe_best(content: ReportContent) -> Markup:
    """Return a sentence that states the label with the highest average and its margin."""
    scores, aggregates = content.headline_scores(), content.aggregates
    if scores is None:
        return Markup("No dataset has a score yet.")
    n, titles = len(scores.datasets), content.main_table.titles
    data = f"On average over {n} datasets" if n > 1 else f"On {scores.datasets[0]}"
    values = scores.last
    if aggregates is not None:
        data = f"By interquartile mean over {n} {pluralize('dataset', n)}"
        values = aggregates.overall.iqm
    (label, best), *others = sorted(values.items(), key=lambda item: -item[1].value)
    verb = "ranks first with" if others else "scores"
    text = Markup("{}, <strong>{}</strong> {} {}").format(data, titles[label], verb, format_number(best.value))
    if best.has_interval:
        text += f" (95 % interval {format_interval(best)})"
    if others:
        second, runner_up = others[0]
        text += f", ahead of {titles[second]} with {format_number(runner_up.value)}"
        text += "; their intervals overlap" if _overlap(best, runner_up) else ""
        text += _describe_improvement(aggregates.overall, label, second) if aggregates is not None else ""
    return text + "."


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
    """Return the numbers at the top of the page, each with its caption."""
    done, failed = len(content.view.runs), len(content.view.all_runs) - len(content.view.runs)
    seeds = [table.seeds for table in (content.main_table, *content.other_tables)]
    low, high = min(low for low, _ in seeds), max(high for _, high in seeds)
    counts = Counter(claim.verdict for claim in content.claims)
    decided = counts[HOLDS] + counts[FAILS]
    return [
        (f"{done:,}", pluralize("run", done) + (f", {failed} failed" if failed else "")),
        (f"{len(content.datasets)}", pluralize("dataset", len(content.datasets))),
        (str(low) if low == high else f"{low} to {high}", f"{pluralize('seed', high)} per number"),
        (f"{counts[HOLDS]} / {decided}", "decided claims hold") if decided else ("–", "no claim can be decided"),
    ]


def describe_sources(content: ReportContent) -> dict[str, str]:
    """Return the publications from which the page's published numbers come, by the use of these numbers."""
    shown = [
        table for table in (content.main_table, *content.other_tables) if any(map(table.has_paper_scores, table.labels))
    ]
    printed = [paper_table_of(table.suite) or tables()["main_table"] for table in shown]
    if not printed:
        return {}
    names = join_words(dict.fromkeys(table.source.split(",")[0] for table in printed))
    found = {f"The paper’s numbers ({names})": str(works()["aspc"])}
    for table in printed:
        for label, keys in table.copied.items():
            use = f"{label} in {table.source.split(',')[0]}, copied by the paper’s authors"
            found[use] = "; ".join(str(works()[key]) for key in keys)
    return found


def describe_conditions(content: ReportContent) -> str:
    """Return the number of steps, the devices, the revisions and the precision of the runs."""
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


def describe_seeds(table: ScoreTable) -> str:
    """Return a sentence that states the number of seeds per dataset and algorithm."""
    low, high = table.seeds
    if low == high:
        return f"{low} {pluralize('seed', low)} per dataset and algorithm."
    return f"{low} to {high} seeds per dataset and algorithm; cells with fewer than {high} show their number."


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


def summary_columns(
    summary: DomainSummary, titles: Mapping[str, str]
) -> list[tuple[str, Mapping[str, IntervalEstimate], int]]:
    """Return the title, the values per label and the number of decimals of each column, robust statistics first."""
    reference = titles[summary.reference]
    return [
        ("Interquartile mean", summary.iqm, 1),
        (f"P({reference} is better)", summary.improvement, 2),
        ("Mean", summary.mean, 1),
        (f"{reference} − algorithm, mean", summary.difference, 1),
        (f"{reference} − algorithm, median over datasets", summary.median_difference, 1),
    ]


def order_checks(claim: Claim) -> list[ClaimCheck]:
    """Return a claim's checks, starting with those that decide the verdict."""
    return sorted(claim.checks, key=lambda check: check.verdict != claim.verdict)


def describe_checks(claim: Claim) -> str:
    """Return the number of a claim's checks by verdict, and the number of their datasets."""
    counts = Counter(check.verdict for check in claim.checks)
    words = {HOLDS: ("holds", "hold"), FAILS: ("does not hold", "do not hold"), OPEN: ("undecided", "undecided")}
    parts = ", ".join(f"{n} {words[verdict][n > 1]}" for verdict in words if (n := counts[verdict]))
    n = len(claim.datasets)
    return f"{len(claim.checks)} {pluralize('check', len(claim.checks))} ({parts}), {n} {pluralize('dataset', n)}"


def check_value(check: ClaimCheck) -> str:
    """Return a check's estimate with its unit."""
    return f"{format_number(check.estimate.value, choose_digits(check.estimate.value))} {check.unit}"


def check_interval(check: ClaimCheck) -> str:
    """Return a check's interval, and the datasets to which it is limited, if any."""
    interval = format_interval(check.estimate, choose_digits(check.estimate.value))
    return "; ".join(filter(None, (interval or "too few seeds for an interval", check.scope)))


def describe_ablation(ablation: Ablation) -> str:
    """Return the caption of an ablation."""
    counts = ", ".join(f"{domain} {n}" for domain, n in ablation.datasets.items())
    baseline = ablation.titles[ablation.group.baseline]
    text = f"% difference from {baseline} · {ablation.group.source} · datasets: {counts}"
    if ablation.without_paper:
        domains = ", ".join(ablation.without_paper)
        text += f" · no diamond for {domains}, where the paper’s numbers cover more datasets"
    return text


def describe_runtime(runtime: SeriesRuntime) -> str:
    """Return the conditions under which a runtime was measured."""
    text = f"{runtime.dataset} on {runtime.device}, {runtime.concurrency}; compilation time excluded"
    if runtime.concurrent > 1:
        text += ". Other groups may have shared the device, so this is not the cost of an algorithm alone"
    return text
