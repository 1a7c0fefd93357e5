"""`kintsugi plans` over sets that the log brought: events, folds, tables and commands are real."""

from pathlib import Path

import pytest

from daemon.config.settings import Log, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.methods.synthesis.metrics import SYNTHESIS, say_synthesis
from daemon.metrics.families import Sheet
from events.envelope import derive_id
from events.learning import Decision, PlanName, TaskProposed, TaskRejected
from events.rollouts import Task
from events.synthesis.faults import FaultOpinion, TrajectoryVerified
from events.synthesis.plans import Plan, PlanRevision, PlanRule, PlansRevised, PlansWritten
from tests.consumers.cycling import PATTERN, cycle_id, directed, started
from tests.daemon.conftest import Kintsugi
from tests.daemon.metrics.scene import labelled, series

SET = derive_id("plans", "the first")
OTHER = derive_id("plans", "the second")


def plan(name: str, kind: str = "cancel") -> Plan:
    return Plan(
        plan=name, domain="orders", kind=kind, complexity="simple", tool_mode="write",
        tools=("cancel_order",), manner="brief", writing=f"Write about {kind}.",
        judging="One order is cancelled.",
    )  # fmt: skip


def attempt(name: str, number: int, accepted: bool, revision: int = 0) -> Decision:
    followed = PlanName(plans=SET, plan=name, revision=revision)
    if accepted:
        return TaskProposed(
            alias="agent", base="base", task=Task(id=f"shop/cancel/{number}", environment="shop"),
            pattern=PATTERN, cycle=cycle_id(), mode="synthesize", plan=followed,
        )  # fmt: skip
    return TaskRejected(
        cycle=cycle_id(),
        alias="agent",
        base="base",
        pattern=PATTERN,
        mode="synthesize",
        check="leak",
        reason="the user names the tool",
        plan=followed,
    )


def revise(kept: bool) -> PlanRevision:
    revised = plan("p00").model_copy(
        update={"rules": (PlanRule(aspect="writing", check="leak", text="Name no tool."),)}
    )
    return PlanRevision(
        before=PlanName(plans=SET, plan="p00"), plan=revised, reason="2 of 3 tries failed leak",
        failures=("event-1",), tries_before=3, accepted_before=1, tries=2, accepted=2, kept=kept,
    )  # fmt: skip


def write_plans(name: str, *entries: Plan, writer: str | None = None) -> PlansWritten:
    return PlansWritten(
        plans=name, alias="agent", base="base", environment="shop", cycle=cycle_id(),
        patterns=(PATTERN,), entries=entries, overlap=0.25, uncovered=("list_orders",),
        writer=writer,
    )  # fmt: skip


@pytest.fixture
def recorded(home: Path) -> Path:
    """A home with two sets, of which the first has tries, a kept revision and a verdict."""
    decisions = [
        started(), directed(), write_plans(SET, plan("p00"), plan("p01", "return")),
        attempt("p00", 0, accepted=True), attempt("p00", 1, accepted=False),
        attempt("p00", 2, accepted=False), attempt("p01", 3, accepted=True),
        PlansRevised(
            plans=SET, alias="agent", base="base", cycle=cycle_id(), round=1,
            revisions=(revise(kept=True),), stopped="the gain is below 2 points",
        ),
        TrajectoryVerified(
            alias="agent", base="base", task="shop/cancel/3", rollout="rollout-1", fault="user",
            rule="early_end", plan=PlanName(plans=SET, plan="p01"),
            opinion=FaultOpinion(model="big", fault="trajectory"),
        ),
        write_plans(OTHER, plan("p00"), writer="big"),
    ]  # fmt: skip
    with App(Settings(home=home, log=Log(durability="process"))) as app:
        app.settle()
        Decisions(app).record(
            {derive_id("test", str(place)): data for place, data in enumerate(decisions)}, "test"
        )
    return home


def test_sets_are_listed_with_what_their_plans_came_to(recorded: Path, kintsugi: Kintsugi) -> None:
    first, second = kintsugi("plans", "ls", "--json").json
    assert list(first)[:12] == [
        "plans", "alias", "base", "environment", "patterns", "writer", "plans_count", "tries",
        "accepted", "rounds", "stopped", "state",
    ]  # fmt: skip
    # A revision that is kept begins with its own tries, 2 of 2, and p01 has 1 of 1.
    assert (first["plans"], first["tries"], first["accepted"]) == (SET, 3, 3)
    assert (first["plans_count"], first["rounds"], first["state"]) == (2, 1, "stopped")
    assert first["faults"] == {"task": 0, "user": 1, "trajectory": 0}
    assert first["disagreements"] == 1
    assert (second["writer"], second["state"], second["patterns"]) == ("big", "open", [PATTERN])
    text = kintsugi("plans", "ls").out
    assert "3 of 3" in text
    assert "rules" in text
    assert SET[:12] in text
    assert kintsugi("plans", "ls", "--base", "other", "--json").json == []


