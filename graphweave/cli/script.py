"""`graphweave explain SCRIPT` and `graphweave profile SCRIPT`: run a user's program, and write what became of it."""

from __future__ import annotations

import argparse
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from graphweave.cli.arguments import positive_int
from graphweave.core.errors import DataError
from graphweave.frontends.dynamo.explain_run import ExplainedRun

_NOTHING = 2
"""Status if the program ended well, but called no compiled function."""
_FORMS = ".html", ".json", ".txt"
_ADVICE = "Give its model to graphweave.compile, or to torch.compile with backend='graphweave'."
_FAILED, _INTERRUPTED = 1, 128 + signal.SIGINT


def add_arguments(sub: argparse.ArgumentParser, ending: str, *, measured: bool) -> None:
    """The arguments of a command that runs a program. Its file is called SCRIPT_ENDING.html; with `measured`, steps are
    timed."""
    sub.set_defaults(run=run, ending=ending, measured=measured)
    sub.add_argument(
        "-o", "--out", type=Path, metavar="FILE",
        help=f"where to write, as .html, .json or .txt (default: SCRIPT_{ending}.html in the current folder)",
    )  # fmt: skip
    sub.add_argument("--text", action="store_true", help="print text instead of writing a file")
    sub.add_argument(
        "--steps", type=positive_int, metavar="N",
        help="end the program after N training steps (calls of its compiled function, if no optimizer makes steps)",
    )  # fmt: skip
    sub.add_argument("script", type=Path, metavar="SCRIPT", help="the Python program; its own arguments follow")
    own = sub.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
    own.required = False  # else an error about a missing SCRIPT names them, too


def run(args: argparse.Namespace) -> int:
    """Run the program to its end, or for the steps that were asked for, and write what was compiled in it. Its errors
    and its exit status stay its own."""
    script: Path = args.script
    if not script.is_file():
        raise DataError(f"{script}: expected a Python program, found no such file. Check the path.")
    out: Path = args.out or Path(f"{script.stem}_{args.ending}.html")
    if out.suffix not in _FORMS or not out.parent.is_dir():
        raise DataError(
            f"--out {out}: expected a file in a folder that exists, ending in {', '.join(_FORMS)}. Pass one."
        )
    explained = ExplainedRun(script.name, args.steps, measured=args.measured)
    error: BaseException | None = None
    try:
        with explained.running():
            _run_script(script, args.arguments)
    except BaseException as raised:  # also SystemExit and KeyboardInterrupt: the program's own end
        error = raised
    status = _status(error, str(script))
    if not explained.compiled:
        sys.stderr.write(f"graphweave: {script} called no compiled function. {_ADVICE}\n")
        return status or _NOTHING
    explanation = explained.explanation()
    if args.text:
        sys.stdout.write(f"{explanation}\n")
    else:
        explanation.save(out)
        count = explained.num_steps
        sys.stderr.write(f"graphweave: wrote {out}, after {count} step{'s' * (count != 1)}\n")
    return status


def _run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run a program as Python itself would: as the main module, with its arguments, its folder first on the path."""
    before = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def _status(error: BaseException | None, script: str) -> int:
    """The status with which Python would end after `error`, which is shown as Python would show it."""
    match error:
        case None | SystemExit(code=None):
            return 0
        case SystemExit(code=int(code)):
            return code
        case SystemExit(code=code):
            sys.stderr.write(f"{code}\n")
            return _FAILED
    trace = _from_script(error.__traceback__, script)
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED


def _from_script(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The part of a traceback that begins in the script; all of it if the script has no part in it."""
    at = trace
    while at is not None and at.tb_frame.f_code.co_filename != script:
        at = at.tb_next
    return at or trace
