"""Revisions of a model: a real server that revises well, or cites what was not shown."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from daemon.methods.synthesis.models.reviser import MOST_FAILURES, ModelReviser
from daemon.methods.synthesis.protocols import Failure, PlanHistory, RevisionDraft
from daemon.methods.synthesis.reflection import RuleReviser
from envs.shop.environment import Shop
from events.learning import PlanName
from events.synthesis.plans import PlanRule
from tests.daemon.methods.synthesis.models.shop_model import PLAN, make_client
from tests.envs.model_server import NO_ANSWER, Json, ModelServer, Reply, said

SHOP = Shop()
NAME = PlanName(plans="0" * 32, plan=PLAN.plan, revision=0)
FAILURES = (
    Failure("event-1", "writing", "leak", "the user names the tool cancel_order", "Run it on O1."),
    Failure("event-2", "writing", "synthesis", "the plan asks for write", ""),
    Failure("event-3", "writing", "leak", "the user names the tool get_order", "Run it on O2."),
)
HISTORY = PlanHistory(NAME, PLAN, 6, 3, FAILURES)


def revise_well(**change: Any) -> Json:
    """An answer that cites the failures of one check."""
    fields = {
        "writing": PLAN.writing,
        "judging": PLAN.judging,
        "manner": PLAN.manner,
        "rules": [{"aspect": "writing", "check": "leak", "text": "Speak as a customer speaks."}],
        "failures": ["f1", "f3"],
        "reason": "Requests named tools.",
        **change,
    }
    return said(json.dumps(fields))


def revise(
    answer: Callable[[Json], Reply | Json], history: PlanHistory = HISTORY, **settings: Any
) -> tuple[RevisionDraft | None, ModelReviser, list[Json]]:
    """The revision that comes of a model, its reviser, and what the server was sent."""
    with ModelServer(answer) as server:
        reviser = ModelReviser(make_client(server.url, **settings), RuleReviser())
        return reviser.revise(SHOP, history), reviser, server.requests


def test_a_revision_adds_a_rule_and_cites_its_failures() -> None:
    draft, reviser, requests = revise(lambda _: revise_well())
    assert draft is not None
    rule = PlanRule(aspect="writing", check="leak", text="Speak as a customer speaks.")
    assert draft.plan == PLAN.model_copy(update={"rules": (rule,)})
    material = json.loads(requests[0]["messages"][1]["content"])
    events = {failure.reason: failure.event for failure in FAILURES}
    shown = material["failures"]
    assert draft.failures == tuple(events[shown[name]["reason"]] for name in ("f1", "f3"))
    assert (reviser.trouble, draft.writer) == ("", "big")
    assert "of 6 tries 3 were accepted" in draft.reason
    assert "Requests named tools." in draft.reason
    assert material["tries"] == 6


def test_the_check_that_was_cited_most_is_the_one_to_mend() -> None:
    everything = ["f1", "f2", "f3", "f1"]
    draft, _, _ = revise(lambda _: revise_well(failures=everything))
    assert draft is not None
    assert draft.checks == ("leak", "synthesis")
    assert sorted(draft.failures) == ["event-1", "event-2", "event-3"]


def test_failures_are_shown_in_turns_of_their_checks() -> None:
    many = tuple(Failure(f"event-{n}", "writing", "leak", f"reason {n}") for n in range(90))
    history = PlanHistory(NAME, PLAN, 99, 8, (FAILURES[1], *many))
    _, _, requests = revise(lambda _: revise_well(failures=["f1"]), history)
    shown = json.loads(requests[0]["messages"][1]["content"])["failures"]
    assert len(shown) == MOST_FAILURES
    assert {failure["check"] for failure in shown.values()} == {"leak", "synthesis"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"failures": []}, "failures"),
        ({"failures": ["event-1"]}, "'event-1' is none of the failures"),
        ({"rules": []}, "it changes nothing of the plan"),
        ({"manner": "rude"}, "has the manner 'rude'"),
        (
            {"rules": [{"aspect": "writing", "check": "gold", "text": "x"}]},
            "no failure is of the check 'gold'",
        ),
        ({"tools": ["fly"]}, "tools"),
        ({"writing": " "}, "writing"),
        ({"writing": "a\x00b"}, "the character NUL"),
        ({"reason": "a\ud800b"}, "reason"),
        ({"rules": [{"aspect": "writing", "check": "leak", "text": "x"}] * 5}, "rules"),
    ],
)
def test_what_is_no_revision_is_asked_for_again_and_then_rules_revise(
    change: dict[str, Any], reason: str
) -> None:
    draft, reviser, requests = revise(lambda _: revise_well(**change))
    assert len(requests) == 3
    by_rule = RuleReviser().revise(SHOP, HISTORY)
    assert draft is not None
    assert by_rule is not None
    assert (draft.plan, draft.failures) == (by_rule.plan, by_rule.failures)
    assert reason in reviser.trouble


def test_a_revision_that_did_not_help_is_not_taken_again() -> None:
    first, _, _ = revise(lambda _: revise_well())
    assert first is not None
    history = PlanHistory(NAME, PLAN, 9, 3, FAILURES, (first.plan,))
    draft, reviser, requests = revise(lambda _: revise_well(), history)
    assert draft is not None
    assert "it repeats a revision that did not help" in reviser.trouble
    shown = json.loads(requests[0]["messages"][1]["content"])["revisions_that_did_not_help"]
    assert shown[0]["rules"][0]["text"] == "Speak as a customer speaks."


@pytest.mark.parametrize(
    ("reply", "settings", "reason"),
    [
        (said("no"), {}, "gave no answer of the schema"),
        (NO_ANSWER, {"timeout_seconds": 0.1}, "no whole answer within 0.1 s"),
        (said("{}"), {"max_tokens": 500}, "raise models.proposer.max_tokens"),
    ],
)
def test_a_model_that_fails_is_trouble_of_the_revision(
    reply: Reply | Json, settings: dict[str, Any], reason: str
) -> None:
    draft, reviser, _ = revise(lambda _: reply, **settings)
    assert draft is not None
    assert draft.writer is None
    assert reason in reviser.trouble


def test_where_rules_see_no_need_the_trouble_stands_at_the_reviser() -> None:
    history = PlanHistory(NAME, PLAN, 99, 98, FAILURES[:1])
    draft, reviser, _ = revise(lambda _: said("no"), history)
    assert draft is None
    assert "gave no answer of the schema" in reviser.trouble


def test_a_plan_without_failures_is_not_sent() -> None:
    draft, _, requests = revise(lambda _: revise_well(), PlanHistory(NAME, PLAN, 3, 3, ()))
    assert (draft, requests) == (None, [])


def test_what_the_rules_match_is_not_sent() -> None:
    def redact(text: str) -> str:
        return text.replace("Run it on O1.", "[redacted:order]")

    _, _, requests = revise(lambda _: revise_well(), redact=redact)
    sent = json.dumps(requests)
    assert "Run it on O1." not in sent
    assert "[redacted:order]" in sent
