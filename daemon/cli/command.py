"""The base of all commands. A command is a function `(cli, ...) -> exit code or None`. `command`
registers it with typer under its own parameters and the common ones (such as --home), which may
stand before or after its name."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from daemon.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daemon.config.settings import Settings
    from daemon.core.app import App

F = TypeVar("F", bound=Callable[..., int | None])

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
PARTLY: Final = 3
UNAVAILABLE: Final = 4

_PANEL: Final = "Everywhere"

Home = Annotated[
    str | None,
    typer.Option("--home", metavar="FOLDER", help="Use this home.", rich_help_panel=_PANEL),
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=_PANEL)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No hints and no progress.", rich_help_panel=_PANEL)
]
Debug = Annotated[
    bool, typer.Option("--debug", help="A traceback with an error.", rich_help_panel=_PANEL)
]

OnlyAgent = Annotated[str | None, typer.Option("--alias", help="Only one agent's.")]
AtMost = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="At most so many; default: all.")
]

_COMMON: Final[dict[str, tuple[Any, Any]]] = {
    "home": (Home, None),
    "json": (Json, False),
    "quiet": (Quiet, False),
    "debug": (Debug, False),
}


class ReaderQuit(Exception):
    """The process that reads our output has closed the pipe."""


@dataclass
class Cli:
    """The settings, the application and the output of a command."""

    home: str | None
    out: Output

    @property
    def flags(self) -> dict[str, Any]:
        """The settings that the command line's flags give."""
        return {"home": self.home}

    @cached_property
    def settings(self) -> "Settings":
        """All settings, with those of the flags."""
        from daemon.config.settings import load

        return load(**self.flags)

    @contextmanager
    def app(self) -> "Iterator[App]":
        """Open the application for a `with` block."""
        from daemon.core.app import App

        with App(self.settings) as app:
            yield app


def command(group: typer.Typer, name: str | None = None) -> Callable[[F], F]:
    """Return a decorator that registers `(cli, ...) -> exit code` as a command of `group`."""

    def register(function: F) -> F:
        group.command(name)(_with_common_options(function))
        return function

    return register


def default_command(group: typer.Typer) -> Callable[[F], F]:
    """Return a decorator that registers a noun's default command; its options follow the noun."""

    def register(function: F) -> F:
        group.callback(invoke_without_command=True)(_with_common_options(function, _is_default))
        return function

    return register


def _is_default(context: typer.Context, options: Mapping[str, Any]) -> bool:
    """Return whether a noun stands alone. Raise BadParameter for options before a command."""
    if context.invoked_subcommand is None:
        return True
    misplaced = [name for name, value in options.items() if value is not None]
    if misplaced:
        raise typer.BadParameter(
            f"it stands before {context.invoked_subcommand}; put it behind",
            param_hint=f"--{misplaced[0]}",
        )
    return False


def check_name(option: str, value: str) -> None:
    """Raise BadParameter for the name of an agent or a model that no event can hold."""
    if not 0 < len(value) <= 128:
        raise typer.BadParameter(
            f"{value[:20]!r} has {len(value)} characters; 1 to 128 can be stored",
            param_hint=option,
        )


def noun(name: str, help: str) -> typer.Typer:
    """Return a group of commands on one noun, such as `kintsugi cycle`."""
    return typer.Typer(name=name, help=help, add_completion=False)


def _with_common_options(
    function: Callable[..., int | None],
    is_wanted: Callable[[typer.Context, Mapping[str, Any]], bool] = lambda context, options: True,
) -> Callable[..., int | None]:
    own = list(inspect.signature(function).parameters.values())[1:]

    @wraps(function)
    def run(context: typer.Context, **options: Any) -> int | None:
        common = {option: options.pop(option) for option in _COMMON}
        if not is_wanted(context, options):
            return None
        # Options before the command's name were parsed by the noun or by the root (root.py).
        before = _read_parents(context)
        try:
            return function(_cli(common, before), **options)
        except BrokenPipeError as error:
            # typer would exit with 1, but a reader like `head` that closes early is no failure.
            raise ReaderQuit from error

    common = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for option, (kind, default) in _COMMON.items()
    ]
    taken = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *taken, *common]
    # typer reads both attributes to learn a command's parameters.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _read_parents(context: typer.Context) -> dict[str, Any]:
    """Return the common options before the command's name; the nearest of equal ones counts."""
    before: dict[str, Any] = {}
    parent = context.parent
    while parent is not None:
        before |= {
            name: value
            for name, value in parent.params.items()
            if name in _COMMON and value and not before.get(name)
        }
        parent = parent.parent
    return before


def _cli(common: dict[str, Any], before: dict[str, Any]) -> Cli:
    return Cli(
        home=common["home"] if common["home"] is not None else before.get("home"),
        out=Output(
            json=common["json"] or bool(before.get("json")),
            quiet=common["quiet"] or bool(before.get("quiet")),
        ),
    )
