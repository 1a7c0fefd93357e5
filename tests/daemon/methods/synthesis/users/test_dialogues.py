"""Which recorded dialogues a job may learn from."""

from consumers.reads.evidence import count_session_successes
from daemon.methods.synthesis.users.dialogues import choose_dialogues, count_dialogues
from daemon.proposer.candidate import FIRST_HELD_OUT, FIRST_SEED
from events.rollouts import Task
from tests.consumers.folding import at, ended
from tests.daemon.methods.synthesis.users.conftest import MakeApp, play


def test_one_dialogue_of_each_task_counts_the_newest_and_no_reserved_seed(
    make_app: MakeApp,
) -> None:
    app = make_app()
    written = f"shop/return/{FIRST_SEED}"
    play(app, "shop/return/1", "shop/return/2", written, f"shop/return/{FIRST_HELD_OUT}")
    play(app, "shop/return/1", purpose="evaluate", second=50)
    play(app, f"shop/return/{1 << 32}", purpose="evaluate", second=60)

    with app.reading() as connection:
        chosen = choose_dialogues(connection, "agent", "shop")
        count = count_dialogues(connection, "agent", "shop")
    assert [(item.rollout, item.task) for item in chosen] == [
        ("evaluate of shop/return/1", "shop/return/1"),
        (f"probe of {written}", written),
        ("probe of shop/return/2", "shop/return/2"),
    ]
    assert count == 3


def test_failures_bare_rollouts_and_persons_teach_nothing(make_app: MakeApp) -> None:
    app = make_app()
    shop = {
        "task": Task(id="shop/return/1", environment="shop"),
        "purpose": "probe",
        "success": True,
        "reward": 1.0,
    }
    elsewhere = Task(id="retail/x/1", environment="retail")
    app.append(
        [
            ended("failed", at(20), **{**shop, "success": False}),
            ended("bare", at(21), **shop, content=None),
            ended("trained on", at(22), **{**shop, "purpose": "train"}),
            ended("person", at(23), **{**shop, "purpose": "live"}, session="s"),
            ended("elsewhere", at(24), **{**shop, "task": elsewhere}),
        ]
    )
    app.settle()
    with app.reading() as connection:
        assert choose_dialogues(connection, "agent", "shop") == ()
        assert count_dialogues(connection, "agent", "shop") == 0
        assert count_session_successes(connection, "agent", "shop") == 1
