"""Suites of runs: every table and figure of the paper, declared, run and collected."""
