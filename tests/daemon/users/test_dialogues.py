"""Which recorded dialogues a job may learn from."""

from daemon.proposer.candidate import FIRST_HELD_OUT, FIRST_SEED
from daemon.users.dialogues import DialogueStock, choose_dialogues
from events.envelope import timestamp
from events.rollouts import Task
from tests.consumers.folding import at, ended
from tests.daemon.users.conftest import MakeApp, play


def test_one_dialogue_of_each_task_counts_the_newest_and_no_reserved_seed(
    make_app: MakeApp,
) -> None:
    app = make_app()
    written = f"shop/return/{FIRST_SEED}"
    play(app, "shop/return/1", "shop/return/2", written, f"shop/return/{FIRST_HELD_OUT}")
    play(app, "shop/return/1", purpose="evaluate", second=50)
    play(app, f"shop/return/{1 << 32}", purpose="evaluate", second=60)

    def choose(until: int | None = None) -> DialogueStock:
        moment = None if until is None else timestamp(at(until))
        with app.reading() as connection:
            return choose_dialogues(connection, "agent", "shop", until=moment)

    tasks = [(item.rollout, item.task) for item in choose().rollouts]
    assert tasks == [
        ("evaluate of shop/return/1", "shop/return/1"),
        (f"probe of {written}", written),
        ("probe of shop/return/2", "shop/return/2"),
    ]
    earlier = [item.rollout for item in choose(until=11).rollouts]
    assert earlier == ["probe of shop/return/2", "probe of shop/return/1"]


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
        assert choose_dialogues(connection, "agent", "shop") == DialogueStock((), persons=1)
