"""Explain a route, adapter, job or task by its causes, back to the rollouts that led to it.

    route -> adapter -> job -> cycle -> pattern -> task, rollout
    route -> panel -> adapter -> ...
    task -> plan -> set of plans -> pattern -> rollout

All is read from the tables of one moment, so the same log gives the same answer. Actions of persons
are included: a pushed adapter ends at the person who pushed it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row, select

from consumers.folds.task_states import ACTIVE
from consumers.reads.repairs import read_repair
from consumers.reads.serving import parse_adapter
from consumers.reads.succession import find_adapter_at
from consumers.rows import find_by_prefix
from consumers.tables import (
    Adapter,
    Cycle,
    Job,
    JobRound,
    Pattern,
    PatternRound,
    PlanSet,
    ProjectionTable,
    Rollout,
    Route,
    Task,
    TaskBody,
    TaskState,
)
from events.errors import KintsugiError
from events.learning import BRANCH, OPERATOR

_NAMED: Final = 3
"""Most names of each kind in the error for an ambiguous prefix."""


class UnknownNode(KintsugiError):
    """No object has this name, or several names begin with it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an explanation: an object, and the objects that caused it."""

    node: str
    kind: str
    said: str
    """The facts about the object, in one line."""
    because: "tuple[Node, ...]" = ()


def explain(connection: Connection, name: str) -> Node:
    """Return the node of the object `name`, for most kinds also by a prefix. Raise UnknownNode."""
    node = _find(connection, name)
    if node is not None:
        return node
    names = _find_names_by_prefix(connection, name) if name else []
    if len(names) > 1:
        raise UnknownNode(
            f"several names begin with {name!r}: {', '.join(names[:_NAMED])}, ...; give more of it"
        )
    node = _find(connection, names[0]) if names else None
    if node is None:
        raise UnknownNode(
            f"no route, adapter, job, cycle, pattern, task, set of plans or rollout is called "
            f"{name!r}; see kintsugi route show, adapters ls, jobs ls, patterns and plans ls"
        )
    return node


def explain_adapter(connection: Connection, name: str) -> Node:
    """Return an adapter's node, even if an agent has the same name. Raise UnknownNode."""
    node = _adapter(connection, name)
    if node is None:
        raise UnknownNode(f"no adapter is called {name!r}; see kintsugi adapters ls")
    return node


def _find(connection: Connection, name: str) -> Node | None:
    from consumers.reads import methods

    for find in (
        _route, _adapter, _job, _cycle, find_pattern, _task, methods.find_set_node, find_rollout
    ):  # fmt: skip
        node = find(connection, name)
        if node is not None:
            return node
    return None


def _find_names_by_prefix(connection: Connection, prefix: str) -> list[str]:
    """Return a few names with this prefix, of each kind that commands show shortened."""
    columns = (
        Adapter.table().c.adapter,
        Job.table().c.job,
        Cycle.table().c.cycle,
        Rollout.table().c.rollout,
        PlanSet.table().c.plans,
        TaskBody.table().c.task,
    )
    return [
        name for column in columns for name in find_by_prefix(connection, column, prefix, _NAMED)
    ]


def _route(connection: Connection, alias: str) -> Node | None:
    row = _row(connection, Route, "alias", alias)
    if row is None:
        return None
    shares = {part["adapter"]: part["share"] for part in json.loads(row.shares)}
    held_out = row.holdout or 0.0
    who = ", ".join(
        f"{name or row.base} {(1 - held_out) * share:.0%}" for name, share in shares.items()
    )
    if held_out:
        who = f"{who}, held out on {row.base} {held_out:.0%}"
    named = [name for name in shares if name is not None]
    adapters = (
        _adapter(connection, name) for name in (*named, *_find_rollback_adapters(connection, row))
    )
    since = None if row.since is None else f"since {row.since}"
    return Node(
        alias, "route", _line(f"{row.why}: {who}", row.reason, since),
        tuple(node for node in adapters if node is not None),
    )  # fmt: skip