def test_a_set_is_shown_with_texts_faults_and_revisions(recorded: Path, kintsugi: Kintsugi) -> None:
    shown = kintsugi("plans", "show", SET[:20], "--json").json
    assert [entry["plan"] for entry in shown["entries"]] == ["p00", "p01"]
    revised, other = shown["entries"]
    assert (revised["revision"], revised["tries"], revised["accepted"]) == (1, 2, 2)
    assert revised["rules"] == [{"aspect": "writing", "check": "leak", "text": "Name no tool."}]
    (change,) = revised["revisions"]
    assert (change["kept"], change["failures"], change["round"]) == (True, ["event-1"], 1)
    assert (change["tries_before"], change["accepted_before"]) == (3, 1)
    assert other["revisions"] == []
    assert (other["faults"]["user"], other["disagreements"]) == (1, 1)
    text = kintsugi("plans", "show", SET).out
    for words in ("2 of 2", "event-1", "user: 1", "list_orders", "the gain is below 2 points"):
        assert words in text
    single = kintsugi("plans", "show", SET, "p01")
    assert "Write about return." in single.out
    assert "Write about cancel." not in single.out
    assert [
        entry["plan"] for entry in kintsugi("plans", "show", SET, "p01", "--json").json["entries"]
    ] == ["p01"]


def test_what_is_not_there_is_named_with_a_remedy(recorded: Path, kintsugi: Kintsugi) -> None:
    unknown = kintsugi("plans", "show", "nothing")
    assert (unknown.code, "see kintsugi plans ls" in unknown.err) == (1, True)
    several = kintsugi("plans", "show", SET, "p0")
    assert (several.code, "several plans begin with 'p0'" in several.err) == (1, True)
    none = kintsugi("plans", "show", SET, "p7")
    assert (none.code, "it has: p00, p01" in none.err) == (1, True)
    agent = kintsugi("plans", "ls", "--alias", "nobody")
    assert (agent.code, "no agent 'nobody' was seen" in agent.err) == (2, True)


def test_without_plans_the_remedy_is_the_setting(home: Path, kintsugi: Kintsugi) -> None:
    empty = kintsugi("plans", "ls")
    assert empty.code == 0
    assert "improve.synthesis" in empty.err


def test_metrics_count_tries_faults_and_revisions(recorded: Path) -> None:
    with App(Settings(home=recorded, log=Log(durability="process"))) as app:
        sheet = Sheet(SYNTHESIS)
        with app.reading() as connection:
            say_synthesis(connection, sheet, ["agent", "another"])
    values = series(sheet.metrics())

    def value(name: str, alias: str = "agent", **labels: str) -> float:
        return values[labelled(f"kintsugi_{name}_total", alias=alias, **labels)]

    # Of all revisions, where `plans ls` has those of the present one.
    assert value("plan_tries", writer="rules", verdict="accepted") == 2
    assert value("plan_tries", writer="rules", verdict="rejected") == 2
    assert value("plan_tries", writer="model", verdict="accepted") == 0
    assert value("plan_revisions", verdict="kept") == 1
    assert value("plan_revisions", verdict="refused") == 0
    assert value("trajectory_faults", fault="user") == 1
    assert value("trajectory_faults", fault="task") == 0
    assert value("trajectory_disagreements") == 1
    assert value("plan_tries", "another", writer="rules", verdict="accepted") == 0


def test_a_task_is_explained_by_its_plan_down_to_the_pattern(
    recorded: Path, kintsugi: Kintsugi
) -> None:
    task = kintsugi("explain", "shop/cancel/0", "--json").json
    assert "by plan p00, revision 0" in task["said"]
    (plan_node,) = task["because"]
    assert (plan_node["kind"], plan_node["node"]) == ("plan", f"{SET}/p00")
    assert "revision 0, it is at revision 1 now; 1 of 1 revisions kept" in plan_node["said"]
    assert "written by rules" in plan_node["said"]
    (set_node,) = plan_node["because"]
    assert (set_node["kind"], set_node["node"]) == ("plans", SET)
    assert "3 of 3 tries accepted, rollouts failed: 1 by the user" in set_node["said"]
    assert kintsugi("explain", SET[:16], "--json").json["node"] == SET
