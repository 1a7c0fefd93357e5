"""Find environments by name or by path.

    built-in       shop, retail, airline, telecom, bfcl, toolsandbox
    entry points   a distribution that declares `kintsugi.environments`
    paths          Python files, and folders of them, that the settings or a command name

The environments of a file are all concrete subclasses of `Environment` that the file itself
defines. To find their names, the files are imported and run with our rights, so name only files
that you trust. The function to use depends on the source of the name:

    open_environment   a name from any source: it is never taken for a path
    open_from_event    a name or path in one of our events: only a file that the settings name
    open_place         a name or path from the operator, in a setting or a command

Guarantee: a name means one environment, or an error names both. A request, an imported file or an
event runs no file that the settings do not name. Each opening reads a file anew and writes nothing
beside it. Not covered: a file that imports its neighbours; make it a distribution with an entry
point.
"""

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from envs.environment import Environment
from envs.tools import Toolset
from events.canonical import sha256
from events.errors import KintsugiError

GROUP: Final = "kintsugi.environments"
"""Group of the entry points: `name = "package.module:Class"`."""

BUILT_IN: Final = "built-in"
_CLASSES: Final = {
    "shop": "envs.shop.environment:Shop",
    "retail": "envs.retail.environment:Retail",
    "airline": "envs.airline.environment:Airline",
    "telecom": "envs.telecom.environment:Telecom",
    "bfcl": "envs.bfcl.environment:Bfcl",
    "toolsandbox": "envs.toolsandbox.environment:ToolSandbox",
}

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""Form of an environment's name, which is also the first part of its tasks' ids."""

_SHOWN: Final = 200
"""Number of characters of an unknown name that an error quotes."""

_DECLARED: Final = {
    "name": 'a name, as `name: ClassVar = "library"`',
    "toolset": "its tools, as `toolset: ClassVar = LibraryTools`",
    "capabilities": 'kinds of task, as `capabilities: ClassVar = {"lend": "lends one book"}`',
}


class UnknownEnvironment(KintsugiError):
    """No environment has this name or path."""


class EnvironmentBroken(KintsugiError):
    """An environment cannot be used: it fails to import, is incomplete, or shares its name."""


@dataclass(frozen=True, slots=True)
class EnvironmentEntry:
    """An environment that was found and can be opened."""

    name: str
    source: str
    """`built-in`, the distribution and its version, or the path of the file."""
    load: Callable[[], type[Environment]]
    """Function that returns its class. It raises EnvironmentBroken."""
    file: Path | None = None
    """File that defines it, if it was found by a path."""


@dataclass(frozen=True, slots=True)
class EntryFault:
    """A file or folder in the settings from which no environment can be opened."""

    name: str
    """Name of the environment or, if unknown, of the file."""
    source: str
    error: KintsugiError
    """The reason, with a remedy."""


def open_environment(
    name: str, *, benchmarks: Path | None = None, paths: Sequence[Path] = ()
) -> Environment:
    """Return the environment with this name, never of a path. `benchmarks`: folder of real tasks;
    `paths`: the settings' files and folders. Raise UnknownEnvironment, EnvironmentBroken."""
    if NAME.fullmatch(name) is None:
        raise UnknownEnvironment(
            f"{name[:_SHOWN]!r} is no environment's name: one is small letters, digits, _ and -, a "
            "letter first"
        )
    return _find_by_name(name, paths).load()(benchmarks)


def open_place(
    name_or_path: str, *, benchmarks: Path | None = None, paths: Sequence[Path] = ()
) -> Environment:
    """Return the environment with this name or in this file (FILE:NAME of several). It runs the
    file, so the path must come from an operator. Raise UnknownEnvironment, EnvironmentBroken."""
    entry = (
        _find_by_path(name_or_path)
        if _is_path(name_or_path)
        else _find_by_name(name_or_path, paths)
    )
    return entry.load()(benchmarks)


def open_from_event(
    place: str,
    *,
    benchmarks: Path | None = None,
    paths: Sequence[Path] = (),
    places: Sequence[str] = (),
) -> Environment:
    """Return the environment that an event names, as `locate` wrote it. `places`: names and paths
    in other settings. Raise UnknownEnvironment (also for other files), EnvironmentBroken."""
    check_place(place, paths=paths, places=places)
    return open_place(place, benchmarks=benchmarks, paths=paths)


