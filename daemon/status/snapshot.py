"""The state of the loop as one document, for `kintsugi status` and the status page. The tables are
read in one transaction, and the log right after. Scripts may rely on the names; fields may be
added. If the log cannot be reached, its fields are null and the document has the reason."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from consumers.reads.learning import CycleRow, JobRow
    from consumers.reads.rollouts import RoundLine
    from daemon.core.app import App
    from daemon.core.health import FoldState
    from daemon.cycle.outlook import Outlook
    from daemon.evaluation.gate_waits import GateWait
    from daemon.jobs.runner import JobRunner


def situation(app: "App") -> dict[str, Any]:
    """Return the state of the loop as a JSON document. Raise DatabaseUnavailable."""
    from consumers.reads import learning, rollouts
    from consumers.reads.cycle_state import read_cycle_state
    from consumers.reads.repairs import REPAIR_RULES, count_repairs
    from consumers.reads.serving import adapter_lines, list_fields, route_lines
    from daemon.core.health import read_fold_state
    from daemon.core.kind_exclusions import read_agent_kinds
    from daemon.cycle.methods import describe_branches, read_documents
    from daemon.cycle.outlook import read_outlooks
    from daemon.cycle.views import read_step
    from daemon.serving.lift import read_lifts
    from events.envelope import utc_now

    with app.reading() as connection:
        counts = rollouts.count_backlog(connection)
        repairs = count_repairs(connection, REPAIR_RULES)
        letters = rollouts.dead_letter_counts(connection)
        rules = _rules(connection)
        line = rollouts.last_round(connection)
        routes, adapters = route_lines(connection), adapter_lines(connection, collected=False)
        reached = read_fold_state(connection)
        cycle = learning.newest_cycle(connection)
        step = None if cycle is None else read_step(connection, app.settings, cycle)
        now = utc_now()
        expected = read_outlooks(connection, app.settings, now)
        state = None if cycle is None else read_cycle_state(connection, cycle)
        branches = [] if state is None else describe_branches(connection, app.settings, state)
        job = _newest_job(connection)
        leading, gateways = _leader(connection), _gateways(app, connection)
        lifts, methods = read_lifts(connection), read_documents(app, connection, now)
    gates = _list_gate_waits(app)
    return {
        **_log(app, reached),
        "rollouts": counts.rollouts,
        "undiagnosed": counts.undiagnosed,
        "unjudged": counts.unjudged,
        "repairs": asdict(repairs),
        "dead_letters": sum(letters.values()),
        "cycle": {**_round(line), **_cycle(cycle, step), "jobs": branches},
        **rules,
        "kinds": [asdict(kinds) for kinds in read_agent_kinds(app.settings)],
        "next_cycle": _next_cycle(expected),
        **methods,
        "users": [_add_wait(document, gates) for document in methods["users"]],
        "job": None if job is None else _job(app, job),
        "gates": [asdict(gate) for gate in gates],
        "routes": [asdict(route) for route in routes],
        "lift": [asdict(lift) for lift in lifts],
        "adapters": [list_fields(adapter) for adapter in adapters],
        "leader": leading,
        "gateways": gateways,
        "home": str(app.settings.home),
    }


def _rules(connection: "Connection") -> dict[str, Any]:
    """Return the changes of grading rules, and the counts of verdicts that older rules gave."""
    from consumers.reads.rollouts import count_older_verdicts, read_rule_changes

    changes, older = read_rule_changes(connection), count_older_verdicts(connection)
    return {
        "rule_changes": [{**asdict(change), "says": change.sentence} for change in changes],
        "older_verdicts": [{**asdict(count), "says": count.sentence} for count in older],
    }


def _log(app: "App", reached: "FoldState") -> dict[str, Any]:
    """Return streams, lag and halts, or null and the reason if the log cannot be reached."""
    from daemon.core.health import describe_gaps, halts, lag, streams
    from events.errors import LogError

    where = app.settings.kafka_bootstrap_servers or str(app.settings.home / "log.db")
    try:
        log = app.readable_log
        halted = halts(log, reached)
        return {
            "streams": streams(app),
            "lag": lag(log, reached),
            "log": {"at": where, "error": None},
            "projection": {
                "state": "halted" if halted else "live",
                "halted": halted,
                "gaps": describe_gaps(log, reached),
            },
        }
    except LogError as error:
        return {
            "streams": None,
            "lag": None,
            "log": {"at": where, "error": str(error)},
            "projection": {"state": "unknown", "halted": [], "gaps": reached.gaps},
        }


def _round(line: "RoundLine | None") -> dict[str, Any]:
    """Return the last round of the training history; `round` is null before the first."""
    names = (
        "round", "trigger", "rollouts", "judged", "unjudged", "failed", "patterns", "other", "time",
    )  # fmt: skip
    return {name: getattr(line, name) if line else None for name in names}


def _cycle(row: "CycleRow | None", step: str | None) -> dict[str, Any]:
    """Return the open cycle, else the last one; `cycle` is null before the first."""
    names = (
        "cycle", "alias", "base", "number", "reason", "job", "outcome", "ended_because", "started",
        "ended",
    )  # fmt: skip
    return {
        **{name: getattr(row, name) if row else None for name in names},
        "due_by": row.trigger if row else None,
        "step": step,
    }


def _next_cycle(expected: "list[Outlook]") -> dict[str, Any]:
    """Return the missing conditions of the next cycle, over all agents and for each."""
    from daemon.cycle.outlook import describe_unusable

    several = len(expected) > 1
    missing = [
        f"{outlook.alias}: {sentence}" if several else sentence
        for outlook in expected
        for sentence in outlook.missing
    ]
    return {
        "due": any(outlook.due for outlook in expected),
        "missing": missing if expected else ["rollouts: none is recorded"],
        "agents": [
            {**asdict(outlook), "unusable_text": describe_unusable(outlook.unusable) or None}
            for outlook in expected
        ],
    }


def _newest_job(connection: "Connection") -> "JobRow | None":
    """Return the running job, else the last requested one."""
    from consumers.reads import learning

    running = learning.open_jobs(connection)
    return next(iter(running or learning.jobs(connection, limit=1)), None)


def _job(app: "App", row: "JobRow") -> dict[str, Any]:
    """Return a job, with its newest figures if its folder is on this machine."""
    from consumers.reads.learning import list_fields
    from daemon.cycle.methods import describe_job
    from daemon.jobs.attempts import JobFolder
    from daemon.jobs.runner_factory import jobs_of
    from daemon.jobs.updates import newest_update
    from events.learning import BRANCH

    names = (
        "job", "alias", "capability", BRANCH, "teaches", "outcome", "reason", "adapter",
        "requested", "ended",
    )  # fmt: skip
    fields, runner = list_fields(row), jobs_of(app.settings)
    attempts = JobFolder(runner.folder(row.job)).attempts()
    waits_for = _list_user_endpoints(app, runner, row)
    runner.close()
    newest = next(
        (update for attempt in reversed(attempts) if (update := newest_update(attempt))), None
    )
    return {
        **{name: fields[name] for name in names},
        "steps": row.steps if newest is None else newest.steps,
        "rollouts": row.rollouts if newest is None else newest.rollouts,
        "budget": None if newest is None else newest.budget,
        "reward": None if newest is None else newest.metrics.get("reward"),
        **describe_job(row.spec),
        "waits_for": waits_for,
    }


def _list_user_endpoints(app: "App", runner: "JobRunner", row: "JobRow") -> list[str]:
    """Return the URLs of user models that an open job's next attempt on this machine waits for."""
    from daemon.jobs.runner import Absent, Again, Exit, verdict
    from events.jobs import EndpointUser

    users = [pool.user for pool in row.spec.pools]
    urls = dict.fromkeys(user.url for user in users if isinstance(user, EndpointUser))
    if row.outcome is not None or not urls or not runner.hands_keys:
        return []
    state = runner.state(row.job)
    is_next = isinstance(state, Absent) or (
        isinstance(state, Exit) and isinstance(verdict(state, app.settings.jobs.attempts), Again)
    )
    return list(urls) if is_next else []


