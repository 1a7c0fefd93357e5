"""Find kinds of task to exclude from training: the outcome is constant, or an agent that cheats
wins. Built-in environments are proven by their tests. For any other environment, the bank of
cheaters (envs/cheating) plays every kind, once per version of the code: in the cycle that writes
its first tasks, and before an evaluation on another machine. `environments/NAME.json` of the home
stores the wins. A kind that cheaters cannot play is excluded like a winnable one.
`environments.allow_winnable` names kinds that are used anyway. Not covered: an environment that
depends on files beside its code.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from envs import cheating
from envs.cheating.bank import CHEATERS
from envs.cheating.trial import list_kinds, run_bank
from envs.environment import Environment
from envs.footprint import format_error
from envs.registry import open_place
from events import private
from events.canonical import exact_json, sha256
from events.files import replace_file
from events.jobs import TaskPool
from events.messages import StrictModel

if TYPE_CHECKING:
    from daemon.config.settings import Settings

_FOLDER: Final = "environments"
_CONSTANT: Final = "its right outcome is the same whatever the state is"


class CheatRecord(StrictModel):
    """Result of the cheaters' play: the kinds of an environment that they win."""

    digest: str
    """Digest of the code of environment and bank."""
    winnable: dict[str, str]
    """Kind that a cheat wins, or that cheaters cannot play -> a sentence with the remedy."""


def find_exclusions(settings: "Settings", environment: Environment) -> dict[str, str]:
    """Return kind -> reason not to train on it; kinds that were not measured yet are left out."""
    return dict.fromkeys(sorted(environment.constant), _CONSTANT) | find_cheat_exclusions(
        settings, environment
    )


def find_cheat_exclusions(settings: "Settings", environment: Environment) -> dict[str, str]:
    """Return kind that cheaters win -> reason, without the kinds that the settings allow."""
    record = read_cheats(settings, environment)
    allowed = list_exemptions(settings, environment)
    winnable = {} if record is None else record.winnable
    return {kind: reason for kind, reason in winnable.items() if kind not in allowed}


def list_exemptions(settings: "Settings", environment: Environment) -> list[str]:
    """Return the kinds that cheaters win and the settings allow."""
    record = read_cheats(settings, environment)
    names = settings.environments.allow_winnable
    winnable = () if record is None else sorted(record.winnable)
    return [kind for kind in winnable if f"{environment.name}/{kind}" in names]


def is_built_in(environment: Environment) -> bool:
    """Return whether the environment is one of kintsugi's."""
    return type(environment).__module__.partition(".")[0] == "envs"


def read_cheats(settings: "Settings", environment: Environment) -> CheatRecord | None:
    """Return the record for the present code, or None; built-in ones have no winnable kind."""
    if is_built_in(environment):
        return CheatRecord(digest="", winnable={})
    path = _locate(settings, environment)
    try:
        record = CheatRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        # Cheaters play again if the record is of another version of the code.
        return None
    return record if record.digest == _digest(environment) else None


def measure_cheats(settings: "Settings", environment: Environment) -> CheatRecord:
    """Return the record; without one, cheaters play for seconds to minutes. Raises OSError."""
    known = read_cheats(settings, environment)
    if known is not None:
        return known
    # Before the play: a later change of the code makes the record stale.
    digest = _digest(environment)
    report = run_bank(environment, list_kinds(environment))
    winnable = {
        kind: f"the cheater {win.cheater} wins {win.wins} of {win.tasks} tasks; "
        f"{CHEATERS[win.cheater].remedy}"
        for kind, win in report.winnable.items()
    } | {
        kind: f"cheaters cannot play it: it raises {text}; kintsugi env check shows where"
        for kind, text in report.failures.items()
    }
    record = CheatRecord(digest=digest, winnable=winnable)
    path = _locate(settings, environment)
    private.make_folder(path.parent)
    replace_file(path, record.model_dump_json().encode(), is_shared=True)
    return record


@dataclass(frozen=True, slots=True)
class AgentKinds:
    """Kinds of an agent's tasks that training leaves out, or uses with care."""

    alias: str
    environment: str
    """Name of the environment, or the settings' name for it if it cannot be opened."""
    measured: bool
    """Whether cheaters have played the environment, or its own tests prove it."""
    played: tuple[str, ...]
    """Kinds that cheaters play; empty for a built-in environment."""
    constant: tuple[str, ...]
    winnable: dict[str, str]
    """Kind -> sentence with the cheater that wins it, and the remedy."""
    allowed: tuple[str, ...]
    error: str | None
    says: str
    """The other fields as a text; may be empty."""