def _find_rollback_adapters(connection: Connection, route: Row[Any]) -> list[str]:
    if route.why != "rollback":
        return []
    adapters = Adapter.table().c
    query = select(adapters.adapter).where(
        adapters.cause == route.cause, adapters.state == "rolled_back"
    )
    return list(connection.execute(query.order_by(adapters.adapter)).scalars())


def _adapter(connection: Connection, name: str) -> Node | None:
    from consumers.reads import methods

    row = _row(connection, Adapter, "adapter", name)
    if row is None:
        return None
    version = parse_adapter(row)
    if version.merge is not None:
        because = [_adapter(connection, member.adapter) for member in version.merge.members]
    elif not version.has_files:
        because = [_adapter(connection, part) for part in version.parts]
    else:
        push = Node(row.path, "push", "an operator's directory")
        because = [push if row.job is None else _job(connection, row.job)]
    return Node(
        name, "adapter" if version.has_files else version.origin,
        _line(
            row.state, *_describe_routes(connection, name), _describe_capability(row),
            "" if version.merge is None else version.merge.summary, version.describe_members(),
            "" if row.role == "agent" else "plays users and answers no client", _gate(row.gate),
            *methods.describe_role_gate(row),
        ),
        tuple(node for node in because if node is not None),
    )  # fmt: skip


def _describe_routes(connection: Connection, adapter: str) -> list[str]:
    """Return a text for each agent that the adapter answers, with its share of the sessions."""
    routes = Route.table()
    return [
        f"answers {row.alias} now, {(1 - (row.holdout or 0.0)) * part['share']:.0%}"
        for row in connection.execute(select(routes).order_by(routes.c.alias))
        for part in json.loads(row.shares)
        if part["adapter"] == adapter
    ]


def _describe_capability(row: Row[Any]) -> str:
    return "" if row.capability is None else f"for {row.capability}"


def _gate(report: str | None) -> str:
    if report is None:
        return ""
    fields = json.loads(report)
    p_value = "" if fields["p_value"] is None else f", p = {fields['p_value']:.2g}"
    gains = [
        f"{check['name']} {100 * check['value']:+.1f}"
        for check in fields["checks"]
        if check["name"] in ("target", "overall")
    ]
    gained = f", points of pass^1: {', '.join(gains)}" if gains else ""
    words = "".join(f"; {describe_target(target)}" for target in fields.get("targets", ()))
    if fields.get("after_error") is not None:
        words += f"; {describe_after_error(fields['after_error'])}"
    if fields.get("evidence") is not None:
        words += f"; {describe_evidence(fields['evidence'])}"
    return f"gate {fields['decision']} over {fields['tasks']} tasks{p_value}{gained}{words}"


def describe_after_error(measured: dict[str, Any]) -> str:
    """Describe the gate's result on tasks after refused calls: pass rates, and growth in tokens."""
    growths = [
        f"{100 * growth:+.0f} % {where} a refused call"
        for where, growth in (
            ("with", measured["token_growth"]),
            ("without", measured["clean_token_growth"]),
        )
        if growth is not None
    ]
    tokens = f", tokens {', '.join(growths)}" if growths else ""
    return (
        f"after an error {measured['incumbent']:.0%} to {measured['candidate']:.0%} over "
        f"{measured['tasks']} tasks{tokens}"
    )


def describe_evidence(measured: dict[str, Any]) -> str:
    """Describe how both adapters support their answers by look-ups, the incumbent's first."""
    both = measured["incumbent"], measured["candidate"]
    shares = [own["passed_without_lookup"] / max(1, own["passed"]) for own in both]
    values = [f"{own['unseen_values']:.2g}" for own in both]
    tokens = [f"{own['tokens_per_answer'] or 0:.0f}" for own in both]
    return (
        f"without a look-up {100 * shares[0]:.0f} % to {100 * shares[1]:.0f} % of the passed, "
        f"unseen values {' to '.join(values)} a rollout, tokens {' to '.join(tokens)} an answer"
    )


