"""The laboratory: suites of runs for every table and figure of the paper, their training, results and report."""
