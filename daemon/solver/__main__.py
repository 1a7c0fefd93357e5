"""The learner as a program of its own.

    python -m daemon.solver JOB.json --out DIR      one job (job.py)
    torchrun --nproc-per-node N -m daemon.solver JOB.json --out DIR     in N processes (follower.py)
    python -m daemon.solver parity FILE             the loss against a file of cases (parity.py)
    python -m daemon.solver reward FILE             rewards of repairs, without torch (rewards.py)

Not part of `kintsugi`, which must start without torch. A job's stdout is JSON Lines: heartbeats,
one line per update, and last its outcome; everything else goes to stderr. Exit codes: 0 done, 1
failed (also when stopped: SIGTERM and SIGINT end it between two rollouts, and the same command goes
on), 2 wrong usage, a bad spec or a bad line, 3 competence gap. Errors are one sentence on stderr.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final, get_args

from daemon.solver.rewards import BadLine, compute_rewards
from daemon.solver.sampling.seals import take_keys
from daemon.solver.spec import BadSpec, read_spec
from events.algorithm import RepairForm
from events.errors import KintsugiError
from events.messages import StrictModel

if TYPE_CHECKING:
    from daemon.solver.job import Activity

DONE, FAILED, WRONG_USAGE, GAP = 0, 1, 2, 3
_EXIT: Final[Mapping[str, int]] = {"trained": DONE, "competence_gap": GAP, "failed": FAILED}

HEARTBEAT_SECONDS: Final = 2.0

Say = Callable[[Mapping[str, Any]], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own); returns its exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] == ["parity"]:
        return _run_command(lambda: parity(_parity_parser().parse_args(argv[1:])))
    if argv[:1] == ["reward"]:
        return _run_command(lambda: reward(_reward_parser().parse_args(argv[1:])))
    parsed = _job_parser().parse_args(argv)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _run_command(lambda: spread(parsed))
    return _run_command(lambda: job(parsed))


def _run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit code; an error becomes a sentence on stderr."""
    try:
        return command()
    except (BadSpec, BadLine) as error:
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


def spread(options: Namespace) -> int:
    """Run a job in the processes that torchrun started; return the first one's exit code."""
    from daemon.solver import follower, parallel

    with parallel.join_group() as number:
        if number:
            take_keys(os.environ)  # nothing is theirs to open
            # They stop when the first one does, which may have rollouts to finish.
            with redirect_stdout(sys.stderr), _stop_signals():
                return follower.follow()
        code = _run_command(lambda: job(options))
        with suppress(parallel.ProcessLoss):
            parallel.broadcast(parallel.End(code))
        return code


def job(options: Namespace) -> int:
    """Run a job; its outcome is the last line of stdout."""
    spec, keys = read_spec(options.spec), take_keys(os.environ)
    say = _lines(sys.stdout)
    # Output of libraries must not mix with the job's own lines.
    with redirect_stdout(sys.stderr), _stop_signals() as stopping, _heartbeats(say) as watch:
        # torch takes seconds to import, and the heartbeat should not wait for it.
        from daemon.solver.job import Activity

        if spec.teaches == "router":
            from daemon.solver.routing.job import run
        elif spec.teaches == "user":
            from daemon.solver.users.job import run
        else:
            from daemon.solver.job import run

        activity = Activity()
        watch(activity)
        outcome = run(
            spec, options.out, lambda p: say(_line(p)),
            activity=activity, stopping=stopping, keys=keys,
        )  # fmt: skip
    if outcome.outcome != "trained":
        _complain(outcome.reason)
    say(outcome.model_dump(mode="json"))
    return _EXIT[outcome.outcome]


def _line(value: StrictModel) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_none=True)


def _lines(stream: IO[str]) -> Say:
    """Return a function that writes one JSON object per line, from any thread."""
    lock = threading.Lock()

    def say(value: Mapping[str, Any]) -> None:
        with lock:
            stream.write(json.dumps(value) + "\n")
            stream.flush()

    return say


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Inside the block, SIGTERM and SIGINT only request a stop; yields whether one was
    requested."""
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
def _heartbeats(say: Say) -> Iterator[Callable[["Activity"], None]]:
    """Inside the block, a thread reports the activity every few seconds; yields how to set it."""
    over, began = threading.Event(), time.monotonic()
    watched: list[Activity] = []

    def beat() -> None:
        status: dict[str, Any] = {"phase": "starting"}
        while True:
            if watched:
                now = watched[0]
                status = {"phase": now.phase, "rollouts": now.rollouts, "steps": now.steps}
            say({"heartbeat": {"seconds": round(time.monotonic() - began, 1), **status}})
            if over.wait(HEARTBEAT_SECONDS):
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield watched.append
    finally:
        over.set()
        thread.join()


def parity(options: Namespace) -> int:
    """Print how far the loss is from a fixture; return 1 if an error exceeds the tolerance."""
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


def reward(options: Namespace) -> int:
    """Print the rewards of a file of completions."""
    rewards = compute_rewards(options.file, options.form)
    print(json.dumps({"n": len(rewards), "rewards": rewards, "form": options.form}))
    return DONE


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


def _reward_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m daemon.solver reward",
        description="Compute the rewards of repairs, as training gives them.",
    )
    parser.add_argument(
        "file", type=Path, help='JSON Lines, {"completion": "...", "gold": "..."} each'
    )
    parser.add_argument(
        "--form",
        choices=get_args(RepairForm),
        default="paper",
        help="of Structured Reflection's paper (default), or of its released program",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
