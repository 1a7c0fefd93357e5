"""Metrics of the holdout: the cumulative lift, and the evidence on how sessions are held out. `arm`
is `holdout` or `loop`; `bound` is `difference`, `low` or `high`; `of` is `sessions` or `judged`. A
reading covers every session since the first promotion, so it is reused for a minute."""

from collections.abc import Collection, Iterable
from typing import Final

from daemon.metrics.families import Family, Sheet
from daemon.serving.lift import Lift

HOLDOUT: Final = (
    Family(
        "kintsugi_holdout_sessions",
        "Sessions since the first promotion that were held out on the base, and the others.",
        ("alias", "arm"),
    ),
    Family(
        "kintsugi_holdout_judged_sessions",
        "Those of them that count: judged, before the first whose verdict is waited for.",
        ("alias", "arm"),
    ),
    Family(
        "kintsugi_holdout_success_ratio", "Success rate of these; absent without one.",
        ("alias", "arm"),
    ),
    Family(
        "kintsugi_lift_ratio",
        "Success rate of the loop less that of the holdout, with bounds that hold at any time.",
        ("alias", "bound"),
    ),
    Family(
        "kintsugi_holdout_mismatch",
        "Evidence that sessions are not held out, or not judged, as the held-out share foretells.",
        ("alias", "of"),
    ),
)  # fmt: skip


def say_lifts(sheet: Sheet, lifts: Iterable[Lift], names: Collection[str]) -> None:
    """Report the lifts of the agents in `names`."""
    for lift in lifts:
        if lift.alias not in names:
            continue
        for arm, outcomes in (("holdout", lift.holdout), ("loop", lift.loop)):
            sheet.say("kintsugi_holdout_sessions", outcomes.sessions, lift.alias, arm)
            sheet.say("kintsugi_holdout_judged_sessions", outcomes.judged, lift.alias, arm)
            sheet.say("kintsugi_holdout_success_ratio", outcomes.success, lift.alias, arm)
        sheet.say("kintsugi_lift_ratio", lift.difference, lift.alias, "difference")
        sheet.say("kintsugi_lift_ratio", lift.low, lift.alias, "low")
        sheet.say("kintsugi_lift_ratio", lift.high, lift.alias, "high")
        sheet.say("kintsugi_holdout_mismatch", lift.shares_evidence, lift.alias, "sessions")
        sheet.say("kintsugi_holdout_mismatch", lift.judged_evidence, lift.alias, "judged")
