"""The results of many runs in an open format: the Parquet tables `runs`, `curves` and `entries` (docs/report.md).

RESULTS/
  runs/NAME.parquet  curves/NAME.parquet  entries/NAME.parquet     parts, written while a suite runs
  runs.parquet       curves.parquet       entries.parquet          the merged form

Both layouts can be read together. Nothing in a file is executed: all values are numbers or text.
"""

from aspc.lab.results.folders import find_result_folders, find_run_tables, write_entries, write_part
from aspc.lab.results.parquet import read_table
from aspc.lab.results.schema import CURVES, ENTRIES, RUNS, TABLES
from aspc.lab.results.tables import Results, abbreviate_list, export_csv, merge, parse_json, read

__all__ = [
    "CURVES",
    "ENTRIES",
    "RUNS",
    "TABLES",
    "Results",
    "abbreviate_list",
    "export_csv",
    "find_result_folders",
    "find_run_tables",
    "merge",
    "parse_json",
    "read",
    "read_table",
    "write_entries",
    "write_part",
]