def describe_target(target: dict[str, Any]) -> str:
    """Describe the gate's result on a target, and the smallest gain that it could have detected."""
    verdict = {"PASS": "lifted", "FAIL": "not lifted"}.get(target["verdict"], "open")
    text = f"{target['name']} {verdict}, {100 * target['gain']:+.1f} points"
    if target["detectable"] is None:
        return text
    return f"{text}, could have seen {100 * target['detectable']:+.1f} with 80 %"


def _job(connection: Connection, name: str) -> Node | None:
    from consumers.reads import methods

    row = _row(connection, Job, "job", name)
    if row is None:
        return None
    done = f"{row.steps} steps, {row.rollouts} rollouts" if row.steps else ""
    cycle = None if row.cycle is None else _cycle(connection, row.cycle)
    rounds = (_build_round_node(connection, item) for item in _read_rounds(connection, "job", name))
    spec = json.loads(row.spec)
    parent = _find_parent_adapter(connection, spec["parent"])
    because = (parent, *rounds, cycle, *_list_added_tasks(connection, row.alias, spec["pools"]))
    return Node(
        name, "job",
        _line(
            row.outcome or "open", _describe_aim(row), methods.describe_retraining(connection, row),
            done, methods.describe_pools(spec["pools"]), row.reason
        ),
        tuple(node for node in because if node is not None),
    )  # fmt: skip


def _describe_aim(job: Row[Any]) -> str:
    if job.teaches == "user":
        pools = json.loads(job.spec)["pools"]
        shown = sum(len(pool.get("successes", ())) for pool in pools)
        gold = sum(len(pool["references"]) for pool in pools)
        return f"teaches a user by {shown:,} recorded dialogues and {gold:,} of the oracle"
    if job.teaches is not None:
        return f"teaches a {job.teaches}"
    branch = job._mapping[BRANCH]
    return "" if branch is None else f"for the {BRANCH} {branch}"


def _list_added_tasks(
    connection: Connection, alias: str, pools: Sequence[dict[str, Any]]
) -> list[Node]:
    """Return a node for each task that a job draws and an operator added for no pattern."""
    drawn = [task for pool in pools if pool["name"] == OPERATOR for task in pool["tasks"]]
    tasks = Task.table()
    query = select(tasks).where(tasks.c.alias == alias, tasks.c.task.in_(drawn))
    rows = connection.execute(query.order_by(tasks.c.task)).all() if drawn else ()
    return [_task_node(connection, row) for row in rows]


def _read_rounds(
    connection: Connection, key: Literal["job", "cycle"], name: str
) -> Sequence[Row[Any]]:
    """Return the rounds of a job, or of all jobs of a cycle, in order."""
    table = JobRound.table()
    query = select(table).where(table.c[key] == name)
    return connection.execute(query.order_by(table.c.job, table.c.number)).all()


def _build_round_node(connection: Connection, row: Row[Any]) -> Node:
    quotas = json.loads(row.directive)["quotas"]
    counts = f"{row.failures} failures in {row.rollouts} rollouts" if row.pools else "not closed"
    moved = [
        f"{pool['pool']} {pool['before']:.0%} to {pool['share']:.0%}"
        for pool in json.loads(row.pools or "[]")
        if pool["share"] != pool["before"]
    ]
    return Node(
        f"{row.job}/round/{row.number}", "job round",
        _line(f"round {row.number}", counts, f"pools: {', '.join(moved)}" if moved else ""),
        tuple(_build_round_pattern_node(connection, row, quota) for quota in quotas),
    )  # fmt: skip


def _build_round_pattern_node(connection: Connection, row: Row[Any], quota: dict[str, Any]) -> Node:
    tasks = Task.table()
    query = select(tasks).where(
        tasks.c.task.in_(json.loads(row.tasks)),
        tasks.c.cycle == row.cycle,
        tasks.c.pattern == quota["pattern"],
    )
    written = connection.execute(query.order_by(tasks.c.task)).all()
    return _build_quota_node(connection, quota, quota["status"], written)


