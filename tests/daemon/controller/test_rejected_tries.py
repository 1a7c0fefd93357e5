"""What a bad round of writing tasks teaches the next one."""

from typing import Final

from consumers.reads.learning import BufferTask, RejectionRow
from daemon.controller.rejected_tries import bad_tries
from events.learning import BadTries, Check, Mode
from tests.daemon.proposer.test_proposer import SHOP

PATTERN: Final = "missing_write_action|cancel_order"


def written(mode: Mode, pattern: str = PATTERN) -> BufferTask:
    task = SHOP.generate("cancel", 2**28).record()
    return BufferTask(task, pattern, "base", "cycle", mode, (), None, None, None)


def rejected(mode: Mode, check: Check, reason: str = "it is so") -> RejectionRow:
    return RejectionRow(
        "event", "cycle", "agent", "base", PATTERN, mode, check, reason, None, "", None
    )


def test_a_mode_of_which_half_the_tries_failed_is_told_with_its_reasons() -> None:
    good = [written("inherit"), written("inherit"), written("explore"), written("explore")]
    bad = [rejected("inherit", "novelty"), rejected("inherit", "leak"), rejected("explore", "gold")]
    assert bad_tries(good, bad) == (
        BadTries(
            pattern=PATTERN, mode="inherit", tries=4, rejected=2,
            reasons=("leak: it is so", "novelty: it is so"),
        ),
    )  # fmt: skip
    assert bad_tries(good, bad[1:]) == ()


def test_a_mode_that_never_failed_teaches_nothing() -> None:
    assert bad_tries([written("inherit")], []) == ()
    assert bad_tries([], []) == ()


def test_one_patterns_tries_say_nothing_of_another() -> None:
    others = [written("inherit", "tool_loop|*") for _ in range(9)]
    (found,) = bad_tries(others, [rejected("inherit", "novelty")])
    assert (found.pattern, found.tries, found.rejected) == (PATTERN, 1, 1)


def test_the_most_frequent_checks_come_first_and_each_once() -> None:
    many = [rejected("explore", "leak", f"word {n}") for n in range(5)]
    few: list[Check] = ["gold", "novelty", "policy"]
    (found,) = bad_tries([], [*[rejected("explore", one) for one in few], *many])
    assert found.reasons == ("leak: word 0", "gold: it is so", "novelty: it is so")
