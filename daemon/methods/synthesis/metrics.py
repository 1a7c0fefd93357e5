"""Metrics of plans, and of the models that play users.

Every label has a closed set of values. `writer` is `rules` or `model`, whatever the model's name;
`player` is `script`, `model` or `trained`; `fault` of a gate is a name of events/serving.py with
underscores; `purpose` is that of the rollout.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from consumers.methods.synthesis.plans import FAULTS, count_changes, count_faults, count_tries
from consumers.reads import serving
from consumers.reads.counts import count_user_errors
from daemon.methods.synthesis.users.players import find_user
from daemon.methods.synthesis.users.views import read_user_state
from daemon.metrics.families import Family, Sheet
from daemon.metrics.loop import MethodMetrics
from events.jobs import AdapterUser
from events.serving import UserEvaluated

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.metrics.loop import LoopReading

_TRIES: Final = "kintsugi_plan_tries_total"

SYNTHESIS: Final = (
    Family(_TRIES, "Tries by plans, of all their revisions.", ("alias", "writer", "verdict")),
    Family(
        "kintsugi_plan_revisions_total",
        "Revisions of plans that were tried.",
        ("alias", "verdict"),
    ),
    Family(
        "kintsugi_trajectory_faults_total",
        "Rollouts of written tasks that failed, by whose fault it was.",
        ("alias", "fault"),
    ),
    Family(
        "kintsugi_trajectory_disagreements_total",
        "Those of which a model was of another opinion than the rules.",
        ("alias",),
    ),
)


USERS: Final = (
    Family("kintsugi_user_player_info", "Who plays the users of an agent.", ("alias", "player")),
    Family(
        "kintsugi_user_dialogues",
        "Accepted dialogues that a job could learn from; 0 unless improve.users is trained.",
        ("alias",),
    ),
    Family(
        "kintsugi_user_gates_total",
        "Adapters that were measured as users.",
        ("alias", "verdict"),
    ),
    Family(
        "kintsugi_user_gate_fault_ratio",
        "Upper 95 % bound of a fault of the last one that was measured; absent without one.",
        ("alias", "fault"),
    ),
    Family(
        "kintsugi_user_errors",
        "Rollouts of the last day that ended because a model that plays users erred; they have no "
        "verdict.",
        ("alias", "purpose"),
    ),
)


def build_metrics() -> MethodMetrics:
    """Return the metrics of plans and players of users, and the function that reports them."""
    return MethodMetrics((*SYNTHESIS, *USERS), _report)


def _report(reading: "LoopReading", sheet: Sheet) -> None:
    say_synthesis(reading.connection, sheet, reading.aliases)
    _report_users(reading, sheet)


def say_synthesis(connection: "Connection", sheet: Sheet, names: Iterable[str]) -> None:
    """Report the agents' counts: 0 at first, so that the first one shows as an increase."""
    tries: Counter[tuple[str, str, str]] = Counter()
    for (alias, writer), (total, accepted) in count_tries(connection).items():
        author = "rules" if writer is None else "model"
        tries[alias, author, "accepted"] += accepted
        tries[alias, author, "rejected"] += total - accepted
    faults, disagreements = count_faults(connection)
    changes = count_changes(connection)
    for name in names:
        for author in ("rules", "model"):
            for verdict in ("accepted", "rejected"):
                sheet.say(_TRIES, tries[name, author, verdict], name, author, verdict)
        for verdict, kept in (("kept", True), ("refused", False)):
            sheet.say("kintsugi_plan_revisions_total", changes[name, kept], name, verdict)
        for fault in FAULTS:
            sheet.say("kintsugi_trajectory_faults_total", faults[name, fault], name, fault)
        sheet.say("kintsugi_trajectory_disagreements_total", disagreements[name], name)


def _report_users(reading: "LoopReading", sheet: Sheet) -> None:
    connection, settings = reading.connection, reading.settings
    errors = count_user_errors(connection, reading.since)
    for pair in reading.pairs:
        user = find_user(connection, settings, pair.alias, pair.base)
        player = "trained" if isinstance(user, AdapterUser) else "model"
        sheet.say("kintsugi_user_player_info", 1, pair.alias, "script" if user is None else player)
        state = read_user_state(connection, settings, pair)
        sheet.say("kintsugi_user_dialogues", state.view.dialogues, pair.alias)
        gates = [
            row.role_gate
            for row in serving.list_user_adapters(connection, pair.alias)
            if row.role_gate is not None
        ]
        _say_gates(sheet, pair.alias, gates)
        for (alias, purpose), count in errors.items():
            if alias == pair.alias:
                sheet.say("kintsugi_user_errors", count, alias, purpose)


def _say_gates(sheet: Sheet, alias: str, gates: list[UserEvaluated]) -> None:
    verdicts = Counter("passed" if gate.passed else "failed" for gate in gates)
    for verdict in ("passed", "failed"):
        sheet.say("kintsugi_user_gates_total", verdicts[verdict], alias, verdict)
    for name, rate in gates[-1].rates.items() if gates else ():
        fault = name.replace(" ", "_")
        sheet.say("kintsugi_user_gate_fault_ratio", rate.upper, alias, fault)
