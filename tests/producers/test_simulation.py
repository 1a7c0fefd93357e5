"""Attempts as events: what is recorded of them, and under which names."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from envs.agents import Agent
from envs.airline.environment import Airline
from envs.bfcl.environment import Bfcl
from envs.environment import Environment
from envs.evaluation import Attempt, Setup, check_loaded, make_environment_user, play
from envs.players import LocalPlayer
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.blobs import BlobStore
from events.codec import attach, decode
from events.memory import MemoryLog
from events.messages import Message
from events.streams import ROLLOUTS
from producers.simulation import (
    Provenance,
    append_rollouts,
    build_rollout_event,
    list_verdicts,
)
from tests.envs.clinic import Clinic
from tests.envs.tau2.files import write_folder

SHOP = Shop()
PROVENANCE = Provenance(alias="agent", base="base-1", policy="adapter-3", purpose="evaluate")


class Kiosk(Shop):
    """Shop under a name that no catalog declares."""

    name: ClassVar[str] = "kiosk"


def attempt(
    agent: Callable[[TaskDefinition], Agent] = SHOP.oracle, environment: Environment = SHOP
) -> Attempt:
    setup = Setup(
        environment, lambda task, _: LocalPlayer(agent(task)), make_environment_user(environment)
    )
    return asyncio.run(play(setup, environment.generate("cancel", 1), 2))


def test_an_attempt_is_recorded_with_its_task_verdict_and_parts() -> None:
    played = attempt()
    data = build_rollout_event(played, SHOP, PROVENANCE, "r1")
    assert (data.rollout, data.alias, data.base, data.policy) == (
        "r1", "agent", "base-1", "adapter-3",
    )  # fmt: skip
    assert (data.source, data.purpose, data.simulator) == ("simulation", "evaluate", "scripted")
    assert data.task == SHOP.generate("cancel", 1).record()
    assert (data.trial, data.seed) == (2, played.seed)
    assert (data.success, data.reward, data.grader) == (True, 1.0, "shop/2")
    assert (data.termination, data.reason) == ("user_stop", None)
    assert data.reward_parts == {
        "DB": 1.0,
        "COMMUNICATE": 1.0,
        "POLICY": 1.0,
        "task": 1.0,
        "penalty_authentication": 0.0,
        "penalty_format": 0.0,
        "penalty_repetition": 0.0,
        "penalty_length": 0.0,
    }
    assert data.content is not None
    assert data.content.messages == played.messages


def test_a_loaded_task_has_our_verdict_beside_its_benchmarks(tmp_path: Path) -> None:
    retail = Retail(write_folder(tmp_path))
    loaded = retail.task("retail/0")
    criteria = loaded.criteria.model_copy(update={"outputs": ("0.10",)})
    task = loaded.model_copy(update={"criteria": criteria})
    answer = Message(role="assistant", content="It costs 10.10.")
    check = check_loaded(retail, task, [answer], "agent_stop")
    assert check is not None
    (verdict,) = list_verdicts(check)
    assert (verdict.source, verdict.success, verdict.score) == ("check", False, 0.0)
    assert verdict.reason == "DB 1, COMMUNICATE 0"
    played = replace(attempt(), check=check)
    data = build_rollout_event(played, SHOP, PROVENANCE, "r1")
    assert (data.success, data.verdicts) == (True, (verdict,))
    assert attempt().check is None
    setup = Setup(
        retail, lambda task, _: LocalPlayer(retail.oracle(task)), make_environment_user(retail)
    )
    gold = asyncio.run(play(setup, loaded, 0))
    assert [line.success for line in list_verdicts(gold.check)] == [gold.success] == [True]


def test_an_attempt_that_a_machine_spoiled_has_no_verdict() -> None:
    spoilt = replace(attempt(), grade=None, reward=None, reason="x" * 5000)
    data = build_rollout_event(spoilt, SHOP, PROVENANCE, "r1")
    assert (data.success, data.reward, data.reward_parts, data.grader) == (None, None, {}, None)
    assert data.reason is not None
    assert len(data.reason) == 500
    assert data.reason.endswith("...")


def test_tools_that_no_catalog_declares_are_named_in_the_event() -> None:
    kiosk = Kiosk()
    undeclared = build_rollout_event(attempt(kiosk.oracle, kiosk), kiosk, PROVENANCE, "r1")
    assert undeclared.known_tools == tuple(SHOP.toolset.tools())
    assert set(undeclared.write_tools or ()) == SHOP.writes
    declared = build_rollout_event(attempt(), SHOP, PROVENANCE, "r1")
    assert (declared.known_tools, declared.write_tools) == (None, None)


def test_a_catalog_is_recorded_only_where_neither_name_nor_rule_tells_it() -> None:
    clinic = Clinic()
    played = asyncio.run(
        play(
            Setup(
                clinic,
                lambda task, _: LocalPlayer(clinic.oracle(task)),
                make_environment_user(clinic),
            ),
            clinic.generate("slot", 0),
            0,
        )
    )
    assert build_rollout_event(played, clinic, PROVENANCE, "r1").tool_roles == clinic.catalog.roles
    for environment in (Shop(), Kiosk(), Retail(), Airline(), Bfcl()):
        assert environment.recorded_tool_roles is None, environment.name


def test_what_was_appended_is_read_back_whole(tmp_path: Path) -> None:
    log, blobs = MemoryLog(), BlobStore(tmp_path)
    noise = json.dumps([hash(str(number)) for number in range(200_000)])
    long = replace(attempt(), messages=(Message(role="assistant", content=noise),))
    rollouts = [
        build_rollout_event(one, SHOP, PROVENANCE, f"r{number}")
        for number, one in enumerate([attempt(), long])
    ]
    append_rollouts(log, blobs, rollouts)
    events = [
        decode(record)
        for partition in range(ROLLOUTS.partitions)
        for record in log.read(ROLLOUTS.name, partition, 0)
    ]
    whole = [
        attach(event, blobs.get(event.blob.sha256))[0] if event.blob else event for event in events
    ]
    found = sorted((event.data for event in whole), key=lambda data: data.key())
    assert found == rollouts
    assert {event.envelope.id for event in events} == {"r0", "r1"}
    assert sum(event.blob is not None for event in events) == 1
    assert all(event.envelope.time is not None for event in events)
