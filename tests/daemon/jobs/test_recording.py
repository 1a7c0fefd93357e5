"""What of a job's rollouts comes into the log, where its pools have rules of their own."""

from pathlib import Path
from typing import Any, Final

from daemon.config.settings import Environments, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.jobs.recording import record_rollouts
from daemon.jobs.runner import JOURNAL, OUT
from daemon.solver.journal import Journal
from daemon.solver.spec import digest
from daemon.solver.trajectory import Trajectory, Turn
from events.jobs import JobSpec
from events.learning import JobRequested
from events.rollouts import RolloutEnded
from tests.daemon.jobs.test_training_runs import rollouts, row
from tests.envs import mini
from tests.envs.faulty_shop import write_definition

POOLS: Final[list[dict[str, Any]]] = [
    {"name": "plain", "tasks": ["shop/cancel/1"]},
    {"name": "repairs", "tasks": ["shop/cancel/2"], "reward": "repair"},
    {"name": "wholes", "tasks": ["shop/cancel/3"], "reward": "both"},
    {
        "name": "orders",
        "tasks": ["mini/tell/1"],
        "environment": str(Path(mini.__file__)),
        "user": {"url": "http://127.0.0.1:1/v1", "model": "customer"},
    },
]


def played(number: int, task: str, **fields: Any) -> Trajectory:
    turn = Turn((1, 2), (3, 4), (-0.5, -0.25))
    known: dict[str, Any] = {"success": False, "reward": -0.1, **fields}
    return Trajectory(f"j/0/{number}/0", f"j/0/{number}", task, "j-0", (turn,), **known)


def test_an_event_names_an_environments_own_user_that_errs(tmp_path: Path) -> None:
    place = tmp_path / "faulty.py"
    place.write_text(write_definition(0.5, users_err=True))
    spec = JobSpec.model_validate(
        {"job": "j", "base": "b", "checkpoint": "c", "environment": str(place), "pools": POOLS[:1]}
    )
    folder = tmp_path / "jobs" / "j"
    journal = Journal(folder / OUT / JOURNAL, digest(spec))
    journal.append((played(0, "shop/cancel/1"),))
    journal.close()
    settings = Settings(home=tmp_path, environments=Environments(paths=(place,)))
    with App(settings) as app:
        requested = JobRequested(job="j", alias="agent", base="b", spec=spec, minutes=10)
        app.settle()
        Decisions(app).take(requested, "j", cause="somebody")
        assert record_rollouts(app, row(app), folder) == 1
        assert [event.simulator for event in rollouts(app)] == ["shop itself"]


def test_an_event_says_who_judged_a_rollout_and_who_played_its_user(tmp_path: Path) -> None:
    spec = JobSpec.model_validate(
        {"job": "j", "base": "b", "checkpoint": "c", "environment": "shop", "pools": POOLS}
    )
    settings = Settings(home=tmp_path, environments=Environments(paths=(Path(mini.__file__),)))
    folder = tmp_path / "jobs" / "j"
    journal = Journal(folder / OUT / JOURNAL, digest(spec))
    journal.append(
        (
            played(0, "shop/cancel/1"),
            played(1, "shop/cancel/2", success=True, reward=0.75, repair=0.75),
            played(2, "shop/cancel/3", reward=0.25, repair=0.5),
            played(3, "mini/tell/1"),
            played(4, "shop/cancel/4"),
        )
    )
    journal.close()
    with App(settings) as app:
        requested = JobRequested(job="j", alias="agent", base="b", spec=spec, minutes=10)
        app.settle()
        Decisions(app).take(requested, "j", cause="somebody")
        assert record_rollouts(app, row(app), folder) == 5
        events = {event.task.id: event for event in rollouts(app) if event.task is not None}

    def show(event: RolloutEnded) -> tuple[Any, ...]:
        return event.grader, event.simulator, event.success, event.reward, event.reward_parts

    assert {task: show(event) for task, event in events.items()} == {
        "shop/cancel/1": ("shop/2", "scripted", False, -0.1, {}),
        "shop/cancel/2": ("shop/repair/1", "scripted", True, 0.75, {"repair": 0.75}),
        "shop/cancel/3": ("shop/2", "scripted", False, 0.25, {"repair": 0.5}),
        "mini/tell/1": ("mini/1", "customer", False, -0.1, {}),
        "shop/cancel/4": ("shop/2", "scripted", False, -0.1, {}),
    }
    assert "cancel_order" in (events["mini/tell/1"].write_tools or ())
