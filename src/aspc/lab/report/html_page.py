"""The report as one self-contained HTML page.

Tables and claims are plain HTML, so that they can be read without JavaScript; curves, the runs and the pictures are
data in the page, drawn by page.js with Plotly's library, which is inlined. Every word from a file is escaped.
"""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from aspc.errors import MissingExtra
from aspc.lab.paper_tables import TOTAL
from aspc.lab.report.claims import FAILS, HOLDS, OPEN, Check, Claim
from aspc.lab.report.content import Content
from aspc.lab.report.page_data import page_data
from aspc.lab.report.statistics import Estimate
from aspc.lab.report.styles import Style
from aspc.lab.report.tables import Ablation, Cell, Row, Speed, Summary, Table
from aspc.lab.report.view import MEASURES, TASKS, quality_of, task_of

PAPER_STEPS = 1_000_000
SIGNS = {HOLDS: ("holds", "✓"), FAILS: ("fails", "✕"), OPEN: ("open", "·")}
SECTIONS = {
    "overall": "Summary",
    "scores": "Scores",
    "claims": "Claims",
    "curves": "Curves",
    "scale": "Scale",
    "ablations": "Ablations",
    "runtime": "Runtime",
    "runs": "Runs",
}

SCORES_NOTE = """Mean over seeds of the last evaluation, with its 95 % interval below (of a single dataset over seeds,
from three seeds on; of an average over datasets and seeds); the paper’s number beside it, ±
its standard deviation over seeds, which is another quantity than an interval of the mean: point at a number of ours for
its own. <b>Bold</b> is the best of a row, <u>underlined</u> the second best, in ours and in the paper’s separately. A
number leads to its runs; a heading sorts."""
SUITES_NOTE = """By the part of the paper that each reproduces, in its order; then others."""
CLAIMS_NOTE = """Each claim of the paper, checked on these data. A check holds where its whole 95 % interval, over
datasets and seeds, is on the claimed side, does not hold where all of it is on the other, and is open in between. With
fewer than three datasets the interval covers seeds alone, and the check says that it is about these datasets only. A
claim does not hold if one of its checks does not; it holds if all of them do and nothing that it speaks of is missing.
A claim that the paper’s own table does not show says so."""
INTERVALS_NOTE = """Intervals are at 95 % and cover both datasets and seeds, by a bootstrap that draws datasets with
replacement, the same for all algorithms, and seeds within them; over fewer than three datasets they cover the seeds of
these datasets only."""
CURVES_NOTE = """On <b class="picked"></b>: mean over seeds, the band is one standard deviation each way, as in the
paper. Pick another dataset and further algorithms in the bar above."""
ABLATIONS_NOTE = """Percent difference of domain averages from the paper’s baseline of each comparison, with 95 %
intervals. A diamond is the paper’s number for the same datasets."""
BY_DATASET_NOTE = """The same on each dataset, as the paper draws it: means over seeds with 95 % intervals, and above
them the difference in percent."""
RUNS_NOTE = """Every run behind the numbers. A row opens its whole record: settings, config, versions, folder."""
METHOD_NOTE = f"""The score of a single dataset is the mean over seeds, with Student’s t interval from three seeds on.
Averages weigh each dataset the same; differences are paired by dataset. {INTERVALS_NOTE} Methods are compared only on
datasets that both have, at the same number of steps. Where a dataset has no normalised score, its success rate is
taken, and where it has none, its return, which is never averaged over datasets. The page loads nothing and sends
nothing."""


NO_INTERVAL = "too few seeds for an interval"

# Filled and shown by page.js while it draws fewer series than the first table has.
SOME_ARE_OFF = '<p class="off" hidden><span></span> <button>Show all</button></p>'


