"""The paper's claims as checks on the given results.

A claim consists of checks. A check is a number with a 95 % interval and a claimed range: it *holds* if the whole
interval is inside the range, *does not hold* if the whole interval is outside, and otherwise there is *not enough
data*. Intervals account for variation between datasets and between seeds. With one or two datasets they account only
for seeds, and the check and the verdict name these datasets.

A check without the necessary runs is a gap. A claim does not hold if any check does not hold. It holds if all checks
hold and there is no gap. A claim about the benchmark's average or profile stays undecided while a domain is missing. A
claim about an effect that the paper shows in all domains (the robust critic's, for example) is judged on the domains
that have runs, and its verdict names them.

The same checks run on the numbers that the paper prints, which count as exact. A claim that fails on them carries a
note.
"""
