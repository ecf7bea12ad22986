"""Checks of the paper's claims against the given results.

A claim consists of checks. A check is a number with a 95 % interval and a claimed range: it *holds* if the whole
interval is inside the range, *does not hold* if the whole interval is outside, and is undecided (*not enough data*)
otherwise. Intervals account for variation between datasets and between seeds. With one or two datasets, they account
only for seeds, and the check and the verdict name these datasets.

If the runs for a check are missing, the claim has a data gap instead. A claim does not hold if any of its checks does
not hold. It holds if all checks hold and there are no gaps. A claim about the benchmark's average or profile stays
undecided while a domain is missing. A claim about an effect that the paper shows in all domains (for example, that of
the robust critic) is judged on the domains that have runs, and its verdict names them.

The same checks are applied to the numbers printed in the paper, which are treated as exact. A claim that fails on them
gets a note.
"""
