"""Decide when a cycle is due: a pure function of the tables and the time. Triggers:

    operator    a person's request (kintsugi cycle start)
    cron        a fire time has passed since the last cycle began; several missed ones count as one
    priority    the priorities of the open patterns add up to enough
    rollouts    enough rollouts that no cycle has read
    age         the last cycle is long ago

No trigger begins a cycle while the agent has an open one, or once the day's budget of job minutes
is spent. The cool-down after the last cycle and too few new failures hold back all triggers but an
operator's. Hysteresis: each fruitless cycle in a row multiplies the cool-down and the needed counts
by `scheduler.backoff`; a promotion resets them. Agents without an executable environment have no
cycles. Source: SENTINEL, arXiv 2606.12908, section 3; docs/loop.md has our triggers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

from consumers.reads.scheduling import Scheduling
from daemon.config.crontab import list_next_times, read_crontab
from events.envelope import timestamp
from events.learning import Trigger

if TYPE_CHECKING:
    from daemon.config.settings import Scheduler

_SLOT: Final = timedelta(minutes=1)
"""Resolution of a crontab schedule."""
_MOST_SECONDS: Final = 3e9
"""Longest cool-down in seconds: about a hundred years, which datetime can still add."""
MOST_BACKOFFS: Final = 4
"""Most fruitless cycles in a row that lengthen the waiting, so that it ends."""


@dataclass(frozen=True, slots=True)
class Due:
    """A cycle of the agent is to begin now, with the trigger and its reason."""

    trigger: Trigger
    reason: str
    slot: str | None = None
    acted: str | None = None
    """Event id of the operator's request, if that is the trigger."""


@dataclass(frozen=True, slots=True)
class NotDue:
    """No cycle is due yet; `missing` holds one sentence for each reason."""

    missing: tuple[str, ...]


def decide(facts: Scheduling, settings: "Scheduler", now: datetime) -> Due | NotDue:
    """Return whether a cycle of this agent is due, with the trigger or the missing conditions."""
    if held := tuple(_list_obstacles(facts, settings)):
        return NotDue(held)
    if facts.asked is not None:
        return Due("operator", "a person asked for it", acted=facts.asked)
    held = tuple(_list_holds(facts, settings, now))
    due, wanted = _find_trigger(facts, settings, now)
    if due is None:
        return NotDue((*held, *wanted))
    return NotDue(held) if held else due


def not_due_without_environment(alias: str) -> NotDue:
    """Return NotDue for an agent without an environment, whose tasks cannot be played."""
    missing = (
        f"{alias} has no executable environment: its traffic is recorded, its sessions have no "
        "verdict, and nothing is trained; name one in the setting agents"
    )
    return NotDue((missing,))


def _list_obstacles(facts: Scheduling, settings: "Scheduler") -> Iterator[str]:
    if facts.is_open:
        yield f"a cycle of {facts.alias} is running"
    minutes = facts.job_seconds / 60
    if minutes >= settings.budget_minutes:
        yield (
            f"jobs ran {minutes:.0f} minutes today, and scheduler.budget_minutes is "
            f"{settings.budget_minutes:g}"
        )


def _list_holds(facts: Scheduling, settings: "Scheduler", now: datetime) -> Iterator[str]:
    growth = _growth(facts, settings)
    if facts.last_ended is not None:
        cooldown = _cooldown(settings, growth)
        free = facts.last_ended + cooldown
        # An end farther ahead than the cool-down was recorded before the clock was set back.
        if facts.last_ended - cooldown < now < free:
            yield f"{(free - now).total_seconds():.0f} s of cool-down{_because(facts)}"
    needed = round(settings.min_failures * growth)
    if facts.failed < needed:
        yield f"{needed - facts.failed} more failures, of {needed}{_because(facts)}"


def _find_trigger(
    facts: Scheduling, settings: "Scheduler", now: datetime
) -> tuple[Due | None, tuple[str, ...]]:
    """Return the first trigger that fired; if none did, None and the missing conditions."""
    slot = find_last_slot(settings.cron, facts.last_started or facts.first_seen, now)
    if slot is not None:
        at = timestamp(slot)
        return Due("cron", f"scheduler.cron {settings.cron!r} had its turn at {at}", slot=at), ()
    if facts.priority >= settings.min_priority:
        weight = f"patterns weigh {facts.priority:.3g}, of {settings.min_priority:g}"
        return Due("priority", weight), ()
    needed = round(settings.min_rollouts * _growth(facts, settings))
    if facts.rollouts >= needed:
        return Due("rollouts", f"{facts.rollouts} new rollouts, of {needed}"), ()
    since = facts.last_started or facts.first_seen
    oldest = settings.max_age_seconds
    if since is not None and now - since >= timedelta(seconds=oldest):
        hours = (now - since).total_seconds() / 3600
        return Due("age", f"{hours:.1f} hours since the last cycle"), ()
    return None, (
        (
            f"{needed - facts.rollouts} more rollouts, of {needed}, or "
            f"{settings.min_priority - facts.priority:.3g} more priority, of "
            f"{settings.min_priority:g}, or an age of {oldest:g} s"
        ),
    )


def list_change_times(facts: Scheduling, settings: "Scheduler", now: datetime) -> list[datetime]:
    """Return the times after `now`, in order, at which `decide` may change by time alone."""
    since = facts.last_started or facts.first_seen
    moments = [datetime.combine(now.date() + timedelta(days=1), time(), now.tzinfo)]
    if facts.last_ended is not None:
        cooldown = _cooldown(settings, _growth(facts, settings))
        moments += [facts.last_ended, facts.last_ended + cooldown]
    if since is not None:
        moments.append(since + timedelta(seconds=settings.max_age_seconds))
    if settings.cron and since is not None and find_last_slot(settings.cron, since, now) is None:
        moments += list_next_times(settings.cron, max(since, now), 1)
    return sorted(moment for moment in moments if moment > now)


def find_last_slot(cron: str, since: datetime | None, now: datetime) -> datetime | None:
    """Return the schedule's latest fire time in (since, now], in UTC, or None. If the clock was set
    back behind `since`, the result is None until `since` has passed again."""
    if not cron or since is None:
        return None
    trigger = read_crontab(cron)
    last = _next_slot(trigger, since, now)
    if last is None:
        return None
    free = now  # upper bound: the schedule has no fire time in (free, now]
    while free - last >= _SLOT:
        middle = last + (free - last) / 2
        following = _next_slot(trigger, middle, now)
        if following is None:
            free = middle
        else:
            last = following
    return last


def _next_slot(trigger: Any, after: datetime, until: datetime) -> datetime | None:
    """Return the first fire time in (after, until], or None."""
    slot: datetime | None = trigger.get_next_fire_time(None, after + timedelta(microseconds=1))
    return None if slot is None or slot > until else slot


def _growth(facts: Scheduling, settings: "Scheduler") -> float:
    return float(settings.backoff ** min(facts.fruitless, MOST_BACKOFFS))


def _cooldown(settings: "Scheduler", growth: float) -> timedelta:
    return timedelta(seconds=min(settings.cooldown_seconds * growth, _MOST_SECONDS))


def _because(facts: Scheduling) -> str:
    if not facts.fruitless:
        return ""
    cycles = "cycle" if facts.fruitless == 1 else "cycles"
    return f" ({facts.fruitless} {cycles} in a row changed nothing)"
