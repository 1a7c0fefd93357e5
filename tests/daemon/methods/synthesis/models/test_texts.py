"""Texts of a model: whatever it writes, the events that have it fit a record."""

import pytest

from daemon.methods.synthesis.models.reviser import MOST_FAILURES, MOST_RULES
from daemon.methods.synthesis.models.texts import (
    MOST_REFUSAL,
    MOST_SENTENCE,
    MOST_TEXT,
    check_plan_text,
    check_sentence,
)
from events.codec import encode
from events.envelope import Envelope, derive_id, utc_now
from events.learning import PlanName
from events.log import check_size, now_ms
from events.rollouts import MOST_REASON
from events.synthesis.plans import (
    MOST_PLANS,
    MOST_ROUNDS,
    Plan,
    PlanRevision,
    PlanRule,
    PlansRevised,
    PlansWritten,
)
from tests.daemon.methods.synthesis.models.shop_model import PLAN

WIDE = "\U0001f600"
"""A character of four bytes."""


@pytest.mark.parametrize("text", [WIDE * 400, "\x01" * 300, '"' * 900])
def test_a_text_that_takes_many_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bytes, and 1,500 may be; shorten it"):
        check_plan_text(text)
    with pytest.raises(ValueError, match="bytes, and 450 may be; shorten it"):
        check_sentence(text)


def test_a_text_in_any_script_may_be_a_plans() -> None:
    for text in ("A customer cancels an order. " * 30, "\u53d6\u6d88\u8ba2\u5355\u3002" * 90):
        assert check_plan_text(text) == text


def write_longest_plan(number: int) -> Plan:
    """A plan with the longest texts that are taken, and all the rules of three rounds."""
    text = check_plan_text(WIDE * ((MOST_TEXT - 2) // 4))
    sentence = check_sentence(WIDE * ((MOST_SENTENCE - 2) // 4))
    rule = PlanRule(aspect="rollout", check="provenance", text=sentence)
    return PLAN.model_copy(
        update={
            "plan": f"{number:02}-cancel", "writing": text, "judging": text,
            "rules": (rule,) * (MOST_RULES * MOST_ROUNDS),
        }
    )  # fmt: skip


def test_the_longest_texts_of_a_model_fit_the_events_that_have_them() -> None:
    plans = tuple(write_longest_plan(number) for number in range(MOST_PLANS))
    written = PlansWritten(
        plans=derive_id("set"), alias="agent", base="base", environment="shop", overlap=0.0,
        entries=tuple(plan.model_copy(update={"rules": ()}) for plan in plans),
        refused=(WIDE * MOST_REFUSAL,) * (3 * MOST_PLANS), trouble="x" * MOST_REASON,
    )  # fmt: skip
    reason = plans[0].rules[0].text + "x" * 500
    revisions = tuple(
        PlanRevision(
            before=PlanName(plans=derive_id("set"), plan=plan.plan, revision=2), plan=plan,
            reason=reason, tries_before=9, accepted_before=9, tries=9, accepted=9, kept=True,
            failures=tuple(derive_id(str(number)) for number in range(MOST_FAILURES)),
        )
        for plan in plans
    )  # fmt: skip
    revised = PlansRevised(
        plans=derive_id("set"), alias="agent", base="base", round=3, revisions=revisions
    )
    for data in (written, revised):
        envelope = Envelope(
            id="event", type=data.TYPE, version=data.VERSION, subject=data.key(), time=utc_now()
        )
        check_size(encode(envelope, data, now_ms()).entry)