def _build_quota_node(
    connection: Connection, quota: dict[str, Any], begins: str, written: Sequence[Row[Any]]
) -> Node:
    """Return the pattern of a quota, its examples, and the tasks that were written for it."""
    rollouts = (find_rollout(connection, name) for name in quota["examples"])
    return Node(
        quota["pattern"], "pattern",
        _line(
            begins, f"priority {quota['priority']:.3g}", f"{len(written)} tasks written",
            *_describe_weakness(quota)
        ),
        (
            *(node for node in rollouts if node is not None),
            *(_task_node(connection, row) for row in written),
        ),
    )  # fmt: skip


def _find_parent_adapter(connection: Connection, folder: str | None) -> Node | None:
    """Return a node for the adapter whose weights a job continued, without its causes."""
    parent = None if folder is None else find_adapter_at(connection, folder)
    row = None if parent is None else _row(connection, Adapter, "adapter", parent.adapter)
    if row is None:
        return None
    rejected = "" if row.gate is None or row.state == "promoted" else _gate(row.gate)
    text = _line("the job went on from its weights", row.state, _describe_capability(row), rejected)
    return Node(row.adapter, "adapter", text)


def _cycle(connection: Connection, name: str) -> Node | None:
    row = _row(connection, Cycle, "cycle", name)
    if row is None:
        return None
    quotas = json.loads(row.directive)["quotas"] if row.directive is not None else []
    return Node(
        name, "cycle",
        _line(f"{row.trigger}: {row.reason}", row.outcome or "open", row.ended_because),
        tuple(_build_pattern_node(connection, row, quota) for quota in quotas),
    )  # fmt: skip


def _build_pattern_node(connection: Connection, cycle: Row[Any], quota: dict[str, Any]) -> Node:
    """Return a node for a pattern in a cycle, with the tasks that it wrote before its job."""
    tasks = Task.table()
    query = select(tasks).where(tasks.c.cycle == cycle.cycle, tasks.c.pattern == quota["pattern"])
    later = _read_tasks_of_rounds(connection, cycle.cycle)
    written = [
        task
        for task in connection.execute(query.order_by(tasks.c.task)).all()
        if task.task not in later
    ]
    numbers = _of_round(connection, cycle, quota["pattern"])
    return _build_quota_node(connection, quota, numbers, written)


def _read_tasks_of_rounds(connection: Connection, cycle: str) -> set[str]:
    rounds = _read_rounds(connection, "cycle", cycle)
    return {task for row in rounds for task in json.loads(row.tasks)}


def _describe_weakness(quota: dict[str, Any]) -> tuple[str, ...]:
    cause = quota.get("root_cause")
    choices = (
        f"{choice['tasks']} by {choice['mode']}: {choice['reason']}"
        for choice in quota.get("modes", ())
    )
    return quota.get("description", ""), f"cause: {cause}" if cause else "", *choices


def _of_round(connection: Connection, cycle: Row[Any], pattern: str) -> str:
    rounds = PatternRound.table()
    row = connection.execute(
        select(rounds).where(
            rounds.c.alias == cycle.alias, rounds.c.base == cycle.base,
            rounds.c.pattern == pattern, rounds.c.round == cycle.round,
        )
    ).first()  # fmt: skip
    return "" if row is None else f"{row.failures} of {row.failed} failures, {row.status}"


def find_pattern(connection: Connection, name: str) -> Node | None:
    """Return the node of a pattern, for the agent in which it has the highest priority."""
    patterns = Pattern.table()
    row = connection.execute(
        select(patterns)
        .where(patterns.c.pattern == name)
        .order_by(patterns.c.priority.desc(), patterns.c.alias, patterns.c.base)
    ).first()
    if row is None:
        return None
    rollouts = (find_rollout(connection, item) for item in json.loads(row.examples))
    return Node(
        name, "pattern",
        _line(
            f"{row.alias} on {row.base}",
            f"{row.failures} failures, {row.status}",
            None if row.operator is None else f"{row.operator}: {row.operator_reason}",
        ),
        tuple(item for item in rollouts if item is not None),
    )  # fmt: skip


