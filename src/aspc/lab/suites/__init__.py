"""Suites: declared sets of runs, for every table and figure of the paper and for this project's own experiments.

Use `register` to add your own suites (docs/experiments.md).
"""

# The paper's suites are registered first, because `aspc bench --list` shows suites in order of registration.
from aspc.lab.suites import paper, project
from aspc.lab.suites.declaration import Block, Suite, Variant, expand, get, names, register
from aspc.lab.suites.paper import ASPC, TD3_BC

__all__ = ["ASPC", "TD3_BC", "Block", "Suite", "Variant", "expand", "get", "names", "paper", "project", "register"]
