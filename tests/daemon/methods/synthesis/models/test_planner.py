"""Plans of a model: a real server that plans well, repeats itself, or names what is gone."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from daemon.methods.synthesis.models.planner import ModelPlanner
from daemon.methods.synthesis.planner import (
    MOST_ALIKE,
    find_plan_problem,
    measure_overlap,
    plan_by_rule,
)
from daemon.methods.synthesis.protocols import NoPlans, PlanDrafts, PlanRequest
from envs.shop.environment import Shop
from tests.daemon.methods.synthesis.models.shop_model import make_client
from tests.envs.model_server import NO_ANSWER, Json, ModelServer, Reply, refused, said

SHOP = Shop()
REQUEST = PlanRequest("a seed", 6)
_GONE = {"tools": ["find_user", "fly_to_the_moon"]}


def read_material(body: Json) -> Json:
    """What the model is shown, as data."""
    material: Json = json.loads(body["messages"][1]["content"])
    return material


def plan_well(body: Json, **change: Any) -> Json:
    """A plan of the next kind in the next manner, in words of its own."""
    material = read_material(body)
    number = len(material["earlier"])
    kind = sorted(material["kinds"])[number]
    words = [f"{word}{number}" for word in ("ask", "for", "the", "next", "thing", "with", "care")]
    fields = {
        "domain": "orders",
        "kind": kind,
        **material["kinds"][kind]["calls"][0],
        "manner": list(material["manners"])[number % len(material["manners"])],
        "writing": " ".join(words),
        "judging": " ".join(reversed(words)),
        **change,
    }
    return said(json.dumps(fields))


def plan(
    answer: Callable[[Json], Reply | Json], request: PlanRequest = REQUEST, **settings: Any
) -> tuple[PlanDrafts, list[Json]]:
    """The plans that come of a model, and what the server was sent."""
    with ModelServer(answer) as server:
        planner = ModelPlanner(make_client(server.url, **settings), "It forgets to cancel.")
        return planner.plan(SHOP, request), server.requests


def test_each_prompt_lists_the_earlier_plans() -> None:
    drafts, requests = plan(plan_well)
    assert (drafts.writer, drafts.trouble, drafts.refused) == ("big", "", ())
    assert len(drafts.entries) == REQUEST.count
    assert [len(read_material(body)["earlier"]) for body in requests] == list(range(6))
    last = read_material(requests[-1])
    assert [entry["plan"] for entry in last["earlier"]] == [p.plan for p in drafts.entries[:5]]
    assert last["earlier"][2]["writing"] == drafts.entries[2].writing
    covered = {tool for entry in drafts.entries[:5] for tool in entry.tools}
    assert not covered & set(last["tools_that_no_plan_needs"])
    assert last["weaknesses"] == "It forgets to cancel."
    assert measure_overlap(drafts.entries) <= MOST_ALIKE
    schema = requests[0]["response_format"]["json_schema"]
    assert (schema["name"], schema["strict"]) == ("plan", True)


def test_kinds_that_are_not_wanted_are_not_offered() -> None:
    request = PlanRequest("a seed", 2, {"cancel": 2.0, "return": 1.0, "payment": 0.0})
    drafts, requests = plan(plan_well, request)
    assert {entry.kind for entry in drafts.entries} == {"cancel", "return"}
    assert set(read_material(requests[0])["kinds"]) == {"cancel", "return"}


def test_a_planner_that_repeats_itself_is_relieved_by_rules() -> None:
    first: list[Json] = []

    def repeat(body: Json) -> Json:
        first.append(plan_well(body))
        return first[0]

    drafts, requests = plan(repeat)
    assert len(requests) == 4
    assert len(drafts.refused) == 3
    assert all("repeats plan 00-" in reason for reason in drafts.refused)
    assert "not the answer that was asked for" in requests[3]["messages"][-1]["content"]
    assert drafts.writer == "big"
    assert "the proposer big gave no answer of the schema: plan 01-" in drafts.trouble
    assert "5 plans are by rule" in drafts.trouble
    assert len(drafts.entries) == REQUEST.count
    for place, entry in enumerate(drafts.entries):
        assert find_plan_problem(SHOP, entry, drafts.entries[:place]) is None


def test_a_plan_in_the_words_of_another_is_refused() -> None:
    drafts, _ = plan(lambda body: plan_well(body, writing="the same as ever", judging="and again"))
    assert "100% like plan 00-" in drafts.refused[0]
    assert "plans are by rule" in drafts.trouble


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_GONE, "the tool 'fly_to_the_moon', which environment shop has not"),
        ({"manner": "rude"}, "has the manner 'rude'"),
        ({"kind": "theft"}, "kind 'theft' is not wanted"),
        ({"complexity": "long"}, "take an entry of the kind's calls"),
        ({"tool_mode": "both_parties"}, "users of shop have no tools"),
        ({"tool_mode": "dance"}, "tool_mode"),
        ({"writing": ""}, "writing"),
        ({"run": "rm -rf"}, "run"),
        ({"domain": "x" * 65}, "domain"),
        ({"judging": "a\x00b"}, "the character NUL"),
        ({"judging": "a\ud800b"}, "judging"),
    ],
)
def test_a_plan_that_cannot_stand_is_refused_with_the_reason(
    change: dict[str, Any], reason: str
) -> None:
    drafts, requests = plan(lambda body: plan_well(body, **change))
    assert len(requests) == len(drafts.refused) == 3
    assert reason in drafts.refused[0]
    assert reason in drafts.trouble
    assert drafts.writer is None
    assert drafts.entries == plan_by_rule(SHOP, REQUEST).entries


def test_a_better_second_plan_counts_and_the_first_is_on_record() -> None:
    changes = iter([_GONE])
    drafts, requests = plan(lambda body: plan_well(body, **next(changes, {})))
    assert (drafts.writer, drafts.trouble) == ("big", "")
    assert len(requests) == 7
    (reason,) = drafts.refused
    assert "fly_to_the_moon" in reason


@pytest.mark.parametrize(
    ("reply", "settings", "reason"),
    [
        (said("no plan today"), {}, "gave no answer of the schema"),
        (said("[" * 5000), {}, "gave no answer of the schema"),
        (Reply(b"<html>"), {}, "is no message"),
        (NO_ANSWER, {"timeout_seconds": 0.1}, "no whole answer within 0.1 s"),
        (refused(403, "not for you"), {}, "403"),
        (said("{}"), {"max_tokens": 500}, r"raise models.proposer.max_tokens"),
    ],
)
def test_without_a_plan_of_the_model_rules_write_all(
    reply: Reply | Json, settings: dict[str, Any], reason: str
) -> None:
    drafts, _ = plan(lambda _: reply, **settings)
    assert reason in drafts.trouble
    assert "6 plans are by rule" in drafts.trouble
    assert drafts.writer is None
    assert drafts.entries == plan_by_rule(SHOP, REQUEST).entries


@pytest.mark.parametrize("text", ["x" * 300_000, ""])
def test_a_huge_or_empty_answer_is_asked_for_again_and_does_not_end_the_budget(text: str) -> None:
    """Servers that ignore the bound on an answer's tokens would spend the budget of a cycle."""
    count = 0

    def answer(body: Json) -> Json:
        nonlocal count
        count += 1
        if count == 1:
            return said(text)
        return plan_well(body)

    drafts, requests = plan(answer, max_tokens=120_000)
    assert (drafts.trouble, drafts.writer) == ("", "big")
    assert len(drafts.entries) == REQUEST.count
    assert len(requests) == REQUEST.count + 1
    assert "Answer again." in requests[1]["messages"][-1]["content"]