def _task(connection: Connection, name: str) -> Node | None:
    from consumers.reads import methods

    row = _row(connection, Task, "task", name)
    if row is None:
        state = _row(connection, TaskState, "task", name)
        return None if state is None else Node(name, "task", _line(state.state, state.reason))
    plan = methods.build_plan_node(connection, row)
    node = _task_node(connection, row, _describe_motive(connection, row), plan)
    return replace(node, because=(*node.because, *methods.build_verdict_nodes(connection, row)))


def _describe_motive(connection: Connection, task: Row[Any]) -> tuple[str, ...]:
    cycle = None if task.cycle is None else _row(connection, Cycle, "cycle", task.cycle)
    if cycle is None or cycle.directive is None:
        return ()
    rounds = _read_rounds(connection, "cycle", cycle.cycle)
    directive = next(
        (row.directive for row in rounds if task.task in json.loads(row.tasks)), cycle.directive
    )
    quotas = json.loads(directive)["quotas"]
    quota = next((quota for quota in quotas if quota["pattern"] == task.pattern), None)
    return () if quota is None else (quota["status"].lower(), *_describe_weakness(quota))


def _task_node(
    connection: Connection, row: Row[Any], motive: tuple[str, ...] = (), plan: Node | None = None
) -> Node:
    from consumers.reads import methods

    state = _describe_state(connection, row)
    if row.origin != "proposed":
        return Node(row.task, "task", _line("attempted", row.environment, state))
    source = None if row.source_rollout is None else find_rollout(connection, row.source_rollout)
    checks = len(json.loads(row.verified)) if row.verified else 0
    return Node(
        row.task, "task",
        _line(
            _describe_origin(row), row.mode, _describe_plan(row),
            methods.describe_content(connection, row.task), f"{checks} checks passed", *motive,
            state,
        ),
        tuple(node for node in (plan, source) if node is not None),
    )  # fmt: skip


def _describe_plan(task: Row[Any]) -> str:
    return "" if task.plan is None else f"by plan {task.plan}, revision {task.plan_revision}"


def _describe_origin(task: Row[Any]) -> str:
    if task.cycle is not None:
        return f"written for {task.pattern}"
    purpose = "" if task.pattern == OPERATOR else f" for {task.pattern}"
    return f"added by {task.text_by or 'an operator'}{purpose}"


def _describe_state(connection: Connection, task: Row[Any]) -> str:
    states = TaskState.table()
    query = select(states).where(states.c.alias == task.alias, states.c.task == task.task)
    row = connection.execute(query).first()
    if row is None or row.state == ACTIVE:
        return ""
    return f"{row.state}: {row.reason}" if row.reason else str(row.state)


def find_rollout(connection: Connection, name: str) -> Node | None:
    row = _row(connection, Rollout, "rollout", name)
    if row is None:
        return None
    verdict = {True: "passed", False: "failed", None: "unjudged"}[row.success]
    # The log has no messages of training rollouts, so their label means nothing.
    labelled = row.category is not None and row.purpose != "train"
    what = f"{row.category}|{row.pivot}" if labelled else None
    repair = read_repair(connection, name)
    if repair is not None and repair.category is not None:
        what = f"{repair.category}|{repair.pivot} by its repair, {what} by the rules"
    return Node(name, "rollout", _line(verdict, what, row.task, f"by {row.policy}"))


def _row(
    connection: Connection, table: type[ProjectionTable], key: str, value: str
) -> Row[Any] | None:
    """Return the row with this value, the first one if several agents have it."""
    sql_table = table.table()
    query = (
        select(sql_table).where(sql_table.c[key] == value).order_by(*sql_table.primary_key.columns)
    )
    return connection.execute(query.limit(1)).first()


def _line(*parts: str | None) -> str:
    return "; ".join(part for part in parts if part)