def check_place(place: str, *, paths: Sequence[Path] = (), places: Sequence[str] = ()) -> None:
    """Raise UnknownEnvironment if `place` is a file that no setting names. No file is run."""
    if not _is_path(place):
        return
    file = _file_of(place)
    own = (*paths, *(_file_of(known) for known in places if _is_path(known)))
    if not any(_holds(path.expanduser().absolute(), file) for path in own):
        raise UnknownEnvironment(
            f"an event names the environment {place[:_SHOWN]!r}, whose file is in no setting; if "
            "you trust the file, name it in environments.paths"
        )


def _holds(path: Path, file: Path) -> bool:
    """Return whether a setting's path is the file, or the folder of the file."""
    if file.resolve() == path.resolve():
        return True
    return file.resolve().parent == path.resolve() and _is_candidate(file.resolve())


def _is_candidate(file: Path) -> bool:
    return file.suffix == ".py" and not file.name.startswith("_")


def is_away(path: Path) -> bool:
    """Return whether a setting's file or folder does not exist now, or the folder is empty, for
    example because a disk is not mounted."""
    try:
        return not any(path.iterdir()) if path.is_dir() else not path.is_file()
    except OSError:
        return True


def _file_of(text: str) -> Path:
    place, colon, _ = text.rpartition(":")
    return Path(place if colon else text).expanduser().absolute()


def locate(name_or_path: str, paths: Sequence[Path] = ()) -> str:
    """Return a name or FILE:NAME with which another process on this machine can open an environment
    without `paths`. Raise UnknownEnvironment or EnvironmentBroken."""
    entry = (
        _find_by_path(name_or_path)
        if _is_path(name_or_path)
        else _find_by_name(name_or_path, paths)
    )
    return entry.name if entry.file is None else f"{entry.file.absolute()}:{entry.name}"


def environments(paths: Sequence[Path] = ()) -> list[EnvironmentEntry]:
    """Return all environments: built-in, from distributions, from files. Raise EnvironmentBroken if
    two have the same name or a file cannot be imported."""
    entries, broken = survey(paths)
    if broken:
        raise broken[0].error
    return entries


def survey(
    paths: Sequence[Path] = (),
) -> tuple[list[EnvironmentEntry], list[EntryFault]]:
    """Return the usable environments, in the order of `environments`, and faults of others."""
    known: dict[str, EnvironmentEntry] = {}
    broken: list[EntryFault] = []
    for entry in chain(_builtin_entries(), _plugin_entries(), *map(_survey_path, paths)):
        other = entry if isinstance(entry, EntryFault) else known.setdefault(entry.name, entry)
        if isinstance(entry, EntryFault):
            broken.append(entry)
        elif other is not entry:
            error = EnvironmentBroken(
                f"two environments are called {entry.name!r}: {other.source} and {entry.source}; "
                "rename one, or leave it out of environments.paths"
            )
            broken.append(EntryFault(entry.name, entry.source, error))
    return list(known.values()), broken


def _survey_path(path: Path) -> Iterator[EnvironmentEntry | EntryFault]:
    """Yield the environments of a setting's file or folder, and its unusable files."""
    try:
        files = _list_files(path)
    except UnknownEnvironment as error:
        yield EntryFault(path.stem, str(path), error)
        return
    for file in files:
        try:
            yield from _in_file(file)
        except EnvironmentBroken as error:
            yield EntryFault(file.stem, str(file), error)


def _is_path(text: str) -> bool:
    return text.endswith(".py") or "/" in text or "\\" in text


def _find_by_name(name: str, paths: Sequence[Path]) -> EnvironmentEntry:
    known = {entry.name: entry for entry in environments(paths)}
    if name in known:
        return known[name]
    close = get_close_matches(name, list(known), n=1)
    if close:
        raise UnknownEnvironment(f"there is no environment {name!r}; did you mean {close[0]}?")
    raise UnknownEnvironment(
        f"there is no environment {name!r}, only {', '.join(known)}; name your own by its path, "
        f"such as ./{name}.py, or in the setting environments.paths"
    )


def _find_by_path(text: str) -> EnvironmentEntry:
    _, colon, name = text.rpartition(":")
    file = _file_of(text)
    entries = [entry for entry in _in_path(file) if not colon or entry.name == name]
    if not entries:
        raise UnknownEnvironment(f"{file} defines no environment {name!r}; correct the name")
    if len(entries) > 1:
        names = ", ".join(entry.name for entry in entries)
        raise UnknownEnvironment(
            f"{text} defines several environments: {names}; say which, as {text}:{entries[0].name}"
        )
    return entries[0]


def _builtin_entries() -> Iterator[EnvironmentEntry]:
    for name, reference in _CLASSES.items():
        module, _, attribute = reference.partition(":")
        yield EnvironmentEntry(name, BUILT_IN, partial(_import_class, module, attribute))