def read_agent_kinds(settings: "Settings") -> list[AgentKinds]:
    """Return the kinds of every agent with an environment."""
    return [
        _read_kinds(settings, agent.alias, agent.environment)
        for agent in settings.agents
        if agent.environment is not None
    ]


def _read_kinds(settings: "Settings", alias: str, place: str) -> AgentKinds:
    try:
        environment = open_place(
            place, benchmarks=settings.benchmarks, paths=settings.environments.paths
        )
        return _describe_kinds(settings, alias, place, environment)
    except Exception as error:  # an environment's own code may raise any exception
        reason = format_error(error)
        return AgentKinds(
            alias,
            place,
            False,
            (),
            (),
            {},
            (),
            reason,
            f"the kinds of {place} are unknown: {reason}",
        )


def _describe_kinds(
    settings: "Settings", alias: str, place: str, environment: Environment
) -> AgentKinds:
    record = read_cheats(settings, environment)
    winnable = {} if record is None else record.winnable
    allowed = list_exemptions(settings, environment)
    constant = tuple(sorted(environment.constant))
    parts = [
        f"{kind} is {'used as allowed' if kind in allowed else 'left out'}: {reason}"
        for kind, reason in winnable.items()
    ]
    if constant:
        parts.append(f"of constant outcome, evaluated and never trained on: {', '.join(constant)}")
    if record is None:
        parts.append(
            f"cheaters have not played {environment.name}: the next cycle has them play, and "
            f"kintsugi env check {place} shows what they win"
        )
    return AgentKinds(
        alias, environment.name, record is not None,
        () if is_built_in(environment) else tuple(list_kinds(environment)),
        constant, winnable, tuple(allowed), None, "; ".join(parts),
    )  # fmt: skip


def list_idle_exemptions(settings: "Settings", agents: Sequence[AgentKinds]) -> list[str]:
    """Return the names in `environments.allow_winnable` that have no effect for these agents."""
    known = {f"{agent.environment}/{kind}" for agent in agents for kind in agent.played}
    return [name for name in settings.environments.allow_winnable if name not in known]


def drop_kinds(
    environment: Environment, pools: Sequence[TaskPool], excluded: Mapping[str, str]
) -> list[TaskPool]:
    """Return the pools without tasks of the `excluded` kinds. Drop empty pools."""
    if not excluded:
        return list(pools)

    def keep(tasks: Sequence[str]) -> tuple[str, ...]:
        return tuple(task for task in tasks if environment.task(task).capability not in excluded)

    kept = []
    for pool in pools:
        if pool.environment is None:
            tasks, references = keep(pool.tasks), keep(pool.references)
            if not tasks:
                continue
            pool = pool.model_copy(update={"tasks": tasks, "references": references})
        kept.append(pool)
    return kept


def filter_by_pools(
    environment: Environment, pools: Sequence[TaskPool], kinds: Sequence[str]
) -> tuple[str, ...]:
    """Return the kinds of which the pools draw tasks."""
    if not kinds:
        return ()
    tasks = [task for pool in pools if pool.environment is None for task in pool.tasks]
    drawn = {environment.task(task).capability for task in tasks}
    return tuple(kind for kind in kinds if kind in drawn)


def _locate(settings: "Settings", environment: Environment) -> Path:
    return settings.home / _FOLDER / f"{environment.name}.json"


def _digest(environment: Environment) -> str:
    bank = sorted(Path(cheating.__path__[0]).glob("*.py"))
    files = dict.fromkeys([*_list_files(environment), *bank])
    digests = [sha256(path.read_text("utf-8", "surrogateescape")) for path in files]
    return sha256(exact_json([environment.name, str(environment.benchmarks), digests]))


def _list_files(environment: Environment) -> Iterator[Path]:
    for cls in type(environment).__mro__:
        module = sys.modules[cls.__module__]
        file = getattr(module, "__file__", None)
        if file is None or cls.__module__.partition(".")[0] in ("envs", "abc"):
            continue
        path = Path(file)
        yield from sorted(path.parent.glob("**/*.py")) if module.__package__ else [path]
