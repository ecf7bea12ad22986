"""Write README's comparison with other libraries and ASPC's training times: python benchmarks/readme_table.py

The speeds come from the files in benchmarks/results.
"""

from __future__ import annotations

import json
from pathlib import Path

from aspc.io import write_atomically

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- comparison: written by benchmarks/readme_table.py -->\n\n", "\n<!-- end of comparison -->"

SPEED = "[TD3+BC steps/s](benchmarks/README.md#next-to-another-library) on an H200: 1 run, and 64 runs combined"
HEAD = ("", "strengths", "your own data", "evaluation from logs", SPEED)
LIBRARIES = {
    "aspc": ("aspc (JAX)", "learned alpha", "CSV, Parquet, HDF5 …", "verdict"),
    "CORL": (
        "[CORL](https://github.com/tinkoff-ai/CORL) (PyTorch)",
        *("single-file implementations", "no", "no"),
    ),
    "d3rlpy": (
        "[d3rlpy](https://github.com/takuseno/d3rlpy) (PyTorch)",
        *("many algorithms, online RL, images", "NumPy", "FQE"),
    ),
    "Unifloral": (
        "[Unifloral](https://github.com/EmptyJackson/unifloral) (JAX)",
        *("single-file implementations, model-based RL", "no", "no"),
    ),
    "OGBench": (
        "[OGBench](https://github.com/seohongpark/ogbench) (JAX)",
        *("goal-conditioned RL, images", "no", "no"),
    ),
}
NOT_MEASURED = "–"


def format_time(runs: int, steps_per_second: float) -> str:
    """Return the time that parallel runs need for a million steps each, as text."""
    minutes = runs * 1e6 / steps_per_second / 60
    return f"{minutes:.1f} minutes" if minutes < 60 else f"{minutes / 60:,.1f} hours"


def make_table(results: Path = RESULTS) -> str:
    """Return a Markdown table of the libraries, with the speed of their TD3+BC on one device."""
    path = results / "side_by_side_h200.json"
    measured = json.loads(path.read_text())["side_by_side"] if path.exists() else {}
    rows = []
    for name, facts in LIBRARIES.items():
        speed = " and ".join(f"{rate:,.0f}" for rate in measured.get(name, {}).values()) or NOT_MEASURED
        rows.append((*facts, speed))
    return "".join(f"| {' | '.join(row)} |\n" for row in (HEAD, ["---"] * len(HEAD), *rows))


def make_sentence(results: Path = RESULTS) -> str:
    """Return the time that a million steps of ASPC take, on two CPU cores and per device and number of runs."""
    cores = json.loads((results / "costs_2_cores.json").read_text())["speeds"]  # measured on a machine with two cores
    alone = [f"{format_time(r['seeds'], r['steps_per_second'])} on two CPU cores" for r in cores if r["algo"] == "aspc"]
    together = ""
    for path in sorted(results.glob("*.json")):
        rates = json.loads(path.read_text()).get("rates", [])  # written by accelerator.py
        for runs, rate in sorted((r["seeds"], r["steps_per_second"]) for r in rates):
            if runs == 1:
                alone.append(f"{format_time(runs, rate)} on an {rates[0]['device'].removeprefix('gpu: NVIDIA ')}")
            elif runs == max(r["seeds"] for r in rates):
                together = f", where {runs} runs together take {format_time(runs, rate)}"
    return f"A million steps of ASPC take {' or '.join(alone)}{together}.\n"


def replace_table(text: str, new: str) -> str:
    """Return the text of README.md with new text between the markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{new}{END}{after}"


def make_text(results: Path = RESULTS) -> str:
    """Return the text between README's markers."""
    return f"{make_table(results)}\n{make_sentence(results)}"


if __name__ == "__main__":
    readme = REPOSITORY / "README.md"
    write_atomically(readme, replace_table(readme.read_text(), make_text()).encode())
