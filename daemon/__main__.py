"""The program `kintsugi`, and the one boundary where an error becomes a sentence and an exit code.

0   done, also when whoever read our output had enough
1   failed
2   wrong usage: a flag, an argument or a setting, also one that an endpoint refuses
3   done in part: something was rejected and is named
4   unavailable: log, database or endpoint cannot be used now, or the fold has halted
130 interrupted
"""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from traceback import print_exc

import typer
from pydantic_core import ValidationError

from daemon.cli.command import DONE, FAILED, UNAVAILABLE, USAGE, ReaderQuit
from daemon.cli.output import plain

INTERRUPTED = 130

_UsageError = typer.BadParameter.__bases__[0]
"""Base of what typer raises for wrong usage; it exports only some of the subclasses."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own); returns its exit code."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in command_line
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that cannot show a character gets another one, not an error.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _run(command_line)
        sys.stdout.flush()
    except (ReaderQuit, BrokenPipeError):
        _discard_stdout()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if debug:
            print_exc()
        return _report(error, debug)
    return code


def _run(arguments: list[str]) -> int:
    from daemon.cli.root import app

    code = app(args=arguments, prog_name="kintsugi", standalone_mode=False)
    return code if isinstance(code, int) else DONE


def _report(error: Exception, debug: bool) -> int:
    """Say what went wrong in one sentence; returns the exit code of its class."""
    from events.errors import KintsugiError

    if isinstance(error, _UsageError):
        _say(f"{_usage(error)}; see {_help_of(error)}")
        return USAGE
    if isinstance(error, typer.Abort):
        _say("aborted")
        return FAILED
    if isinstance(error, KintsugiError):
        _say(str(error))
        return exit_code(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}; check disk space and permissions")
        return FAILED
    # Not ours: a bug. Never a traceback unasked, and never silent.
    again = "please report it" if debug else "run it again with --debug and report what it prints"
    _say(f"{type(error).__name__}: {error}; {again}")
    return FAILED


def exit_code(error: Exception) -> int:
    """Return the exit code of an error of ours."""
    from daemon.config.settings import ConfigurationError
    from events.errors import LogError, SchemaAhead, WrongUsage

    if isinstance(error, ConfigurationError | WrongUsage):
        return USAGE
    if isinstance(error, LogError | SchemaAhead):
        return UNAVAILABLE
    # SQLAlchemy takes long to import, and is there already where one of these was raised.
    from consumers.database import DatabaseError
    from consumers.runner import FoldVersionMismatch, PositionGap

    if isinstance(error, DatabaseError | FoldVersionMismatch | PositionGap):
        return UNAVAILABLE
    from daemon.jobs.runner import RunnerUnavailable
    from daemon.serving.fleet import NoReplica
    from daemon.serving.replica import ReplicaDown
    from daemon.serving.staging import ReplicaAway
    from envs.endpoint import EndpointRefusal, EndpointUnavailable

    away = EndpointUnavailable | NoReplica | ReplicaAway | ReplicaDown | RunnerUnavailable
    if isinstance(error, away):
        return UNAVAILABLE
    return USAGE if isinstance(error, EndpointRefusal) else FAILED


def _usage(error: Exception) -> str:
    message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    sentence = message.strip().rstrip(".")
    # typer names the option and pydantic the trouble; the offending value is in its error.
    value = (
        f" (got {str(error.__cause__.errors()[0].get('input'))[:80]!r})"
        if isinstance(error.__cause__, ValidationError)
        else ""
    )
    return sentence[:1].lower() + sentence[1:] + value


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'kintsugi'} --help"


def _say(sentence: str) -> None:
    print(f"kintsugi: {plain(' '.join(sentence.split()))}", file=sys.stderr)


def _discard_stdout() -> None:
    # What is still buffered is written when the interpreter ends, and must not complain then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
