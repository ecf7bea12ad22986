"""Suites: every table and figure of the paper, and this project's own, as declared sets of runs.

`register` adds your own (docs/experiments.md).
"""

# The paper's suites are registered first: `aspc bench --list` shows them in this order.
from aspc.lab.suites import paper, project
from aspc.lab.suites.declaration import Block, Suite, Variant, expand, get, names, register
from aspc.lab.suites.paper import ASPC, TD3_BC

__all__ = ["ASPC", "TD3_BC", "Block", "Suite", "Variant", "expand", "get", "names", "paper", "project", "register"]
