"""Poisoned feedback: a flood of false verdicts changes no pattern, no priority, and nothing that
makes a cycle due, trains or passes a gate."""

from dataclasses import asdict
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Engine, select

from consumers import database
from consumers.reads.evidence import last_outcomes, task_rates
from consumers.reads.scheduling import scheduling
from consumers.tables import Feedback, Pattern, PatternRound, ProjectionTable, Rollout
from events.log import Entry
from events.memory import MemoryLog
from events.rollouts import FeedbackReceived, Task
from migrations.upgrade import upgrade
from tests.consumers.folding import at, diagnosed, ended, entry, fold, folded_position

ROLLOUTS = 40
LIES = 400
READ: tuple[type[ProjectionTable], ...] = (Rollout, Pattern, PatternRound)


def traffic() -> list[Entry]:
    """Live sessions of ten tasks, judged by a grader; every fourth one failed."""
    return [
        ended(
            f"r{number}", at(number), session=f"s{number}", purpose="live",
            task=Task(id=f"t{number % 10}"), success=number % 4 != 0,
            reward=float(number % 4 != 0),
        )
        for number in range(ROLLOUTS)
    ]  # fmt: skip


def lies(seed: int, verified: bool) -> list[Entry]:
    """Everybody's session was a success, a failure, and again; some of them nobody ever had."""
    chance = Random(seed)
    return [
        entry(
            FeedbackReceived(
                session=f"s{chance.randrange(2 * ROLLOUTS)}", success=chance.random() < 0.5,
                score=chance.random(), tags=("lie",), verified=verified,
            ),
            f"lie {seed} {number}", at(1000 + number),
        )
        for number in range(LIES)
    ]  # fmt: skip


def read(engine: Engine, log: list[Entry]) -> dict[str, object]:
    """What is made of a log: rows, and what scheduler and Proposer ask of them."""
    memory = MemoryLog()
    memory.append(log)
    fold(memory, engine)
    memory.append([diagnosed(folded_position(engine))])
    fold(memory, engine)
    left_out = {"partition", "event_source", "sequence", "offset"}
    with database.read_transaction(engine) as connection:
        found: dict[str, object] = {
            table.__name__: sorted(
                str({name: value for name, value in row.items() if name not in left_out})
                for row in connection.execute(select(table.table())).mappings()
            )
            for table in READ
        }
        numbers = asdict(scheduling(connection, "agent", "base", at(0)))
        numbers.pop("position")
        tasks = [f"t{number}" for number in range(10)]
        found |= {
            "scheduling": numbers,
            "rates": task_rates(connection, "agent", "base", 0),
            "outcomes": last_outcomes(connection, "agent", "base", tasks, 16),
        }
        lied = connection.execute(select(Feedback.table())).all()
    engine.dispose()
    found["lies"] = len(lied)
    return found


def fresh(path: Path) -> Engine:
    engine = database.open_database(f"sqlite:///{path}")
    upgrade(engine)
    return engine


@pytest.mark.parametrize("verified", [False, True], ids=["anybody's", "a trusted key's"])
def test_a_flood_of_false_verdicts_moves_nothing_that_is_learnt_from(
    tmp_path: Path, verified: bool
) -> None:
    clean = read(fresh(tmp_path / "clean.db"), traffic())
    mixed = [*traffic(), *lies(7, verified)]
    Random(8).shuffle(mixed)
    poisoned = read(fresh(tmp_path / "poisoned.db"), mixed)
    assert (clean.pop("lies"), poisoned.pop("lies")) == (0, LIES)
    assert poisoned == clean
    assert clean["scheduling"] != {}
