"""What a gate waits for without a word on its candidate, and who plays its users meanwhile."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.reads.serving import AdapterRow
from daemon.core.app import App
from daemon.engine.reference.weights import CHECKPOINT
from daemon.evaluation.candidate_evaluation import CandidateEvaluation
from daemon.evaluation.trial import Plan
from daemon.jobs.attempts import number_in
from daemon.jobs.runner import JOURNAL, OUT, SPEC, Active, Exit
from events.jobs import EndpointUser, ModelUser
from events.serving import GateDecided
from ops.random_adapters import Maker
from tests.daemon.evaluation.test_candidate_evaluation import (
    RECORDED,
    TARGET,
    TRIAL,
    make_runner,
    of_type,
    opened,
    recorded,
    rollouts,
    row_of,
    staged,
)
from tests.daemon.evaluation.test_trial_users import play_exactly
from tests.daemon.serving.recorded_trial import COMMAND
from tests.daemon.solver import letters
from tests.envs.model_server import Json, ModelServer, said

PATIENCE: Final = 240.0
HANGS: Final = (sys.executable, "-c", "import time; time.sleep(3600)")
"""A trial that never ends."""
AGENT: Final = RECORDED.model_copy(update={"checkpoint": CHECKPOINT, "traffic": {TARGET: 1.0}})


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that adds nothing to the reference policy."""
    return Maker(CHECKPOINT).write(tmp_path_factory.mktemp("made") / "unchanged", 0.0)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    sizes = {"pilot_tasks": 2, "least_tasks": 3, "most_tasks": 3, "max_tokens": 128}
    with opened(tmp_path / "home", **sizes) as app:
        yield app


class Gate:
    """The gate of one adapter, looked at by another process each time."""

    def __init__(self, app: App, row: AdapterRow, command: Any = TRIAL) -> None:
        self.app, self.name = app, row.adapter
        self.use(command)
        self.user: ModelUser | None = None
        self.checkpoint = CHECKPOINT

    def use(self, command: Any) -> None:
        """Play the trials that begin from now on with another program."""
        self.runner = make_runner(self.app, command)

    def has_played(self, trial: Path) -> bool:
        """Whether a trial is over."""
        state = self.runner.state(trial.name)
        return isinstance(state, Exit) and state.result is not None

    def build(self) -> CandidateEvaluation:
        agent = AGENT.model_copy(update={"checkpoint": self.checkpoint})
        row = row_of(self.app, self.name)
        return CandidateEvaluation(self.app, self.runner, agent, row, None, user=self.user)

    def look(self) -> list[str]:
        return list(self.build().advance())

    def look_until(self, is_over: Callable[[list[str]], bool]) -> list[str]:
        """Look until what a look brings is enough; return that."""
        deadline = time.monotonic() + PATIENCE
        while not is_over(notes := self.look()):
            assert time.monotonic() < deadline, notes
            time.sleep(0.1)
        return notes

    def finish(self) -> None:
        self.look_until(lambda _: self.state not in ("staged", "evaluated"))

    @property
    def state(self) -> str:
        return str(row_of(self.app, self.name).state)

    @property
    def trials(self) -> list[Path]:
        return sorted(path.parent for path in (self.app.home / "trials").glob(f"*/{SPEC}"))

    def count_attempts(self) -> int:
        return sum(len(list(folder.glob("attempts/*.before"))) for folder in self.trials)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answer_exactly(gate: Gate) -> Callable[[Json], Json]:
    """Answer as the exact users of the gate's tasks do."""
    known: dict[int, Any] = {}

    def answering(body: Json) -> Json:
        plans = [Plan.model_validate_json((path / SPEC).read_bytes()) for path in gate.trials]
        if len(plans) not in known:
            tasks = tuple({task: None for plan in plans for task in plan.tasks})
            known[len(plans)] = play_exactly(plans[0].model_copy(update={"tasks": tasks}))
        line: Json = known[len(plans)](body)
        return line

    return answering