def _import_class(module: str, attribute: str) -> type[Environment]:
    cls: type[Environment] = getattr(import_module(module), attribute)
    return cls


def _plugin_entries() -> Iterator[EnvironmentEntry]:
    for point in entry_points(group=GROUP):
        owner = f"{point.dist.name} {point.dist.version}" if point.dist else "unknown distribution"
        yield EnvironmentEntry(point.name, owner, partial(_from_entry_point, point, owner))


def _from_entry_point(point: EntryPoint, owner: str) -> type[Environment]:
    where = f"entry point {point.name!r} of {owner}"
    try:
        loaded: Any = point.load()
    except Exception as error:
        raise EnvironmentBroken(
            f"{where}: {point.value} cannot be imported: {_describe_error(error)}; mend or "
            "uninstall it"
        ) from error
    if not (inspect.isclass(loaded) and issubclass(loaded, Environment)):
        raise EnvironmentBroken(f"{where}: {point.value} is no subclass of Environment")
    _check(loaded, where)
    if loaded.name != point.name:
        raise EnvironmentBroken(
            f"{where}: its environment is called {loaded.name!r}; give both the same name"
        )
    return loaded


def _in_path(path: Path) -> Iterator[EnvironmentEntry]:
    return chain.from_iterable(map(_in_file, _list_files(path)))


def _list_files(path: Path) -> list[Path]:
    """Return the files at a path that may define environments. Raise UnknownEnvironment."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if _is_candidate(file))
        if not files:
            raise UnknownEnvironment(f"folder {path} has no Python file; put an environment there")
    elif path.is_file():
        files = [path]
    else:
        raise UnknownEnvironment(
            f"{path} is no file and no folder; correct the path or environments.paths, or write "
            "a new environment with kintsugi env new NAME"
        )
    return files


def _in_file(file: Path) -> Iterator[EnvironmentEntry]:
    for cls in _find_classes(file):
        yield EnvironmentEntry(cls.name, str(file), partial(_already, cls), file)


def _already(cls: type[Environment]) -> type[Environment]:
    return cls


def _find_classes(file: Path) -> list[type[Environment]]:
    module = _import_file(file)
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    own = [
        cls
        for cls in dict.fromkeys(classes)
        if issubclass(cls, Environment) and cls.__module__ == module.__name__
    ]
    concrete = [cls for cls in own if not _is_base(cls, own)]
    if not concrete:
        raise EnvironmentBroken(
            f"{file} defines no environment; subclass envs.environment.Environment there"
        )
    for cls in concrete:
        _check(cls, f"{file}: class {cls.__name__}")
    return concrete


def _is_base(cls: type[Environment], own: Sequence[type[Environment]]) -> bool:
    """Return whether a class is incomplete and another class in the file completes it."""
    return bool(_list_gaps(cls)) and any(issubclass(o, cls) for o in own if o is not cls)


def _import_file(file: Path) -> ModuleType:
    module = ModuleType(f"kintsugi_environment_{sha256(str(file))[:16]}")
    module.__file__ = str(file)
    # pydantic and dataclasses later look up types in this module.
    sys.modules[module.__name__] = module
    try:
        # The import system would leave a __pycache__ beside the user's file.
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise EnvironmentBroken(
            f"{file}, line {_line(error, file)}: {_describe_error(error)}; the file fails to "
            "import, mend it"
        ) from error
    return module


def _line(error: BaseException, file: Path) -> int:
    """Return the last line of the file that ran, or the line that could not be parsed."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if f.filename == str(file)), 0)


def _describe_error(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _check(cls: type[Environment], where: str) -> None:
    """Raise EnvironmentBroken, with the fault, if a class is incomplete or wrong."""
    missing = _list_gaps(cls)
    if missing:
        raise EnvironmentBroken(f"{where} is incomplete; it lacks {'; '.join(missing)}")
    if not (isinstance(cls.name, str) and NAME.fullmatch(cls.name)):
        raise EnvironmentBroken(
            f"{where} is called {cls.name!r}; use small letters, digits, _ and -, a letter first"
        )
    if not (inspect.isclass(cls.toolset) and issubclass(cls.toolset, Toolset)):
        raise EnvironmentBroken(f"{where}: toolset {cls.toolset!r} is no subclass of Toolset")
    try:
        cls.toolset.tools()
    except Exception as error:
        raise EnvironmentBroken(
            f"{where}: a tool cannot be declared: {_describe_error(error)}"
        ) from error


def _list_gaps(cls: type[Environment]) -> list[str]:
    declared = [remedy for name, remedy in _DECLARED.items() if not getattr(cls, name, None)]
    methods: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    return [*declared, *(f"the method {name}" for name in sorted(methods))]