def page(content: Content, figures: Sequence[str] = ()) -> str:
    """The whole page as text. `figures` are the names of the files beside it, which it links to."""
    data = json.dumps(page_data(content), separators=(",", ":"), allow_nan=False)
    parts = {
        "overall": _overall(content, figures),
        "scores": _scores(content),
        "claims": _claims(content.claims),
        "curves": _curves(figures),
        "scale": _scale(content, figures),
        "ablations": _ablations(content, figures),
        "runtime": _runtime(content, figures),
        "runs": _runs(content),
    }
    shown = {name: text for name, text in parts.items() if text}
    sections = "".join(
        f'<section id="{name}"><h2>{SECTIONS[name]}</h2>{text}</section>' for name, text in shown.items()
    )
    links = "".join(f'<a href="#{name}">{SECTIONS[name]}</a>' for name in shown)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing may be loaded or sent, whatever a name in the results contains.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'\">"
        f"<title>ASPC report</title><style>{_file('page.css')}</style></head><body>"
        f"{_header(content, links)}{_bar()}<main>{sections}{_method()}</main>"
        f'<script type="application/json" id="data">{_in_script(data)}</script>'
        f"<script>{_plotly()}</script><script>{_file('page.js')}</script></body></html>\n"
    )


def _file(name: str) -> str:
    return resources.files("aspc.lab.report").joinpath(name).read_text("utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("A report", "report") from error
    return get_plotlyjs()


def _in_script(text: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def esc(text: Any) -> str:
    return html.escape(str(text), quote=True)


def number(value: float, digits: int = 1) -> str:
    if not math.isfinite(value):
        return "–"
    rounded = f"{value:,.{digits}f}"
    return (rounded.lstrip("-") if float(rounded.replace(",", "")) == 0 else rounded).replace("-", "−")


def interval(estimate: Estimate, digits: int = 1) -> str:
    return f"{number(estimate.low, digits)} to {number(estimate.high, digits)}" if estimate.has_interval else ""


def significant(value: float) -> int:
    """Digits after the point for three or so figures."""
    if not math.isfinite(value) or value == 0:
        return 1
    return int(np.clip(2 - math.floor(math.log10(abs(value))), 1, 4)) if abs(value) < 10 else 1


# ── head ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _header(content: Content, links: str) -> str:
    runs, everything = content.view.runs, content.view.all_runs
    counts = Counter(claim.verdict for claim in content.claims)
    failed = len(everything) - len(runs)
    tiles = [
        (f"{len(runs):,}", "run" + "s" * (len(runs) != 1) + (f", {failed} failed" if failed else "")),
        (f"{len(content.datasets)}", "dataset" + "s" * (len(content.datasets) != 1)),
        (_seeds(content.main.seeds), "seed" + "s" * (content.main.seeds != (1, 1)) + " a number"),
        _claims_tile(counts[HOLDS], counts[HOLDS] + counts[FAILS]),
    ]
    cells = "".join(f"<div><b>{esc(big)}</b><span>{esc(small)}</span></div>" for big, small in tiles)
    return (
        f'<header class="top"><div class="wrap"><p class="over">aspc report</p><h1>Adaptive scaling of policy '
        f'constraints</h1><p class="lead">{summary(content)}</p><div class="tiles">{cells}</div>'
        f'<p class="facts">{_facts(content)}</p><nav aria-label="Sections">{links}</nav></div></header>'
    )


def _claims_tile(hold: int, decided: int) -> tuple[str, str]:
    return (f"{hold} / {decided}", "decided claims hold") if decided else ("–", "no claim can be decided")


def summary(content: Content) -> str:
    """Say in a few words who is best by how much, and what of the paper holds here. HTML, escaped."""
    compared, found = content.compared(), content.aggregates
    if compared is None:
        return "No dataset has a score yet."
    n = len(compared.datasets)
    where = f"On average over {n} datasets" if n > 1 else f"On {esc(compared.datasets[0])}"
    values = compared.last
    if found is not None:
        where = f"By interquartile mean over {n} dataset{'s' * (n != 1)}"
        values = found.overall.iqm
    (label, best), *others = sorted(values.items(), key=lambda item: -item[1].value)
    text = f"{where} <strong>{esc(label)}</strong> {'is first with' if others else 'has'} {number(best.value)}"
    if best.has_interval:
        text += f" (95 % interval {interval(best)})"
    if others:
        second, its = others[0]
        overlap = best.has_interval and its.has_interval and its.high >= best.low
        text += f", before {esc(second)} with {number(its.value)}{'; their intervals overlap' if overlap else ''}"
        text += _beats(found.overall, label, second) if found is not None else ""
    counts = Counter(claim.verdict for claim in content.claims)
    hold, do = "hold" + "s" * (counts[HOLDS] == 1), "do" + "es" * (counts[FAILS] == 1)
    return (
        f"{text}. Of the paper’s {len(content.claims)} claims, {counts[HOLDS]} {hold} on these data, "
        f"{counts[FAILS]} {do} not, and {counts[OPEN]} cannot be decided."
    )


def _beats(found: Summary, first: str, second: str) -> str:
    """The probability of improvement of the first over the second, where one of them is the reference."""
    if first == found.reference:
        chance = found.improvement[second]
    elif second == found.reference:
        chance = found.improvement[first].complement()
    else:
        return ""
    ends = f" ({interval(chance, 2)})" if chance.has_interval else ""
    return f". A run of {esc(first)} beats one of {esc(second)} with probability {number(chance.value, 2)}{ends}"


def _seeds(seeds: tuple[int, int]) -> str:
    return str(seeds[0]) if seeds[0] == seeds[1] else f"{seeds[0]} to {seeds[1]}"


def _facts(content: Content) -> str:
    runs = content.view.runs
    steps = sorted(set(runs["steps"]))
    text = f"{steps[0]:,} steps" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,} steps"
    if steps[-1] < PAPER_STEPS:
        text += f" (the paper: {PAPER_STEPS:,})"
    facts = [text]
    for column, name in (("device", "device"), ("git_revision", "revision"), ("matmul_precision", "precision")):
        values = [str(v) for v in runs[column].dropna().unique()]
        if values:
            more = f" and {len(values) - 3} more" if len(values) > 3 else ""
            shown = (v[:10] + "+" * ("+" in v) if column == "git_revision" else v for v in values[:3])
            facts.append(f"{name} {esc(', '.join(shown))}{more}")
    return " · ".join(facts)


def _bar() -> str:
    """Dataset and algorithms: what is picked here counts on the whole page."""
    return (
        '<div class="bar" role="region" aria-label="What is shown"><div class="wrap">'
        '<label class="pick"><span>Dataset</span><select id="dataset"></select></label>'
        '<div class="chips" id="chips" role="group" aria-label="Algorithms"></div>'
        '<button id="open" class="icon" aria-expanded="false" aria-controls="chips" hidden></button>'
        '<button id="theme" class="icon" title="Light or dark" aria-label="Light or dark">◐</button></div></div>'
    )


# ── scores ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _scores(content: Content) -> str:
    others = "".join(
        f"<details><summary>{esc(_table_name(table))}</summary>{_table(table, content)}</details>"
        for table in content.others
    )
    heading = f'<h3>Other suites</h3><p class="note">{SUITES_NOTE}</p>' if others else ""
    return (
        f'<p class="note">{SCORES_NOTE}</p><div class="switch" role="group" aria-label="Which evaluation">'
        '<button data-which="last" aria-pressed="true">Last evaluation</button>'
        '<button data-which="best" aria-pressed="false">Best evaluation</button></div>'
        f"<h3>{esc(_table_name(content.main))}</h3>{SOME_ARE_OFF}{_table(content.main, content)}{heading}{others}"
    )


def _table_name(table: Table) -> str:
    """What the paper calls it, what it is about, and the suite that made it."""
    about = table.title[:1].upper() + table.title[1:]
    source = f"{table.source} of the paper" if table.source else ""
    return " · ".join(filter(None, (source, about, table.suite)))


def _table(table: Table, content: Content) -> str:
    columns = list(enumerate(table.labels))
    with_paper = {label for row in table.rows for label, cell in row.cells.items() if cell.paper}
    head = "".join(_head_cell(i, label, table, content, label in with_paper) for i, label in columns)
    body, foot, domain = [], "", ""
    grouped = len({row.domain for row in table.rows if not row.average}) > 1
    for row in table.rows:
        if grouped and not row.average and row.domain != domain:
            domain = row.domain
            body.append(f'<tr class="group"><th colspan="{1 + len(columns)}"><span>{esc(domain)}</span></th></tr>')
        cells = "".join(_score_cell(i, row.cells.get(label), row) for i, label in columns)
        unit = "" if row.measure == "score" else f"<small>{esc(MEASURES[row.measure])}</small>"
        names = f' data-d="{esc(json.dumps(row.datasets))}"'
        line = f'<tr{" class=average" * row.average}{names}><th scope="row">{esc(row.name)}{unit}</th>{cells}</tr>'
        if row is table.rows[-1] and row.average:
            foot = line
        else:
            body.append(line)
    notes = "".join(f"<li>{esc(note)}</li>" for note in table.notes)
    summary = f"Notes on these numbers ({len(table.notes)})"
    care = f'<details class="notes"><summary>{summary}</summary><ul>{notes}</ul></details>'
    return (
        f'<div class="scroll tall"><table class="scores sortable" data-s="{esc(table.suite)}"><thead><tr>'
        f'<th scope="col" data-key="name"><button>Dataset</button></th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody><tfoot>{foot}</tfoot></table></div>{care if notes else ''}"
    )


def _head_cell(i: int, label: str, table: Table, content: Content, paper: bool) -> str:
    series = table.series[label]
    dot = _dot(content.styles[series])
    beside = "<small>ours / paper</small>" if paper else ""
    names = f'data-series="{esc(series)}" data-label="{esc(label)}"'
    return f'<th scope="col" data-l="{i}" {names}><button>{dot}{esc(label)}</button>{beside}</th>'


def _dot(style: Style) -> str:
    """The colour of a series; striped where its lines are dashed."""
    striped = "" if style.dash == "solid" else " striped"
    return f'<i class="dot{striped}" style="background-color:{style.colour}"></i>'


def _score_cell(i: int, cell: Cell | None, row: Row) -> str:
    if cell is None:
        return f'<td data-l="{i}" class="none">–</td>'
    tag = {1: "b", 2: "u", 0: "span"}[cell.rank]
    count = f"{cell.n} of {len(row.datasets)} datasets" if row.average else f"{cell.n} seed{'s' * (cell.n != 1)}"
    title = f"{count}, {cell.steps:,} steps"
    whole = row.average and cell.n < len(row.datasets)
    ours = "".join(
        f'<span class="{which}"><a href="#runs" title="{esc(title)}{_spread(std)}"><{tag}>{number(e.value)}</{tag}></a>'
        f"<small>{interval(e) or count * (not row.average)}</small></span>"
        for which, e, std in (("last", cell.last, cell.last_std), ("best", cell.best, cell.best_std))
    )
    some = f"<small>{cell.n} of {len(row.datasets)}</small>" if whole else ""
    values = f'data-last="{cell.last.value:.6g}" data-best="{cell.best.value:.6g}"'
    return f'<td data-l="{i}" {values}>{ours}{some}{_paper(cell)}</td>'


def _spread(std: float) -> str:
    return f"; standard deviation over seeds ± {number(std)}" if math.isfinite(std) else ""


def _paper(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    tag = {1: "b", 2: "u", 0: "span"}[cell.paper.rank]
    spread = f" ± {number(cell.paper.std)}" if cell.paper.std is not None else ""
    care = f' <abbr title="{esc(cell.paper.note)}">?</abbr>' if cell.paper.note else ""
    return f'<span class="paper"><{tag}>{number(cell.paper.mean)}</{tag}>{spread}{care}</span>'


# ── claims ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _claims(claims: Sequence[Claim]) -> str:
    counts = Counter(claim.verdict for claim in claims)
    filters = '<button data-verdict="" aria-pressed="true">All <b>' + str(len(claims)) + "</b></button>"
    for verdict in (HOLDS, FAILS, OPEN):
        filters += (
            f'<button data-verdict="{SIGNS[verdict][0]}" aria-pressed="false">{verdict.capitalize()} '
            f"<b>{counts[verdict]}</b></button>"
        )
    order = sorted(claims, key=lambda claim: claim.verdict == OPEN)
    told = "".join(_card(claim) for claim in order if claim.checks)
    untold = [_card(claim) for claim in order if not claim.checks]
    rest = f"<summary>{len(untold)} claim{'s' * (len(untold) != 1)} that cannot be checked on these runs</summary>"
    rest = f'<details class="without">{rest}<div class="cards">{"".join(untold)}</div></details>' if untold else ""
    return (
        f'<p class="note">{CLAIMS_NOTE}</p>'
        f'<div class="switch" id="verdicts" role="group" aria-label="Verdict">{filters}</div>'
        f'<div class="cards">{told}</div>{rest}'
    )


def _card(claim: Claim) -> str:
    kind, sign = SIGNS[claim.verdict]
    badge = f'<span class="badge {kind}"><i aria-hidden="true">{sign}</i>{claim.verdict}{esc(claim.where)}</span>'
    inside = ""
    if claim.checks:  # one that has the claim's verdict speaks for it; none has where all hold and runs are missing
        lead = next((check for check in claim.checks if check.verdict == claim.verdict), claim.checks[0])
        inside += f'<ul class="lead">{_check(lead)}</ul>'
    if claim.missing:
        inside += f"<p>{esc(claim.missing)}</p>"
    if claim.not_in_paper:
        inside += f'<p class="caution">{esc(claim.not_in_paper)}</p>'
    if len(claim.checks) > 1:
        checks = "".join(_check(check) for check in claim.checks)
        inside += f"<details><summary>{esc(_scope(claim))}</summary><ul>{checks}</ul></details>"
    return (
        f'<article class="card {kind}" data-verdict="{kind}" id="claim-{claim.name}">'
        f'<div class="cardhead">{badge}<span class="source">{esc(claim.source)}</span></div>'
        f"<h3>{esc(claim.text)}</h3>{inside}</article>"
    )


def _scope(claim: Claim) -> str:
    counts = Counter(check.verdict for check in claim.checks)
    parts = [f"{counts[v]} {word}" for v, word in ((HOLDS, "hold"), (FAILS, "do not"), (OPEN, "open")) if counts[v]]
    many = len(claim.datasets)
    return f"{len(claim.checks)} checks ({', '.join(parts)}), {many} dataset{'s' * (many != 1)}"


def _check(check: Check) -> str:
    kind, sign = SIGNS[check.verdict]
    digits = significant(check.estimate.value)
    ends = interval(check.estimate, digits)
    ends = f" <small>({esc(ends or NO_INTERVAL)}{'; ' * bool(check.limit)}{esc(check.limit)})</small>"
    link = json.dumps({"methods": [m.name for m in check.methods], "datasets": check.datasets})
    return (
        f'<li class="{kind}"><i aria-label="{check.verdict}" title="{check.verdict}">{sign}</i>'
        f'<span>{esc(check.what)}</span><a class="num" href="#runs" data-runs="{esc(link)}">'
        f"{number(check.estimate.value, digits)} {esc(check.unit)}{ends}</a></li>"
    )


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _chart(name: str, title: str, text: str, figures: Sequence[str], file: str | None = None, css: str = "") -> str:
    file = file or name
    files = f'<span class="files"><a href="figures/{file}.png">PNG</a> <a href="figures/{file}.svg">SVG</a></span>'
    return (
        f'<figure class="chart {css}"><figcaption><b>{esc(title)}</b>{files if file in figures else ""}'
        f'<span>{text}</span></figcaption><div class="plot" data-chart="{name}"></div></figure>'
    )


def _overall(content: Content, figures: Sequence[str]) -> str:
    found = content.aggregates
    if found is None:
        return ""
    tables = "".join(_summary_table(one, content) for one in (*found.domains, found.overall))
    without = ""
    if found.left_out:
        some = ", ".join(found.left_out[:5]) + (f" and {len(found.left_out) - 5} more" if found.left_out[5:] else "")
        without = f" Not compared over all, with too few datasets: {esc(some)}."
    charts = _chart(
        "profiles",
        "Performance profiles",
        "Share of runs that score more than τ, over all; bands are 95 % intervals · as Figure 2",
        figures,
    ) + _chart(
        "improvement",
        f"Does {found.overall.reference} do better?",
        "Probability that one of its runs scores more than one of the other, averaged over datasets.",
        figures,
    )
    if content.radar is not None:
        which = f" · {content.radar.which}" if content.radar.which else ""
        charts += _chart(
            "radar",
            "Radar",
            f"Mean of each task, 0 the worst and 1 the best of these {len(found.overall.labels)}{which} · as Figure 2",
            figures,
        )
    charts += _chart(
        "last_best",
        "Last and best evaluation",
        "Averages: the last evaluation (filled) and the best one (hollow).",
        figures,
        "last_and_best",
    )
    domains = "by domain and then over all, " if found.domains else ""
    return (
        f'<p class="note">The suite {esc(content.main.suite)}, {domains}on the datasets that all algorithms of a table '
        f"have. {INTERVALS_NOTE}{without}</p>"
        f'{SOME_ARE_OFF}{tables}<div class="charts">{charts}</div>'
    )


def _summary_table(found: Summary, content: Content) -> str:
    """One domain's table, or that over all: robust statistics first, means second."""
    reference, n = esc(found.reference), len(found.datasets)
    columns: tuple[tuple[str, Mapping[str, Estimate], int], ...] = (
        ("Interquartile mean", found.iqm, 1),
        (f"P({reference} beats it)", found.improvement, 2),
        ("Mean", found.mean, 1),
        (f"{reference} − it, mean", found.difference, 1),
        (f"{reference} − it, median of datasets", found.median_difference, 1),
    )
    head = "".join(f'<th data-key="value"><button>{title}</button></th>' for title, _, _ in columns)
    rows = "".join(
        f'<tr data-series="{esc(content.main.series[label])}"><th scope="row">'
        f"{_dot(content.style_of_label(label))}{esc(label)}</th>"
        + "".join(_summary_cell(values.get(label), digits) for _, values, digits in columns)
        + "</tr>"
        for label in sorted(found.labels, key=lambda label: -found.iqm[label].value)
    )
    name = "All domains" if found.domain == TOTAL else found.domain
    on = f"{n} datasets" if n > 1 else found.datasets[0]
    return (
        f'<h3>{esc(name)} · {esc(on)}</h3><div class="scroll fit"><table class="sortable small summary"><thead><tr>'
        f'<th data-key="name"><button>Algorithm</button></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _summary_cell(estimate: Estimate | None, digits: int) -> str:
    if estimate is None:
        return '<td class="none">–</td>'
    ends = interval(estimate, digits)
    return f'<td data-value="{estimate.value:.6g}">{number(estimate.value, digits)}<small>{ends}</small></td>'


def _curves(figures: Sequence[str]) -> str:
    charts = "".join(
        _chart(f"curve-{metric}", title, text, figures, file)
        for metric, title, text, file in (
            ("score", "Score", "of the evaluations · as Figures 8 and 10", "learning_curves"),
            ("scale", "Scale", "that the algorithm learns · as Figure 7", "-"),
            ("q", "Q", "of the policy’s actions, mean · as Figure 10", "q_curves"),
            ("bc_loss", "BC loss", "mean · as Figure 10", "bc_loss_curves"),
        )
    )
    return f'<p class="note">{CURVES_NOTE}</p>{SOME_ARE_OFF}<div class="charts">{charts}</div>'


def _scale(content: Content, figures: Sequence[str]) -> str:
    curves = [c for c in content.curves if c.metric == "scale" and c.series == content.scale_series]
    if not curves:
        return ""
    by_quality = sorted({task_of(c.dataset) for c in curves if quality_of(c.dataset)})
    charts = "".join(
        _chart(
            f"quality-{i}", task, "alpha by the quality of the data · as Figures 3 and 7", figures, "alpha_by_quality"
        )
        for i, task in enumerate(by_quality)
    )
    for i, task in enumerate(content.scale_by_task()):
        text = f"alpha on its datasets{' · as Figures 4 and 7' * (task in TASKS)}"
        charts += _chart(f"task-{i}", task, text, figures, "alpha_by_task")
    return (
        f'<p class="note">How {esc(content.scale_series)}’s scale moves. Small favours '
        f'imitation of the data, large favours Q.</p><div class="charts three">{charts}</div>'
    )


def _ablations(content: Content, figures: Sequence[str]) -> str:
    charts = "".join(
        _chart(
            f"ablation-{i}",
            a.group.title,
            f"% difference from {esc(a.group.baseline)} · {esc(a.group.source)} · {_counts(a)}{_without_paper(a)}",
            figures,
            "ablations",
        )
        for i, a in enumerate(content.ablations)
    )
    if not charts:
        return ""
    single = "".join(
        _chart(
            f"dataset-{i}",
            found.group.title,
            f"{content.units(found.datasets)} · above, the difference from {esc(found.group.baseline)} · "
            f"{esc(found.group.source)}",
            figures,
            "by_dataset",
            "wide high",
        )
        for i, found in enumerate(content.by_dataset)
    )
    if single:
        single = f'<h3>By dataset</h3><p class="note">{BY_DATASET_NOTE}</p><div class="charts">{single}</div>'
    return f'<p class="note">{ABLATIONS_NOTE}</p><div class="charts">{charts}</div>{single}'


def _without_paper(ablation: Ablation) -> str:
    if not ablation.without_paper:
        return ""
    return f" · no diamond on {esc(', '.join(ablation.without_paper))}: the paper’s numbers are over all its datasets"


def _counts(ablation: Ablation) -> str:
    return ", ".join(f"{esc(domain)} {n}" for domain, n in ablation.datasets.items())


def _runtime(content: Content, figures: Sequence[str]) -> str:
    charts = ""
    if content.speeds:
        text = f"{_setting(content.speeds[0])} · as Figure 5a"
        charts += _chart("runtime", "Seconds for a million steps", text, figures, css="wide")
    if content.interval_speeds:
        title, text = "By update interval of alpha", f"{_setting(content.interval_speeds[0])} · as Figure 5b"
        charts += _chart("intervals", title, text, figures, "runtime_by_interval", "wide")
    return charts and f'<div class="charts">{charts}</div>'


def _setting(speed: Speed) -> str:
    text = f"{esc(speed.dataset)} on {esc(speed.device)}, {speed.company}; compilation left out"
    if speed.together > 1:
        text += ". Other groups may have shared the device: what an algorithm costs, only runs that train alone say"
    return text


def _runs(content: Content) -> str:
    return (
        f'<p class="note">{RUNS_NOTE}</p>'
        '<div class="tools"><input id="search" type="search" placeholder="Search runs" aria-label="Search runs">'
        '<button id="clear" hidden>Show all runs</button><span id="count" aria-live="polite"></span></div>'
        '<div class="scroll"><table id="runtable"><thead></thead><tbody></tbody></table></div>'
        '<div class="pages"><button id="previous">Previous</button><span id="where"></span>'
        '<button id="next">Next</button></div>'
    )


def _method() -> str:
    return f'<section id="method" class="quiet"><h2>How these numbers are made</h2><p>{METHOD_NOTE}</p></section>'
