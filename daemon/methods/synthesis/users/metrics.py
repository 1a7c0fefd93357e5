"""Metrics of who plays users: the setting's outcome, gates, and the faults of models that play.

    say_users(connection, settings, sheet, pairs, since)

`player`: `script`, `model`, `trained`. `fault` of a gate: the names of events/serving.py with
underscores. `purpose` of a fault: of the rollout.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from consumers.reads import serving
from consumers.reads.counts import count_user_errors
from daemon.methods.synthesis.users.players import find_user
from daemon.methods.synthesis.users.views import read_user_state
from daemon.metrics.families import Family, Sheet
from events.jobs import AdapterUser
from events.serving import UserEvaluated

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.diagnosis.round_counts import Pair
    from daemon.config.settings import Settings

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


def say_users(
    connection: "Connection",
    settings: "Settings",
    sheet: Sheet,
    pairs: "Iterable[Pair]",
    since: str,
) -> None:
    """Report who plays the users of each agent; errors since a moment (RFC 3339, UTC)."""
    errors = count_user_errors(connection, since)
    for pair in pairs:
        user = find_user(connection, settings, pair.alias, pair.base)
        player = "trained" if isinstance(user, AdapterUser) else "model"
        sheet.say("kintsugi_user_player_info", 1, pair.alias, "script" if user is None else player)
        state = read_user_state(connection, settings, pair)
        sheet.say("kintsugi_user_dialogues", state.view.dialogues, pair.alias)
        gates = [
            row.user_gate
            for row in serving.list_user_adapters(connection, pair.alias)
            if row.user_gate is not None
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