def test_an_answer_in_a_fence_of_markdown_is_taken() -> None:
    def answer(body: Json) -> Json:
        text = plan_well(body)["content"]
        return said(f"```json\n{text}\n```\n")

    drafts, requests = plan(answer)
    assert (drafts.trouble, drafts.writer) == ("", "big")
    assert len(requests) == len(drafts.entries) == REQUEST.count


def test_a_budget_that_ends_midway_keeps_what_was_written() -> None:
    drafts, requests = plan(plan_well, max_tokens=20_000)
    assert 0 < len(requests) < REQUEST.count
    assert "raise models.proposer.max_tokens" in drafts.trouble
    assert f"{REQUEST.count - len(requests)} plans are by rule" in drafts.trouble
    assert len(drafts.entries) == REQUEST.count


def test_a_host_that_is_not_allowed_is_not_asked() -> None:
    drafts = ModelPlanner(make_client("http://example.org/v1")).plan(SHOP, REQUEST)
    assert "name it in models.proposer.allowed_hosts" in drafts.trouble
    assert len(drafts.entries) == REQUEST.count


def test_a_request_that_rules_cannot_fulfil_is_no_reason_to_ask() -> None:
    with ModelServer(plan_well) as server:
        planner = ModelPlanner(make_client(server.url))
        with pytest.raises(NoPlans, match="ask for 1 to 64"):
            planner.plan(SHOP, PlanRequest("a seed", 65))
        assert server.requests == []


def test_what_the_rules_match_is_neither_sent_nor_recorded() -> None:
    def redact(text: str) -> str:
        return text.replace("forgets", "[redacted]").replace("fly_to_the_moon", "[redacted]")

    drafts, requests = plan(lambda body: plan_well(body, **_GONE), redact=redact)
    assert "forgets" not in json.dumps(requests)
    assert "fly_to_the_moon" not in drafts.trouble + "".join(drafts.refused)
