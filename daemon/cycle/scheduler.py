"""When a cycle is due: a pure function of what the tables say and of the time.

    decide(facts, settings, now)          Due, or NotDue with what is missing, as sentences
    not_due_without_environment(alias)    the same of an agent whose tasks cannot be played

A cycle is due when one of these is so, and nothing holds it back:

    operator    a person asked for it (kintsugi cycle start): holds back only what cannot run
    cron        a point of the schedule has passed since the last cycle began; missed ones are one
    priority    the patterns that are not resolved weigh enough together
    rollouts    the agent has done enough that no cycle has read
    age         the last cycle is long ago

What holds it back: an open cycle of the agent, the cool-down after the last cycle, too few new
failures to learn from, and the day's budget of job minutes. An agent without an executable
environment has no cycles, so nothing is counted for one: what no cycle ever reads grows with all
that it does. Hysteresis:
after each cycle in a row that changed nothing the cool-down and the counts that are needed grow by
`scheduler.backoff`, so that what cannot be learnt is not tried all night; one that was promoted
sets them back.

Source of the triggers: SENTINEL, arXiv 2606.12908, section 3; docs/loop.md has ours.
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
"""Points of a crontab schedule are whole minutes."""
_MOST_SECONDS: Final = 3e9
"""Longest cool-down: a hundred years, which every date holds."""
MOST_BACKOFFS: Final = 4
"""Cycles in a row that changed nothing which are counted: the waiting has an end."""


@dataclass(frozen=True, slots=True)
class Due:
    """A cycle begins now."""

    trigger: Trigger
    reason: str
    slot: str | None = None
    """Slot of a cron trigger; None for another trigger."""
    acted: str | None = None
    """Event of an operator's request; None for another trigger."""


@dataclass(frozen=True, slots=True)
class NotDue:
    """No cycle yet, and why not: one sentence each."""

    missing: tuple[str, ...]


def decide(facts: Scheduling, settings: "Scheduler", now: datetime) -> Due | NotDue:
    """Whether a cycle of this agent is due."""
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
    """What an agent waits for whose tasks cannot be played, whatever it does."""
    missing = (
        f"{alias} has no executable environment: its traffic is recorded, its sessions have no "
        "verdict, and nothing is trained; name one in the setting agents"
    )
    return NotDue((missing,))


def _list_obstacles(facts: Scheduling, settings: "Scheduler") -> Iterator[str]:
    """What no person can wish away."""
    if facts.is_open:
        yield f"a cycle of {facts.alias} is running"
    minutes = facts.job_seconds / 60
    if minutes >= settings.budget_minutes:
        yield (
            f"jobs ran {minutes:.0f} minutes today, and scheduler.budget_minutes is "
            f"{settings.budget_minutes:g}"
        )


def _list_holds(facts: Scheduling, settings: "Scheduler", now: datetime) -> Iterator[str]:
    """What a trigger has to wait for."""
    growth = _growth(facts, settings)
    if facts.last_ended is not None:
        cooldown = _cooldown(settings, growth)
        free = facts.last_ended + cooldown
        # An end that lies farther ahead was noted before the clock was set back.
        if facts.last_ended - cooldown < now < free:
            yield f"{(free - now).total_seconds():.0f} s of cool-down{_because(facts)}"
    needed = round(settings.min_failures * growth)
    if facts.failed < needed:
        yield f"{needed - facts.failed} more failures, of {needed}{_because(facts)}"


def _find_trigger(
    facts: Scheduling, settings: "Scheduler", now: datetime
) -> tuple[Due | None, tuple[str, ...]]:
    """The first trigger that tripped; else what each would need."""
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
    """When after `now` time alone may change what `decide` says of these facts, in order."""
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
    """The last point of a schedule after `since` and not after `now`; None for none, for no
    schedule, and while nothing has happened yet.

    It is sought by halving the time, so the cost grows with the logarithm of what was missed. The
    schedule is one in UTC, which no summer time moves. Where the clock was set back behind `since`
    it waits until that has passed again.
    """
    if not cron or since is None:
        return None
    trigger = read_crontab(cron)
    last = _next_slot(trigger, since, now)
    if last is None:
        return None
    free = now  # no point of the schedule lies after it
    while free - last >= _SLOT:
        middle = last + (free - last) / 2
        following = _next_slot(trigger, middle, now)
        if following is None:
            free = middle
        else:
            last = following
    return last


def _next_slot(trigger: Any, after: datetime, until: datetime) -> datetime | None:
    """The first point of a schedule after `after` and not after `until`."""
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
