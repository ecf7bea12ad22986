"""The `aspc` command: find the subcommand and load only what it needs, so that help appears at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import import_module

from aspc.interrupts import DeferredInterrupts, Terminated

# name → (module, function, what it does)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "train": ("aspc.cli.train", "main", "Train a policy on a dataset; leaves a run folder behind."),
    "eval": ("aspc.cli.evaluate", "main", "Roll the policies of a run out again, in many episodes."),
    "data": ("aspc.cli.data", "main", "List, inspect, download, make, convert and collect datasets."),
    "bench": ("aspc.lab.commands.bench", "main", "Run a table or figure of the paper, here or on a cluster."),
    "results": ("aspc.lab.commands.results", "main", "Merge folders of results, export them as CSV."),
    "report": ("aspc.lab.commands.report", "main", "Make one page to read from results: tables, curves, claims."),
    "fqe": ("aspc.cli.fqe", "main", "Which policy is best? Fitted-Q evaluation, with no simulator."),
    "inspect": ("aspc.cli.inspect", "main", "May I trust this policy? One page about a run."),
    "export": ("aspc.cli.export", "main", "Write a policy as ONNX, StableHLO or plain NumPy."),
    "finetune": ("aspc.cli.finetune", "main", "Go on from a run in its environment: offline to online."),
    "verify-run": ("aspc.cli.verify_run", "main", "Check a run's files and checkpoints against their checksums."),
    "verify": (
        "aspc.lab.commands.verify",
        "main",
        "Replay reference traces in float64: is this the authors' algorithm?",
    ),
    "speed": ("aspc.lab.commands.speed", "main", "Measure steps per second here, and the share of the limit."),
}

USAGE = """usage: aspc COMMAND [OPTIONS]     (aspc COMMAND --help says more)

Offline reinforcement learning with no per-dataset tuning: a logged dataset in, a policy out.

commands:
{commands}

first steps:
  aspc train --steps 16000 --alpha 10           a policy for the embedded maze, in minutes
  aspc data info mylogs.csv                     what is in my data?
  aspc train mylogs.csv --steps 200000          a policy from my own logs, no simulator needed
  aspc train hopper-medium-v2 --seeds 0 1 2 3   a D4RL benchmark, four seeds at once
"""


def usage() -> str:
    return USAGE.format(commands="\n".join(f"  {name:10s} {what}" for name, (_, _, what) in COMMANDS.items()))


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the exit code: 0, 2 for mistakes that the user can fix, or the command's own."""
    if argv is not None:
        return exit_code(lambda: _run_command(argv))
    code = exit_code(lambda: _run_command(sys.argv[1:]))
    # CPython ends a process by SIGINT, whatever its exit code, once an interrupt has left code that `exec` or `eval`
    # compiled from text (dataclasses and namedtuples are made so), even if it was handled. The next `exec` resets that.
    exec("")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while Python shuts down Ctrl-C ends it, without a traceback
    return code


def _run_command(argv: list[str]) -> int | None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] in ("--version", "-V"):
        from importlib.metadata import version

        print(f"aspc {version('aspc')}")
        return 0
    if argv[0] not in COMMANDS:
        from aspc.errors import unknown_name

        raise unknown_name("command", argv[0], COMMANDS)
    module, function, _ = COMMANDS[argv[0]]
    return getattr(import_module(module), function)(argv[1:])


def exit_code(work: Callable[[], int | None]) -> int:
    """Do some work; mistakes that the user can fix, and interrupts, become a sentence on stderr and an exit code."""
    code = None
    try:
        with DeferredInterrupts():
            code = _exit_code(work)
    except KeyboardInterrupt as interrupt:
        is_terminated = isinstance(interrupt, Terminated)
        interrupted = 128 + (signal.SIGTERM if is_terminated else signal.SIGINT)
        if code != interrupted:  # otherwise the command has obeyed the signal and reported it already
            print(f"aspc: {'terminated' if is_terminated else 'interrupted'}.", file=sys.stderr)
        return interrupted
    return code


def _exit_code(work: Callable[[], int | None]) -> int:
    from aspc.errors import DISK_ERRORS, AspcError

    try:
        return work() or 0
    except AspcError as error:
        print(f"aspc: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        where = f"{error.filename}: " if error.filename else ""
        remedy = "check the path, make room or choose another place, then try again"
        print(f"aspc: {where}{error.strerror}; {remedy}.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
