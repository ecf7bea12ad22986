"""The `aspc` command. It imports only the module of the called command, so that `aspc --help` is fast."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import import_module

from aspc import __version__
from aspc.errors import DISK_ERRORS, AspcError, unknown_name
from aspc.interrupts import DeferredInterrupts, Terminated

# Name → (module with `main(argv)`, description).
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("aspc.cli.train", "Train a policy on a dataset and write a run folder."),
    "eval": ("aspc.cli.evaluate", "Re-evaluate a run's policies over many episodes."),
    "data": ("aspc.cli.data", "List, inspect, download, generate, convert and collect datasets."),
    "assess": ("aspc.cli.assess", "Compare policies with the controller that produced the logs."),
    "fqe": ("aspc.cli.fqe", "Rank policies by fitted-Q evaluation, without a simulator."),
    "inspect": ("aspc.cli.inspect", "Write a one-page trust report about a policy."),
    "export": ("aspc.cli.export", "Export a policy as ONNX, StableHLO or plain NumPy."),
    "finetune": ("aspc.cli.finetune", "Continue training online in the run's environment."),
    "verify-run": ("aspc.cli.verify_run", "Check a run's files and checkpoints against their checksums."),
    "bench": ("aspc.lab.commands.bench", "Reproduce a table or figure of the paper, on one machine or a cluster."),
    "results": ("aspc.lab.commands.results", "Summarize, merge and export result folders."),
    "report": (
        "aspc.lab.commands.report",
        "Render results as one HTML page: tables, curves, checks of the paper's claims.",
    ),
    "verify": ("aspc.lab.commands.verify", "Compare algorithms with reference traces in float64."),
    "speed": ("aspc.lab.commands.speed", "Measure training steps per second on this machine."),
}

USAGE = """usage: aspc COMMAND [OPTIONS]     (see aspc COMMAND --help)

Offline reinforcement learning: train policies from logged datasets without per-dataset tuning.

commands:
{commands}

first steps:
  aspc train --steps 16000 --alpha 10           train on the built-in maze, in minutes
  aspc data info mylogs.csv                     show what is in your data
  aspc train mylogs.csv --steps 200000          train on your own logs, without a simulator
  aspc train hopper-medium-v2 --seeds 0 1 2 3   train on a D4RL dataset, four seeds at once
"""


def usage() -> str:
    """Return the text of `aspc --help`."""
    return USAGE.format(commands="\n".join(f"  {name:11s} {text}" for name, (_, text) in COMMANDS.items()))


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code; 2 stands for an error that the user can fix."""
    if argv is not None:
        return run_reporting_errors(lambda: _run_command(argv))
    code = run_reporting_errors(lambda: _run_command(sys.argv[1:]))
    # If a KeyboardInterrupt propagates out of code that `exec` or `eval` compiled from text, even if it is caught
    # later, CPython ends the process with SIGINT and ignores the exit code. Dataclasses and namedtuples contain such
    # code. Any further call of `exec` clears this state.
    exec("")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback if Ctrl-C arrives while Python shuts down
    return code


def _run_command(argv: list[str]) -> int | None:
    if not argv or argv[0] in ("-h", "--help", "--help-all", "help"):
        print(usage())
        return 0
    if argv[0] in ("--version", "-V"):
        print(f"aspc {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        raise unknown_name("command", argv[0], COMMANDS)
    module, _ = COMMANDS[argv[0]]
    run: Callable[[list[str]], int | None] = import_module(module).main
    return run(argv[1:])


def run_reporting_errors(work: Callable[[], int | None]) -> int:
    """Run `work` and return its exit code. Report interrupts, and errors that the user can fix, on stderr."""
    code = None
    try:
        with DeferredInterrupts():
            code = _run_reporting_errors(work)
    except KeyboardInterrupt as interrupt:
        is_terminated = isinstance(interrupt, Terminated)
        interrupted = 128 + (signal.SIGTERM if is_terminated else signal.SIGINT)
        if code != interrupted:  # otherwise the command has already reported the signal
            print(f"aspc: {'terminated' if is_terminated else 'interrupted'}.", file=sys.stderr)
        return interrupted
    return code


def _run_reporting_errors(work: Callable[[], int | None]) -> int:
    try:
        return work() or 0
    except AspcError as error:
        print(f"aspc: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of the output (head, less) has exited
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        path = f"{error.filename}: " if error.filename else ""
        print(f"aspc: {path}{error.strerror}. Check the path and the free space, then try again.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