@pytest.mark.long
def test_a_budget_that_is_spent_rejects_no_candidate_and_a_larger_one_goes_on(
    app: App, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(app, staged(app, unchanged, CHECKPOINT, TARGET))
    recorded(monkeypatch, target=(0.5, 0.5), other=(0.9, 0.9))
    with ModelServer(answer_exactly(gate)) as server:
        gate.user = EndpointUser(url=server.url, model="customer", budget=1)
        gate.use(COMMAND)
        gate.look()
        wait_until(lambda: gate.has_played(gate.trials[0]))
        gate.use(TRIAL)
        (note,) = gate.look_until(lambda notes: any("max_tokens" in note for note in notes))
        assert note.startswith(f"{gate.name} waits: the model that plays the users has read")
        assert note.endswith("models.user.max_tokens is 1; raise it")
        attempts, (pilot, look) = gate.count_attempts(), gate.trials
        journal = look / OUT / JOURNAL
        before = journal.read_bytes()
        assert before.count(b"\n") == 2, "the first player has played its part"
        for _ in range(3):
            assert gate.look() == [note]
        assert gate.count_attempts() == attempts, "it is not asked for more while it is spent"
        assert gate.state == "staged"
        wait = gate.build().find_wait()
        assert wait is not None
        assert (wait.setting, wait.waits_for, wait.says) == ("models.user.max_tokens", (), note)
        gate.user = gate.user.model_copy(update={"budget": 10**6, "timeout": 60.0})
        assert gate.build().find_wait() is not None, "it may wait for a slot"
        gate.finish()
    assert gate.trials == [pilot, look], "the gate went on, and did not begin anew"
    assert journal.read_bytes().startswith(before)
    assert [event.report.decision for event in of_type(app, GateDecided)] == ["REJECT"]
    assert {rollout.simulator for rollout in rollouts(app)} == {"customer"}


@pytest.mark.long
def test_a_checkpoint_that_is_none_or_of_another_base_rejects_no_candidate(
    app: App, unchanged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.5, 0.5), other=(0.9, 0.9))
    gate = Gate(app, staged(app, unchanged, CHECKPOINT, TARGET))
    gate.checkpoint = tmp_path / "nowhere"
    for _ in range(2):
        (note,) = gate.look()
        assert f"the checkpoint of agent in the setting agents is {gate.checkpoint}" in note
        assert note.endswith("which has no config.json; correct it, and its gate goes on")
    wait = gate.build().find_wait()
    assert wait is not None
    assert (wait.setting, wait.says) == ("agents.checkpoint", note)
    assert gate.trials == []
    gate.checkpoint = letters.checkpoint(tmp_path / "other")
    gate.look_until(lambda notes: any("waits: " in note for note in notes))
    (note,) = gate.look()
    assert str(gate.checkpoint) in note
    assert note.endswith("correct checkpoint in the setting agents")
    assert gate.state == "staged"
    gate.checkpoint = CHECKPOINT
    gate.use(COMMAND)
    gate.finish()
    assert [event.report.decision for event in of_type(app, GateDecided)] == ["REJECT"]


def test_a_gate_whose_users_change_stops_its_trial_and_begins_anew(
    app: App, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.5, 0.5), other=(0.9, 0.9))
    gate = Gate(app, staged(app, unchanged, CHECKPOINT, TARGET))
    with ModelServer(lambda _: said("")) as server:
        gate.user = EndpointUser(url=server.url, model="customer")
        gate.use(HANGS)
        gate.look()
        (former,) = gate.trials
        wait_until(lambda: number_in(former / "attempts" / "1.pid") is not None)
        gate.user = None
        gate.use(COMMAND)
        (note,) = gate.look()
        assert note.startswith(f"trial {former.name} of {gate.name} is told to stop: its gate has")
        gate.finish()
    assert not isinstance(gate.runner.state(former.name), Active)
    (decided,) = of_type(app, GateDecided)
    assert decided.report.decision == "REJECT"
    assert {rollout.simulator for rollout in rollouts(app)} == {"scripted"}


@pytest.mark.long
def test_no_report_is_of_rollouts_with_different_users(
    tmp_path: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever who plays them changes, candidate and incumbent play fresh tasks with the new one,
    and who comes back goes on where its gate was."""
    recorded(monkeypatch, target=(0.4, 0.7), other=(0.99, 0.99))
    sizes = {"gain": 0.2, "pilot_tasks": 12, "least_tasks": 64, "most_tasks": 512}
    with opened(tmp_path / "home", **sizes) as app, ModelServer(lambda _: said("")) as server:
        gate = Gate(app, staged(app, unchanged, CHECKPOINT, TARGET), COMMAND)
        models = [EndpointUser(url=server.url, model=name) for name in ("first", "second")]
        users: list[ModelUser | None] = [*models, None]
        for user in users:
            gate.user = user
            gate.look_until(
                lambda notes: any("tasks" in note and "look 1" in note for note in notes)
            )
        digests = {path.name[:32] for path in gate.trials}
        assert len(digests) == len(users)
        gate.user = users[0]
        own_trials = gate.build().digest[:32]
        gate.finish()
        assert {path.name[:32] for path in gate.trials} == digests
        for folder in gate.trials:
            plan = Plan.model_validate_json((folder / SPEC).read_bytes())
            if folder.name[:32] != own_trials and not (folder / OUT / JOURNAL).exists():
                continue  # It was told to stop before it played.
            lines = (folder / OUT / JOURNAL).read_bytes().splitlines()[1:]
            played = {item["head"]["simulator"] for line in lines for item in json.loads(line)}
            assert played == {"scripted" if plan.user is None else plan.user.simulator}
            assert len(plan.players) == (1 if folder.name.endswith("-0") else 2)
        (decided,) = of_type(app, GateDecided)
        own = [
            (rollout.policy, rollout.task.id)
            for rollout in rollouts(app)
            if rollout.simulator == "first" and rollout.task is not None
        ]
        look = {task for policy, task in own if policy == gate.name}
        assert look <= {task for policy, task in own if policy != gate.name}
        assert decided.report.tasks <= len(look)
