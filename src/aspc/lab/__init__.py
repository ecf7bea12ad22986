"""The laboratory: suites of runs that reproduce the paper's tables and figures, their training, results and report."""
