"""What comes next for an adapter that plays users, as a table of views."""

import re
from dataclasses import replace
from typing import Final

import pytest

from daemon.methods.synthesis.users.state_machine import (
    LEAST_DIALOGUES,
    LastAttempt,
    NoUserStep,
    UserStep,
    UserView,
    next_user_step,
)

DUE: Final = UserView("trained", "", dialogues=LEAST_DIALOGUES)
FAILED: Final = LastAttempt(1, LEAST_DIALOGUES, "it failed")


def reason(view: UserView) -> str:
    step = next_user_step(view)
    assert isinstance(step, NoUserStep)
    return step.reason


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, UserStep.REQUEST),
        ({"job": "j"}, UserStep.TRAIN),
        ({"candidate": "u"}, UserStep.EVALUATE),
        ({"candidate": "u", "plays": "v", "is_staged": True}, UserStep.EVALUATE),
        ({"plays": "u"}, UserStep.STAGE),
        ({"plays": "u", "lacks_manners": True}, UserStep.REQUEST),
        ({"plays": "u", "lacks_manners": True, "is_staged": True, "job": "j"}, UserStep.TRAIN),
        ({"outdated": ("old",), "candidate": "u"}, UserStep.RETIRE),
        ({"last": FAILED, "dialogues": 2 * LEAST_DIALOGUES}, UserStep.REQUEST),
    ],
)
def test_each_view_has_one_next_step(changes: dict[str, object], step: UserStep) -> None:
    assert next_user_step(replace(DUE, **changes)) is step  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"setting": "script"}, 'improve.users is "script"'),
        ({"setting": "model", "candidate": "u"}, 'improve.users is "model"'),
        ({"obstacle": "no environment"}, "no environment"),
        ({"obstacle": "no environment", "candidate": "u"}, "no environment"),
        ({"plays": "u", "is_staged": True}, "u plays them"),
        ({"dialogues": LEAST_DIALOGUES - 1}, f"31 simulated dialogues .* needs {LEAST_DIALOGUES}"),
        (
            {"plays": "u", "lacks_manners": True, "dialogues": 3},
            "u was measured in the words of the generator alone, .* writes .*; 3 ",
        ),
        ({"last": FAILED}, "attempt 1 failed .it failed.; the next one waits for 64"),
        ({"last": FAILED, "dialogues": 63}, "of which 63 are there, or for another base"),
    ],
)
def test_where_nothing_is_due_the_reason_is_told(changes: dict[str, object], words: str) -> None:
    assert re.search(words, reason(replace(DUE, **changes)))  # type: ignore[arg-type]


def test_an_adapter_of_another_base_is_retired_whatever_the_setting() -> None:
    view = UserView("script", "", outdated=("old",))
    assert next_user_step(view) is UserStep.RETIRE
