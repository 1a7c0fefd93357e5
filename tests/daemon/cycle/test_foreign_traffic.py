"""Traffic of one key cannot starve a cycle: settings, log, tables and the environment are real.

`shopfront` sends the agent's own sessions, on tasks of its environment. `partner` may name tasks as
well, and names others.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from consumers import database
from consumers.diagnosis.round_counts import Pair
from consumers.digest import digest
from consumers.reads import learning, rollouts
from consumers.reads.planning import UnusableFailures
from consumers.reads.scheduling import CYCLE_START
from daemon.config.settings import Agent, Log, Proposer, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.cycle.outlook import Outlook, read_facts, read_outlook
from daemon.cycle.plan import plan_cycle
from daemon.cycle.planner import CyclePlanner
from daemon.status.snapshot import situation
from envs.airline.environment import Airline
from envs.retail.environment import Retail
from envs.telecom.environment import Telecom
from events.envelope import utc_now
from events.log import Entry
from events.messages import Action, Message, ToolCall
from events.rollouts import CallStarted, RolloutContent, Task
from tests.consumers.folding import ended, entry, fresh
from tests.daemon.conftest import Kintsugi

AGENT = "agent"
KIND = "cancel"
WRITES = sorted(Retail().writes)
"""Each is the pivot of a pattern of its own; the first three are those of own_sessions."""
FOREIGN = [
    *(("airline/cancel", tool) for tool in sorted(Airline().writes)),
    *(("telecom/no_service", tool) for tool in sorted(Telecom().writes)),
]
"""Kinds of task of other environments, and tools that are called for there."""


def say(query: str) -> RolloutContent:
    """A conversation in which the user is found, with a trace that differs with `query`."""
    calls = [ToolCall(name="find_user_id_by_email", arguments={"email": query}),
             ToolCall(name="get_user_details", arguments={"user_id": "u1"})]  # fmt: skip
    messages = [Message(role="user", content="please help")]
    for call in calls:
        messages += [
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="u1", error=False),
        ]
    return RolloutContent(messages=(*messages, Message(role="assistant", content="Done.")))


def session(
    name: str, client: str | None, task: str | None, tool: str, *, success: bool = False
) -> list[Entry]:
    """A judged session of a key, whose agent never called the tool that changes something."""
    about = None
    if task is not None:
        environment = task.partition("/")[0]
        about = Task(id=task, environment=environment, gold_actions=(Action(name=tool),))
    call = CallStarted(
        call=f"call {name}", session=name, alias=AGENT, base="base", policy="base", client=client
    )
    return [
        entry(call, f"call {name}"),
        ended(
            name, session=name, calls=(f"call {name}",), task=about, write_tools=(tool,),
            termination="user_stop", success=success, reward=float(success), content=say(name),
        ),
    ]  # fmt: skip


def own_sessions(count: int = 6) -> list[Entry]:
    """Failures at three tools of retail, so many at each."""
    return [
        item
        for tool in WRITES[:3]
        for number in range(count)
        for item in session(f"own {tool} {number}", "shopfront", f"retail/{KIND}/{number}", tool)
    ]


def foreign_sessions(count: int = 246, first: int = 0) -> list[Entry]:
    """Failures on tasks of two other environments, at all of their tools."""
    entries = []
    for number in range(first, first + count):
        kind, tool = FOREIGN[number % len(FOREIGN)]
        entries += session(f"foreign {number}", "partner", f"{kind}/{number}", tool)
    return entries


@contextmanager
def home(folder: Path, *sessions: Sequence[Entry], environment: str = "retail") -> Iterator[App]:
    settings = Settings(
        home=folder, log=Log(durability="process"), proposer=Proposer(tasks=32, probe=False),
        agents=(Agent(alias=AGENT, environment=environment),),
    )  # fmt: skip
    with App(settings) as app:
        for entries in sessions:
            app.append(entries)
        app.settle()
        yield app


def count_places(app: App) -> dict[str, int]:
    """Return pattern -> its places in the directive of the next cycle."""
    directive = plan_cycle(app, AGENT).directive.directive
    return {quota.pattern: quota.tasks for quota in directive.quotas}


def count_client_places(app: App) -> Counter[str | None]:
    places: Counter[str | None] = Counter()
    for quota in plan_cycle(app, AGENT).directive.directive.quotas:
        for part in quota.clients:
            places[part.client] += part.tasks
    return places


def look(app: App) -> Outlook:
    with app.reading() as connection:
        seen = read_outlook(connection, app.settings, AGENT, utc_now())
    assert seen is not None
    return seen


OWN = {f"missing_write_action|{tool}" for tool in WRITES[:3]}


def test_failures_of_other_environments_take_no_place_of_a_directive(tmp_path: Path) -> None:
    with home(tmp_path / "alone", own_sessions()) as app:
        alone = count_places(app)
    with home(tmp_path / "both", own_sessions(), foreign_sessions()) as app:
        both = count_places(app)
    assert alone.keys() == OWN
    assert sum(alone.values()) == 32
    assert both == alone


def test_failures_that_no_task_can_follow_make_no_cycle_due_and_are_shown_by_key(
    tmp_path: Path,
) -> None:
    with home(tmp_path, foreign_sessions(), own_sessions(1)) as app:
        seen = look(app)
        with app.reading() as connection:
            facts = read_facts(connection, app.settings, Pair(AGENT, "base"), utc_now())
    assert not seen.due
    assert (seen.rollouts, seen.failures) == (3, 3)
    assert facts is not None
    assert facts.priority == 0
    assert seen.unusable == (
        UnusableFailures("partner", "airline", 126),
        UnusableFailures("partner", "telecom", 120),
    )


def test_a_failure_counts_only_on_a_task_that_the_environment_writes(tmp_path: Path) -> None:
    """Neither without a task nor on one of a benchmark, of a kind that is gone, or whose body
    nobody has."""
    foreign = (
        None, "airline/cancel/7", "retail/7", "retail/no_such_kind/7", f"retail/={'0' * 64}",
    )  # fmt: skip
    others = [
        item
        for task in foreign
        for n in range(2)
        for item in session(f"other {task} {n}", "partner", task, WRITES[0])
    ]
    with home(tmp_path, own_sessions(), others) as app:
        seen = look(app)
        app.diagnose("diagnose")
        with app.reading() as connection:
            lines = {line.pattern: line for line in rollouts.pattern_lines(connection)}
        assert count_places(app).keys() == OWN
    assert seen.failures == 18
    assert sum(item.failures for item in seen.unusable) == 10
    assert lines.keys() == OWN
    assert sum(line.failures for line in lines.values()) == 18


def test_status_and_patterns_name_the_key_of_failures_that_no_task_can_follow(
    tmp_path: Path, kintsugi: Kintsugi
) -> None:
    with home(tmp_path, foreign_sessions(12)) as app:
        setting = f'[[agents]]\nalias = "{AGENT}"\nenvironment = "retail"\n'
        (tmp_path / "kintsugi.toml").write_text(setting)
        (agent,) = situation(app)["next_cycle"]["agents"]
    assert list(agent["unusable"]) == [
        {"client": "partner", "environment": "airline", "failures": 6},
        {"client": "partner", "environment": "telecom", "failures": 6},
    ]
    told = "6 of the key partner in airline, 6 of the key partner in telecom"
    assert agent["unusable_text"].endswith(told)
    shown = kintsugi("status", "--home", tmp_path).out
    assert "6 of the key partner in airline" in " ".join(shown.split())
    assert told in kintsugi("patterns", "--home", tmp_path).err


def test_foreign_traffic_moves_no_priority_of_the_agents_patterns(tmp_path: Path) -> None:
    passed: list[Entry] = []
    for number in range(40):
        task = f"airline/cancel/{number}"
        passed += session(f"passed {number}", "partner", task, WRITES[0], success=True)
    priorities = []
    for name, entries in (("alone", []), ("both", [*foreign_sessions(), *passed])):
        with home(tmp_path / name, own_sessions(), entries) as app:
            app.diagnose("diagnose")
            app.append(foreign_sessions(500, first=1000) if entries else [])
            app.diagnose("diagnose")
            with app.reading() as connection:
                lines = rollouts.pattern_lines(connection)
            priorities.append({line.pattern: (line.priority, line.status) for line in lines})
    assert priorities[0] == priorities[1]


def test_a_key_has_the_share_of_places_that_it_has_of_usable_failures(tmp_path: Path) -> None:
    """It fails once at each other tool, on tasks of the agent's own environment."""
    partner: list[Entry] = []
    for number, tool in enumerate(WRITES[3:]):
        partner += session(f"partner {number}", "partner", f"retail/{KIND}/{1000 + number}", tool)
    with home(tmp_path, own_sessions(40), partner) as app:
        places = count_client_places(app)
        plan = plan_cycle(app, AGENT)
    assert places == {"partner": 2, "shopfront": 30}, "4 of 124 failures, rounded up"
    for quota in plan.directive.directive.quotas:
        assert quota.tasks == sum(part.tasks for part in quota.clients)
        assert quota.examples == tuple(name for part in quota.clients for name in part.examples)
    followed = Counter((data.source_rollout or "").partition(" ")[0] for data in plan.accepted)
    assert 0 < followed["partner"] <= places["partner"]
    assert 0 < followed["own"] <= places["shopfront"]


