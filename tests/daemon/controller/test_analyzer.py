"""The analyzer: a real server that answers well, slowly, wrongly or not at all."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from consumers.reads.evidence import RoundRollout
from daemon.config.settings import Model
from daemon.controller.analyzer import Analysis, analyze
from daemon.controller.rollout_views import RolloutView
from daemon.controller.sampling import shorten
from events.messages import Action, Message
from tests.envs.model_server import NO_ANSWER, Json, ModelServer, Reply, refused, said

FAILED = [
    RoundRollout(f"rollout-{n}", f"task-{n % 3}", 0.0, "missing_write_action", pivot)
    for n, pivot in enumerate(("cancel_order", "cancel_order", "pay", "pay"))
]
PASSED = RoundRollout("rollout-9", "task-0", 1.0, None, "*")


def shown(seen: RoundRollout, text: str = "Please cancel order O12.") -> RolloutView:
    messages = [Message(role="user", content=text)]
    gold = (Action(name="cancel_order", arguments={"order_id": "O12"}),)
    return RolloutView(seen, text, gold, shorten(messages), {"DB": 0.0}, {"missing": []})


SHOWN = [shown(one) for one in (*FAILED, PASSED)]


def pattern(*examples: str, category: str = "missing_write_action", **fields: Any) -> Json:
    return {
        "category": category,
        "description": "It stops before it writes.",
        "frequency": 99,
        "example_task_ids": list(examples),
        "root_cause": "It forgets.",
        **fields,
    }


def answered(*patterns: Json) -> Json:
    return said(json.dumps({"patterns": patterns, "summary": "It stops early."}))


def asked(
    answer: Callable[[Json], Reply | Json],
    redact: Callable[[str], str] = str,
    rollouts: list[RolloutView] = SHOWN,
    **settings: Any,
) -> tuple[Analysis, list[Json]]:
    """What came of asking, and what the server was asked."""
    with ModelServer(answer) as server:
        given = Model(url=server.url, model="big", **settings)
        return analyze(given, rollouts, FAILED, redact), server.requests


def test_a_finding_is_counted_again_and_named_here() -> None:
    found, requests = asked(lambda _: answered(pattern("r1", "r3", "r4", "r5", "r99")))
    (one,) = found.findings
    assert one.pattern == "missing_write_action|pay"
    assert one.examples == ("rollout-0", "rollout-2", "rollout-3")
    assert one.frequency == 3  # failures on task-0 and task-2
    assert (found.summary, found.trouble, found.model) == ("It stops early.", "", "big")
    (request,) = requests
    assert request["response_format"]["type"] == "json_schema"
    assert request["response_format"]["json_schema"]["strict"] is True
    items = [json.loads(line) for line in request["messages"][1]["content"].splitlines()]
    assert [item["id"] for item in items] == ["r1", "r2", "r3", "r4", "r5"]
    assert items[0]["expected_calls"] == [["cancel_order", {"order_id": "O12"}]]
    assert [item["passed"] for item in items] == [False] * 4 + [True]


def test_a_tie_of_pivots_is_broken_by_name_and_equal_names_are_one_finding() -> None:
    found, _ = asked(lambda _: answered(pattern("r3", "r1"), pattern("r2")))
    (one,) = found.findings
    assert one.pattern == "missing_write_action|cancel_order"
    assert one.examples == ("rollout-0", "rollout-1", "rollout-2")


def test_a_pattern_without_a_failed_example_is_dropped() -> None:
    found, _ = asked(lambda _: answered(pattern("r5"), pattern("rollout-0"), pattern()))
    assert (found.findings, found.trouble) == ((), "")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (said("I think it stops early."), "gave no answer of the schema"),
        (said('{"patterns": []}'), "summary"),
        (answered(pattern("r1", category="laziness")), "'laziness' is none of the categories"),
        (answered(pattern("r1", blame="nobody")), "blame"),
        (answered(pattern("r1", frequency="many")), "frequency"),
    ],
)
def test_what_is_no_such_answer_is_asked_for_twice_more(answer: Json, why: str) -> None:
    found, requests = asked(lambda _: answer)
    assert found.findings == ()
    assert why in found.trouble
    assert len(requests) == 3
    assert "not the answer" in requests[2]["messages"][-1]["content"]


def test_a_better_second_answer_counts() -> None:
    answers = iter([said("no"), answered(pattern("r1"))])
    found, requests = asked(lambda _: next(answers))
    assert [one.pattern for one in found.findings] == ["missing_write_action|cancel_order"]
    assert (found.trouble, len(requests)) == ("", 2)


def test_an_endpoint_that_refuses_is_trouble() -> None:
    found, _ = asked(lambda _: refused(401, "no key"))
    assert "401" in found.trouble
    assert found.findings == ()


def test_a_slow_endpoint_is_trouble() -> None:
    found, requests = asked(lambda _: NO_ANSWER, timeout_seconds=2)
    assert "no whole answer within" in found.trouble
    assert len(requests) == 1


def test_an_endpoint_that_is_not_there_is_trouble() -> None:
    with ModelServer(lambda _: answered()) as server:
        url = server.url
    found = analyze(Model(url=url), SHOWN, FAILED, str)
    assert "no answer" in found.trouble


def test_what_the_rules_match_is_not_sent() -> None:
    rollouts = [shown(FAILED[0], "I am Ada, ada@example.org.")]

    def redact(text: str) -> str:
        return text.replace("ada@example.org", "[redacted:email]")

    _, requests = asked(lambda _: answered(), redact, rollouts)
    sent = json.dumps(requests)
    assert "ada@example.org" not in sent
    assert "[redacted:email]" in sent


def test_what_does_not_fit_into_the_budget_is_not_sent() -> None:
    long = [shown(one, "x" * 9_000) for one in FAILED]
    found, requests = asked(lambda _: answered(pattern("r1", "r4")), str, long, max_tokens=13_000)
    (request,) = requests
    assert len(request["messages"][1]["content"].splitlines()) == 1
    assert [one.examples for one in found.findings] == [("rollout-0",)]
    found, requests = asked(lambda _: answered(), str, long, max_tokens=4_500)
    assert requests == []
    assert "not even one rollout fits into 4500 tokens" in found.trouble
    found, requests = asked(lambda _: said("no"), max_tokens=9_000)
    assert len(requests) == 1
    assert "no answer of the schema" in found.trouble


@pytest.mark.parametrize("host", ["example.org", "10.0.0.7", "127.0.0.1.example.org"])
def test_another_host_is_asked_only_where_it_is_named(host: str) -> None:
    found = analyze(Model(url=f"http://{host}/v1"), SHOWN, FAILED, str)
    assert f"host '{host}' is not this machine" in found.trouble


def test_a_host_that_is_named_is_asked() -> None:
    from daemon.controller.model_answers import check_host

    check_host("https://models.example.org/v1", ["models.example.org"], "analyzer")
    check_host("http://[::1]:8000/v1", (), "analyzer")
    check_host("http://localhost:8000/v1", (), "analyzer")
