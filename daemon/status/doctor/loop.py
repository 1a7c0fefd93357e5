"""Checks of the loop: leader, cycles, jobs and sessions."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from daemon.status.doctor.finding import Finding

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from consumers.reads.learning import CycleRow
    from daemon.config.settings import Scheduler, Settings
    from daemon.core.app import App

STUCK_SECONDS: Final = 4 * 3600.0
"""Seconds that a cycle may wait for the same next step; the alert has the same limit."""

SILENT_SECONDS: Final = 600.0
"""Seconds a job may be silent; it reports every few seconds."""

LATE: Final = timedelta(minutes=10)
"""Time after a session's idle time by which it must have become a rollout."""


def leader(app: "App") -> Finding:
    """Check the leader's lease. A leader that resigned leaves no lease; a lost leader does."""
    from consumers import leases
    from daemon.core.leadership import LEASE

    with app.reading() as connection:
        held = leases.read_lease(connection, LEASE)
    if held is None:
        return True, "nobody leads, and nobody was lost"
    if held.seconds < 0:
        return False, (
            f"{held.holder} led, and its lease ran out {-held.seconds:,.0f} s ago; start kintsugi "
            "schedule"
        )
    return True, f"{held.holder} leads in epoch {held.epoch}"


def cycle(app: "App") -> Finding:
    """Check that each agent's open cycle advances, and its canary within the configured time."""
    from consumers.reads import learning
    from events.envelope import utc_now

    with app.reading() as connection:
        newest = learning.newest_cycle(connection)
        now = utc_now()
        stands = [
            _check_progress(connection, app.settings, row, now)
            for row in learning.open_cycles(connection)
        ]
    if newest is None:
        return True, "none yet"
    if not stands:
        return True, f"cycle {newest.number} of {newest.alias}: {newest.outcome}"
    stuck = [text for ok, text in stands if not ok]
    return not stuck, "; ".join(stuck or [text for _, text in stands])


def _check_progress(
    connection: "Connection", settings: "Settings", row: "CycleRow", now: "datetime"
) -> Finding:
    from consumers.reads.cycle_state import read_cycle_state
    from daemon.cycle.state_machine import Step
    from daemon.cycle.views import read_step, step_start
    from events.envelope import parse_timestamp

    step = read_step(connection, settings, row)
    since = step_start(read_cycle_state(connection, row))
    text = f"cycle {row.number} of {row.alias} needs {step} next"
    if since is None:
        return True, text
    stands = (now - parse_timestamp(since)).total_seconds()
    text = f"{text}, for {stands:,.0f} s"
    if step != Step.WATCH and stands > STUCK_SECONDS:
        return False, f"{text}; see kintsugi cycle show {row.cycle}"
    return True, text


def schedule(app: "App") -> Finding:
    """Check that the days of `scheduler.cron` are meant as they are read."""
    from daemon.config.crontab import list_next_times
    from events.envelope import timestamp, utc_now

    scheduler, now = app.settings.scheduler, utc_now()
    if not scheduler.cron:
        return True, "no scheduler.cron"
    notice = find_day_change(scheduler, now)
    if notice is not None:
        return False, notice
    times = [timestamp(time) for time in list_next_times(scheduler.cron, now, 1)]
    return True, f"scheduler.cron {scheduler.cron!r} is next due at {', '.join(times) or 'no time'}"


def find_day_change(scheduler: "Scheduler", now: "datetime") -> str | None:
    """Return how earlier versions read a schedule's days differently, with the remedy; None if they
    read them alike or the operator has confirmed the new meaning."""
    from daemon.config.crontab import describe_day_change

    if not scheduler.cron or scheduler.cron_days == "crontab":
        return None
    change = describe_day_change(scheduler.cron, now)
    if change is None:
        return None
    return (
        f'scheduler.cron {change}; set scheduler.cron_days = "crontab" to confirm it, or write the '
        "days that are meant, by name (sun)"
    )


def jobs(app: "App") -> Finding:
    """Check that the runner of jobs answers and that running jobs report."""
    from consumers.reads import learning
    from daemon.jobs.runner import Active
    from daemon.jobs.runner_factory import jobs_of

    with app.reading() as connection:
        wanted = learning.open_jobs(connection)
    runner = jobs_of(app.settings)
    try:
        runner.check()
        states = {row.job: runner.state(row.job) for row in wanted}
    finally:
        runner.close()
    running = {job: state for job, state in states.items() if isinstance(state, Active)}
    for job, state in running.items():
        if state.silent > SILENT_SECONDS:
            text = f"job {job} has said nothing for {state.silent:,.0f} s"
            return False, f"{text}; kintsugi jobs cancel {job} --reason TEXT"
    where = app.settings.jobs.ray.address if app.settings.jobs.runner == "ray" else "this machine"
    return True, f"{len(wanted)} wanted, {len(running)} running; {where} answers"


def sessions(app: "App") -> Finding:
    """Check that sessions that have ended become rollouts."""
    from consumers.reads.sessions import count_backlog
    from events.envelope import utc_now

    late = timedelta(seconds=app.settings.sessions.idle_seconds) + LATE
    with app.reading() as connection:
        count = count_backlog(connection, utc_now() - late)
    if count:
        return False, f"{count:,} sessions are over and no rollouts; is kintsugi work running?"
    return True, "none waits"


def kinds(app: "App") -> Finding:
    """Check that cheaters win no agent's kind of task unless it is allowed, and that all kinds in
    the settings exist."""
    from daemon.core.kind_exclusions import list_idle_exemptions, read_agent_kinds

    agents = read_agent_kinds(app.settings)
    idle = list_idle_exemptions(app.settings, agents)
    said = [f"{agent.environment} of {agent.alias}: {agent.says}" for agent in agents if agent.says]
    said += [
        f"environments.allow_winnable names {name}, and no agent's environment has a kind of this "
        "name that cheaters play; correct or remove it"
        for name in idle
    ]
    is_safe = all(
        agent.error is None and set(agent.winnable) == set(agent.allowed) for agent in agents
    )
    return is_safe and not idle, "; ".join(said) or "no cheater is known to win one"
