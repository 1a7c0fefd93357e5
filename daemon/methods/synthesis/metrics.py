"""Metrics of plans: what the tries by them came to, whose fault the failures of their rollouts
were, and which revisions were kept.

    say_synthesis(connection, sheet, names)

`writer` is `rules` or `model`, whatever the model is called, so every label is a closed set.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from consumers.methods.synthesis.plans import FAULTS, count_changes, count_faults, count_tries
from daemon.metrics.families import Family, Sheet

if TYPE_CHECKING:
    from sqlalchemy import Connection

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


def say_synthesis(connection: "Connection", sheet: Sheet, names: Iterable[str]) -> None:
    """Report the counts of the agents in `names`; 0 without any, so that the first one is an
    increase."""
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