def _list_gate_waits(app: "App") -> "list[GateWait]":
    """Return the gates on this machine without a running trial, with their missing conditions."""
    from daemon.cycle.methods import build_user_worker, open_user_trials
    from daemon.cycle.worker import CycleWorker
    from daemon.jobs.runner_factory import trials_of
    from daemon.serving.fleet import Fleet
    from events.envelope import utc_now

    trials, user_trials = trials_of(app.settings), open_user_trials(app.settings)
    try:
        if not trials.hands_keys:
            return []
        fleet = Fleet((), app.settings.home)
        return [
            *CycleWorker(app, fleet, trials, utc_now).list_gate_waits(),
            *build_user_worker(app, fleet, user_trials, utc_now).list_gate_waits(),
        ]
    finally:
        trials.close()
        user_trials.close()


def _add_wait(document: dict[str, Any], gates: "Sequence[GateWait]") -> dict[str, Any]:
    own = [gate.says for gate in gates if (gate.role, gate.alias) == ("user", document["alias"])]
    return {**document, "says": "; ".join([document["says"], *own])}


def _leader(connection: "Connection") -> dict[str, Any] | None:
    """Return the leader and its lease; None if no process leads, or the leader resigned."""
    from consumers import leases
    from daemon.core.leadership import LEASE

    held = leases.read_lease(connection, LEASE)
    if held is None:
        return None
    return {"holder": held.holder, "epoch": held.epoch, "seconds_left": round(held.seconds, 1)}


def _gateways(app: "App", connection: "Connection") -> list[dict[str, Any]]:
    from consumers.reads import gateways

    return [
        {
            "gateway": gateway.report.gateway,
            "host": gateway.report.host,
            "position": gateway.report.position,
            "in_flight": sum(gateway.report.in_flight.values()),
            "open_sessions": sum(gateway.report.open_sessions.values()),
            "running_seconds": round(gateway.running_seconds, 1),
        }
        for gateway in gateways.read_live_gateways(
            connection, app.settings.serving.gateway_timeout_seconds
        )
    ]
