"""Checks of serving: files of adapters, routes of gateways, canaries and engines."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import httpx2

from daemon.status.doctor.finding import Finding
from events.envelope import parse_timestamp, utc_now

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumers.reads.serving import AdapterRow, RouteRow, RouteTable
    from daemon.core.app import App

_SECONDS: Final = 5.0
"""Seconds for an engine to list its models."""

_HEARD_SECONDS: Final = 10.0
"""Seconds in which a gateway must notice a route; it looks several times a second."""


def adapters(app: "App") -> Finding:
    """Check that adapters which answer still have the files with which they were produced."""
    from consumers.reads import serving

    with app.reading() as connection:
        answering = list(_find_adapters_in_use(serving.route_table(connection)))
    # With the embedded log there is no other machine, so a missing folder, as after
    # a restore of the log alone, is lost.
    folders = {row.adapter: app.settings.adapter_paths.locate(row.path) for row in answering}
    here = [row for row in answering if not app.on_kafka or folders[row.adapter].parent.exists()]
    lost = [row for row in here if not folders[row.adapter].is_dir()]
    if lost:
        text = f"{folders[lost[0].adapter]} answers and is not there; restore it, or roll it back"
        return False, f"{text}: kintsugi adapters rollback {lost[0].alias} --reason TEXT"
    check_whole(app, here)
    elsewhere = len(answering) - len(here)
    return True, f"{len(here)} answer and are whole; {elsewhere} are kept on other machines"


def check_whole(app: "App", rows: "Sequence[AdapterRow]") -> None:
    """Raise BadAdapter for the first adapter whose files differ from those that were produced."""
    from daemon.adapters.adoption import intact

    for row in rows:
        intact(app.settings.adapter_paths.locate(row.path), row.sha256, None, None)


def _find_adapters_in_use(table: "RouteTable") -> "Iterator[AdapterRow]":
    from daemon.serving.fleet import expand_versions

    for route in table.routes:
        names = {part.adapter for part in route.standing.shares} | {route.standing.shadow}
        for name in sorted(filter(None, expand_versions(names, table.adapters))):
            row = table.adapter(name)
            if row is not None:
                yield row


def gateways(app: "App") -> Finding:
    """Check that every live gateway has applied the newest route."""
    from consumers.reads import gateways, serving

    with app.reading() as connection:
        routes = serving.route_table(connection).routes
        newest = max((row.offset for row in routes if _is_past_grace(row)), default=-1)
        live = gateways.read_live_gateways(connection, app.settings.serving.gateway_timeout_seconds)
    late = [gateway.report for gateway in live if gateway.report.position <= newest]
    if late:
        text = f"gateway {late[0].gateway} on {late[0].host} has routes of position"
        return False, f"{text} {late[0].position}, the newest is {newest}; can it read the tables?"
    return True, f"{len(live)} live"


def canaries(app: "App") -> Finding:
    """Check that a canary's sessions and its incumbent's are judged equally often, up to chance."""
    from daemon.serving.canary_monitor import Guards
    from daemon.serving.sequential_test import UNEQUAL

    with app.reading() as connection:
        watched = Guards(app).look(connection)
    for entry in watched:
        guard = entry.guard
        if guard.imbalance >= UNEQUAL:
            return False, (
                f"{guard.count_verdicts('canary')} sessions of {entry.canary.adapter} were judged "
                "where its "
                f"shares foretell {guard.share_sum:.1f}: it is not promoted; find out why sessions "
                "of one are judged more often than the other's (are its calls answered by others?)"
            )
    if not watched:
        return True, "none"
    return True, "; ".join(
        f"{entry.canary.adapter}: {entry.guard.count_verdicts('canary')} judged sessions, evidence "
        f"{entry.guard.against:.3g} that it is worse and {entry.guard.towards:.3g} that it is not"
        for entry in watched
    )


def holdout(app: "App") -> Finding:
    """Check that sessions are held out, and judged, as often as the held-out share predicts."""
    from daemon.serving.lift import read_lifts
    from daemon.status.stages import describe_lift

    with app.reading() as connection:
        lifts = read_lifts(connection)
    for lift in lifts:
        arms = (lift.holdout, lift.loop)
        if not lift.shares_ok:
            held, others = (arm.sessions for arm in arms)
            return False, (
                f"{held:,} of {held + others:,} sessions of {lift.alias} were held out where "
                f"{lift.share:.1%} should be: its lift is not to be relied on; find out which "
                "sessions are lost, or begin anew (docs/runbooks/holdout-shares-off.md)"
            )
        if not lift.judged_ok:
            judged, rest = (f"{arm.judged:,} of {arm.due:,}" for arm in arms)
            return False, (
                f"{judged} held-out sessions of {lift.alias} are judged, and {rest} of the others: "
                "its lift is not to be relied on; find out why one arm is judged more often "
                "(docs/runbooks/holdout-shares-off.md)"
            )
    return True, "; ".join(describe_lift(asdict(lift)) for lift in lifts) or "none"


def _is_past_grace(route: "RouteRow") -> bool:
    if route.since is None:
        return True
    return (utc_now() - parse_timestamp(route.since)).total_seconds() > _HEARD_SECONDS


def checkpoints(app: "App") -> Finding:
    """Check that the agents' checkpoints on this machine have a token that ends answers."""
    from daemon.adapters.end_tokens import find_trouble

    folders = {agent.checkpoint for agent in app.settings.agents} | {app.settings.engine.model}
    here = sorted(folder for folder in folders if folder is not None and folder.is_dir())
    troubles = [trouble for folder in here if (trouble := find_trouble(folder)) is not None]
    if troubles:
        return False, "; ".join(troubles)
    return True, f"{len(here)} on this machine"


def engines(app: "App") -> Finding:
    """Check that every configured engine lists its models."""
    from daemon.config.upstreams import key_of

    urls = [upstream.url.rstrip("/") for upstream in app.settings.upstreams]
    if not urls:
        return True, "none is configured; examine one with kintsugi doctor --upstream URL"
    for url in urls:
        key = key_of(app.settings, url)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        try:
            answer = httpx2.get(f"{url}/models", headers=headers, timeout=_SECONDS, trust_env=False)
        except httpx2.HTTPError as error:
            return False, f"{url} does not answer ({type(error).__name__}: {error}); start it"
        if answer.status_code in (401, 403):
            text = f"{url}/models answers {answer.status_code}, so it does not know the key"
            return False, f"{text}; correct upstreams[].api_key"
        if answer.status_code != 200:
            return False, f"{url}/models answers {answer.status_code}; see its log"
    return True, f"{', '.join(urls)} answer"