def test_a_round_counts_the_same_after_the_environment_was_changed(tmp_path: Path) -> None:
    with home(tmp_path, own_sessions(), foreign_sessions()) as app:
        app.diagnose("diagnose")
    with home(tmp_path, environment="airline") as app:
        seen = look(app)
        assert seen.patterns == (), "no failure of retail can be followed there"
        log, before = app.log, app.engine
        runner = app.runner()
        again = fresh(tmp_path, "again")
        type(runner)(log, again).catch_up()
        with (
            database.read_transaction(before) as live,
            database.read_transaction(again) as replayed,
        ):
            assert digest(live) == digest(replayed)
        assert count_places(app) == {}


def test_a_cycle_without_a_failure_to_follow_says_whose_failures_there_are(tmp_path: Path) -> None:
    with home(tmp_path, foreign_sessions(48)) as app:
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": AGENT})
        led = Leader(app, CyclePlanner(app), Leadership(app)).tick()
        with app.reading() as connection:
            (cycle,) = learning.cycles(connection)
    assert led.troubles == []
    assert cycle.outcome == "nothing_learnable"
    assert cycle.ended_because == (
        "no failure pattern of the round has a priority above 0; failures that no written task "
        "can follow: 24 of the key partner in airline, 24 of the key partner in telecom"
    )
