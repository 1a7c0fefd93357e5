"""The learner as a program of its own.

    python -m daemon.solver JOB.json --out DIR      one job (job.py)
    torchrun --nproc-per-node N -m daemon.solver JOB.json --out DIR     in N processes (follower.py)
    python -m daemon.solver parity FILE             the loss against a file of cases (parity.py)
    python -m daemon.solver reward FILE             rewards of repairs, without torch

It is a program apart from `kintsugi`, because `kintsugi` must start without torch. A job's stdout
is JSON Lines alone: heartbeats, a line per update, and in any case the job's outcome as the last
line. Exit codes: 0 done, 1 failed (also when stopped: SIGTERM and SIGINT end it between two
rollouts, and the same command goes on), 2 wrong usage, a bad spec or a bad line, 3 competence gap.
Errors are one sentence on stderr, after a traceback if unexpected.
"""

import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from daemon.solver.kinds import find_kind
from daemon.solver.methods import COMMANDS
from daemon.solver.sampling.seals import take_keys
from daemon.solver.spec import BadInput, BadSpec, read_spec
from daemon.solver.telemetry.outcome import Activity, Outcome, make_failure
from events.errors import KintsugiError
from events.messages import StrictModel

DONE, FAILED, WRONG_USAGE, GAP = 0, 1, 2, 3
_EXIT: Final[Mapping[str, int]] = {"trained": DONE, "competence_gap": GAP, "failed": FAILED}

HEARTBEAT_SECONDS: Final = 2.0

Say = Callable[[Mapping[str, Any]], None]
Run = Callable[[Namespace, Say, Activity, Callable[[], bool]], Outcome]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] == ["parity"]:
        return _run_command(lambda: parity(_parity_parser().parse_args(argv[1:])))
    if argv and (command := COMMANDS.get(argv[0])) is not None:
        return _run_command(lambda: command(argv[1:]))
    parsed = _job_parser().parse_args(argv)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return _run_command(lambda: job(parsed, _run_job))
    if int(os.environ["RANK"]):
        return _run_command(follow)
    return _run_command(lambda: job(parsed, _lead))


def _run_command(command: Callable[[], int]) -> int:
    try:
        return command()
    except BadInput as error:
        _complain(error)
        return WRONG_USAGE
    except KintsugiError as error:
        _complain(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}")
    return FAILED


def _complain(what: object) -> None:
    print(f"daemon.solver: {what}", file=sys.stderr)


def follow() -> int:
    """Take part in the job that torchrun's first process leads; return this process's exit code."""
    from daemon.solver import follower, parallel

    take_keys(os.environ)  # a process that only takes part opens nothing
    # They do not stop at a signal but when the first process stops, after its rollouts.
    with redirect_stdout(sys.stderr), _stop_signals(), parallel.join_group():
        return follower.follow()


def job(options: Namespace, run: Run) -> int:
    """Run a job; return its exit code. The last line of stdout is the job's outcome in any case."""
    say, activity = _lines(sys.stdout), Activity()
    # Output of libraries must not mix with the job's own lines.
    with redirect_stdout(sys.stderr), _stop_signals() as stopping:
        try:
            outcome = run(options, say, activity, stopping)
            code = _EXIT[outcome.outcome]
        # The process ends here with any error: a bug, too little memory, a library that calls
        # sys.exit.
        except BaseException as error:
            outcome = make_failure(error, activity)
            code = WRONG_USAGE if isinstance(error, BadSpec) else FAILED
            if not isinstance(error, KintsugiError | OSError):
                traceback.print_exc()
        if outcome.outcome != "trained":
            _complain(outcome.reason)
        say(outcome.model_dump(mode="json"))
    return code


def _lead(
    options: Namespace, say: Say, activity: Activity, stopping: Callable[[], bool]
) -> Outcome:
    from daemon.solver import parallel

    with parallel.join_group():
        code = FAILED
        try:
            outcome = _run_job(options, say, activity, stopping)
            code = _EXIT[outcome.outcome]
            return outcome
        finally:
            with suppress(parallel.ProcessLoss):
                parallel.broadcast(parallel.End(code))


def _run_job(
    options: Namespace, say: Say, activity: Activity, stopping: Callable[[], bool]
) -> Outcome:
    spec, keys = read_spec(options.spec), take_keys(os.environ)
    with _heartbeats(say, activity):
        # torch takes seconds to import, and the heartbeat should not wait for it.
        run = find_kind(spec).load_run()
        return run(
            spec, options.out, lambda p: say(_line(p)),
            activity=activity, stopping=stopping, keys=keys,
        )  # fmt: skip


def _line(value: StrictModel) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_none=True)


def _lines(stream: IO[str]) -> Say:
    lock = threading.Lock()

    def say(value: Mapping[str, Any]) -> None:
        with lock:
            stream.write(json.dumps(value, allow_nan=False) + "\n")
            stream.flush()

    return say


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Inside the block, let SIGTERM and SIGINT only request a stop. Yield a function that returns
    whether a stop was requested."""
    wished = threading.Event()

    def wish(_signal: int, _frame: FrameType | None) -> None:
        wished.set()

    before = {number: signal.signal(number, wish) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wished.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _heartbeats(say: Say, activity: Activity) -> Iterator[None]:
    over, began = threading.Event(), time.monotonic()

    def beat() -> None:
        while True:
            status = {name: getattr(activity, name) for name in ("phase", "rollouts", "steps")}
            say({"heartbeat": {"seconds": round(time.monotonic() - began, 1), **status}})
            if over.wait(HEARTBEAT_SECONDS):
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def parity(options: Namespace) -> int:
    """Print the loss's distance from a fixture; return 1 if it exceeds the tolerance."""
    from daemon.solver.parity import compare, read

    report = compare(read(options.file))
    document = {
        "cases": report.cases,
        "max_loss_error": _number(report.max_loss_error),
        "max_grad_error": _number(report.max_grad_error),
        "worst": report.worst,
    }
    print(json.dumps(document))
    return DONE if report.is_within_tolerance else FAILED


def _number(value: float) -> float | None:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def _job_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m daemon.solver",
        description="Train an adapter, or go on with it.",
        epilog="`python -m daemon.solver parity FILE` compares the loss with a file of cases, "
        "`python -m daemon.solver reward FILE` computes rewards of repairs.",
    )
    parser.add_argument("spec", type=Path, metavar="JOB.json", help="what to train, and on what")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of this job alone")
    return parser


def _parity_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m daemon.solver parity",
        description="Compare the loss and its gradient with those of a file of cases.",
    )
    parser.add_argument("file", type=Path, help="JSON with `inputs` and `cases`")
    return parser


if __name__ == "__main__":
    sys.exit(main())
