"""`kintsugi cycle account`: what each stage of a finished cycle lost of the possible gain."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import Cli, command
from daemon.cli.output import Columns, facts, table

if TYPE_CHECKING:
    from daemon.cycle.account.account import CycleAccount
    from daemon.cycle.account.balance import Balance
    from daemon.cycle.account.diagnosis import Diagnosis
    from daemon.cycle.account.facts import PassCount
    from daemon.cycle.account.gate import Gate
    from daemon.cycle.account.learner import Learner
    from daemon.cycle.account.tasks import KindTasks, Tasks
    from envs.statistics import Interval

_POINTS: Final = ("potential", "directed", "aimed", "learnt", "accepted", "kept")
_NUMBERS: Final = (
    "rollouts", "failures", "pass rate", "lost", "quota", "written", "pooled", "of the job",
    "before training", "gate tasks", "gain", "of traffic", "priority", "share", "tasks", "groups",
    "informative", "first", "last", "low", "power", "detectable", "value", "limit", "number",
    *_POINTS,
)  # fmt: skip
_NO_FIGURE: Final = "–"


def register(group: typer.Typer) -> None:
    """Register the command with the group `kintsugi cycle`."""
    command(group)(account)


def account(
    cli: Cli,
    cycle: Annotated[
        str | None, typer.Argument(metavar="ID", help="Its id, how that begins, or its number.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--all", metavar="ALIAS", help="All finished cycles of an agent, in a line each."
        ),
    ] = None,
) -> None:
    """Show where a finished cycle's gain went: diagnosis, tasks, learner, gate, canary.

    Each stage has its figures, the points of all traffic's pass^1 that were lost there, and a
    verdict; the last lines name the stage that limits, where that is shown.
    """
    from events.errors import WrongUsage

    if (cycle is None) == (every is None):
        raise WrongUsage(
            "kintsugi cycle account takes the id or number of one cycle, or --all ALIAS"
        )
    if cycle is not None:
        _show_cycle(cli, cycle)
    elif every is not None:
        _show_all(cli, every)


def _show_cycle(cli: Cli, name: str) -> None:
    from consumers.reads import learning
    from daemon.cycle.account.account import build_document
    from daemon.cycle.account.read import read_account
    from events.errors import WrongUsage

    with cli.app() as app, app.reading() as connection:
        row = learning.find_cycle(connection, name)
        accounted = read_account(connection, row)
    if accounted is None:
        raise WrongUsage(
            f"cycle {row.cycle} has not ended, and what is lost is known afterwards; see kintsugi "
            f"cycle show {row.cycle}"
        )
    if cli.out.json:
        cli.out.document(build_document(accounted))
        return
    cli.out.show(*_show_account(accounted))


def _show_all(cli: Cli, alias: str) -> None:
    from consumers.reads import learning
    from daemon.cycle.account.account import build_document, count_limits
    from daemon.cycle.account.read import read_account

    with cli.app() as app, app.reading() as connection:
        rows = learning.cycles(connection, alias)
        accounts = [read_account(connection, row) for row in reversed(rows)]
    if not rows:
        raise learning.UnknownId(f"there is no cycle of {alias!r}; see kintsugi cycle ls")
    finished = [item for item in accounts if item is not None]
    limits = count_limits(finished)
    if cli.out.json:
        documents = [build_document(item) for item in finished]
        cli.out.document({"alias": alias, "cycles": documents, "limits": limits})
    elif finished:
        cli.out.show(
            _CYCLE_COLUMNS.build_table(finished), "", _describe_limits(limits, len(finished))
        )
    if not finished:
        cli.out.hint(f"no cycle of {alias} has ended yet; see kintsugi cycle ls")


def describe_limit(accounted: "CycleAccount") -> str:
    """Return a line that names the limiting stage of a cycle and the reason."""
    return f"{accounted.limit_name}: {accounted.limit.because}"


def _show_account(accounted: "CycleAccount") -> list[Any]:
    stages = {name: stage.figures for name, stage in accounted.stages.items()}
    diagnosis: Any = stages["diagnosis"]
    tasks: Any = stages["tasks"]
    learner: Any = stages["learner"]
    gate: Any = stages["gate"]
    heading = f"cycle {accounted.number} of {accounted.alias} on {accounted.base}"
    parts = [
        facts({"cycle": f"{heading}, {accounted.cycle}",
               "came to": f"{accounted.outcome}: {accounted.ended_because}"}),
        _STAGE_COLUMNS.build_table(accounted.stages.items()),
        _build_kind_table(diagnosis, tasks, gate),
        _build_pattern_table(diagnosis),
        _build_pool_table(tasks, learner),
        _TARGET_COLUMNS.build_table(gate.targets) if gate.targets else None,
        _CHECK_COLUMNS.build_table(gate.failed) if gate.failed else None,
        facts({"points": _describe_balance(accounted.balance),
               "limit": describe_limit(accounted)}),
    ]  # fmt: skip
    shown = [part for part in parts if part is not None]
    return [item for part in shown for item in (part, "")][:-1]


def _build_kind_table(diagnosis: "Diagnosis", tasks: "Tasks", gate: "Gate") -> Any:
    live = {kind.kind: kind for kind in diagnosis.kinds}
    written = {kind.kind: kind for kind in tasks.kinds}
    gains = {kind.kind: kind for kind in gate.kinds}
    names = dict.fromkeys((*live, *written, *gains))
    rows = []
    for name in names:
        row, own, gain = live.get(name), written.get(name), gains.get(name)
        rows.append([
            name,
            None if row is None else row.rollouts,
            None if row is None else row.failures,
            _percent(None if row is None else row.pass_rate),
            _points(None if row is None else row.lost),
            None if row is None else f"{row.quota:.1f}",
            None if own is None else own.written,
            None if own is None else own.pooled,
            _describe_rollout_share(own),
            _describe_difficulty(own),
            None if gain is None else gain.tasks,
            _points(None if gain is None else gain.gain, sign=True),
            None if gain is None or gain.traffic_gain is None else f"{gain.traffic_gain:+.1f}",
        ])  # fmt: skip
    columns = [
        "kind", "rollouts", "failures", "pass rate", "lost", "quota", "written", "pooled",
        "of the job", "before training", "gate tasks", "gain", "of traffic",
    ]  # fmt: skip
    return _table(columns, rows, "kind")


def _describe_rollout_share(kind: "KindTasks | None") -> str | None:
    if kind is None or kind.rollout_share is None:
        return None
    return f"{kind.rollout_share:.0%}" + (", few" if kind.starved else "")


def _describe_difficulty(kind: "KindTasks | None") -> str | None:
    if kind is None or not kind.sampled.attempts:
        return None
    return _ratio(kind.sampled) + (", easier" if kind.easier else "")


def _build_pattern_table(diagnosis: "Diagnosis") -> Any:
    rows = [row for row in diagnosis.patterns if row.failures or row.quota]
    return _PATTERN_COLUMNS.build_table(rows) if rows else None


def _build_pool_table(tasks: "Tasks", learner: "Learner") -> Any:
    sampled = {pool.pool: pool for pool in learner.pools}
    given = {pool.pool: pool for pool in tasks.pools}
    rows = []
    for name in dict.fromkeys((*given, *sampled)):
        pool, own = given.get(name), sampled.get(name)
        rows.append([
            name,
            None if pool is None else f"{pool.share:.0%}",
            None if pool is None else pool.tasks,
            None if own is None else own.rollouts,
            None if own is None else own.groups,
            None if own is None else own.informative,
            None if own is None else _ratio(own.first),
            None if own is None else _ratio(own.last),
        ])  # fmt: skip
    columns = ["pool", "share", "tasks", "rollouts", "groups", "informative", "first", "last"]
    return _table(columns, rows, "pool")


def _describe_balance(balance: "Balance") -> str:
    return ", ".join(f"{name} {_points(getattr(balance, name))}" for name in _POINTS)


def _describe_limits(limits: Mapping[str, int], cycles: int) -> str:
    counts = Counter(limits).most_common()
    named = ", ".join(f"{name} {count}" for name, count in counts if count)
    return f"limit of {cycles} cycles: {named}"


def _table(columns: list[str], rows: list[list[Any]], *whole: str) -> Any:
    if not rows:
        return None
    right = [column for column in columns if column in _NUMBERS]
    return table(columns, rows, right=right, whole=whole)


def _points(points: "Interval | None", *, sign: bool = False) -> str:
    if points is None:
        return _NO_FIGURE
    form = "+.1f" if sign else ".1f"
    if points.low == points.high:
        return f"{points.value:{form}}"
    return f"{points.value:{form}} [{points.low:{form}}, {points.high:{form}}]"


def _make_points(name: str) -> "Callable[[CycleAccount], str]":
    def show(accounted: "CycleAccount") -> str:
        points = getattr(accounted.balance, name)
        return _NO_FIGURE if points is None else f"{points.value:.1f}"

    return show


def _percent(share: "Interval | None") -> str:
    if share is None:
        return _NO_FIGURE
    return f"{share.value:.2f} [{share.low:.2f}, {share.high:.2f}]"


def _ratio(count: "PassCount") -> str:
    return f"{count.passed}/{count.attempts}"


_STAGE_COLUMNS: Final = Columns(
    ("stage", lambda item: item[0]),
    ("lost", lambda item: _points(item[1].lost)),
    ("verdict", lambda item: item[1].verdict.replace("_", " ")),
    ("why", lambda item: item[1].because),
    right=("lost",),
    whole=("stage", "verdict"),
)
_PATTERN_COLUMNS: Final = Columns(
    "pattern",
    ("priority", "priority:.3g"),
    "failures",
    "quota",
    ("kinds", lambda row: ", ".join(f"{kind} {count}" for kind, count in row.kinds.items())),
    right=("priority", "failures", "quota"),
    whole=("pattern",),
)
_TARGET_COLUMNS: Final = Columns(
    "target",
    "tasks",
    ("gain", "gain:+.1f"),
    ("low", "low:+.1f"),
    ("power", "power:.0%"),
    ("detectable", "detectable:.1f"),
    "verdict",
    right=("tasks", "gain", "low", "power", "detectable"),
    whole=("target",),
)
_CHECK_COLUMNS: Final = Columns(
    "check",
    "verdict",
    ("value", "value:+.3f"),
    ("low", "low:+.3f"),
    ("limit", "limit:+.3f"),
    "tasks",
    right=("value", "low", "limit", "tasks"),
    whole=("check",),
)
_CYCLE_COLUMNS: Final = Columns(
    "number",
    "base",
    ("came to", "outcome"),
    *((name, _make_points(name)) for name in _POINTS),
    ("limit", "limit_name"),
    ("why", "limit.because"),
    right=("number", *_POINTS),
    whole=("came to", "limit"),
)
