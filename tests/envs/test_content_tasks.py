"""Tasks by content: the id follows from the body, and every environment finds them by it."""

import json
from typing import Any

import pytest

from envs.airline.environment import Airline
from envs.environment import Environment, UnknownTask
from envs.registry import open_place
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.task import (
    BadDefinition,
    TaskDefinition,
    compute_content_id,
    has_nul,
    is_content_id,
    read_body,
    write_body,
)
from envs.telecom.environment import Telecom
from envs.toolsandbox.environment import ToolSandbox

PLUGIN = """
from envs.environment import UnknownTask
from envs.shop.environment import Shop


class Kiosk(Shop):
    name = "kiosk"

    def task(self, task_id):
        if "=" in task_id:
            raise UnknownTask("an override that knows nothing of bodies")
        return super().task(task_id)

    def rephrase(self, task, seed):
        raise AssertionError("its words are no generator's")
"""


def edited(environment: Environment, seed: int = 7) -> TaskDefinition:
    """A task that no generator makes, under its id by content."""
    task = environment.generate(next(iter(environment.capabilities)), seed)
    scenario = task.scenario.model_copy(update={"persona": "You are in a hurry."})
    return task.model_copy(update={"scenario": scenario}).name_by_content()


def kept(*tasks: TaskDefinition) -> dict[str, str]:
    """Id -> text of the body."""
    return {task.id: write_body(task.dump_body()) for task in tasks}


def test_the_id_of_a_stored_body_never_changes() -> None:
    generated = Shop().generate("cancel", 7)
    criteria = generated.criteria.model_copy(update={"rules": None})
    task = generated.model_copy(update={"criteria": criteria}).name_by_content()
    assert task.id == "shop/=57dc4b469d65bc3e9b7e06e43a0aac354b23f0d7af7cafc3d748a8580150b388"
    assert "rules" not in task.dump_body()["criteria"]
    assert task.dump_body().keys().isdisjoint({"id", "setup", "ticket"})


@pytest.mark.parametrize(
    "environment", [Shop(), Retail(), Airline(), Telecom(), ToolSandbox()], ids=lambda env: env.name
)
def test_a_task_by_content_begins_as_its_body_says(environment: Environment) -> None:
    task = edited(environment)
    environment.use_definitions(kept(task).get)
    again = environment.task(task.id)
    assert again == task
    assert is_content_id(again.record().id)
    original = environment.generate(task.capability, 7)
    assert environment.reset(again).digest() == environment.reset(original).digest()
    assert environment.rephrase(again, 3) is None
    fresh = environment.like(again, 5)
    assert fresh is not None
    assert fresh.id == environment.task_id(task.capability, 5)


def test_an_environment_of_a_user_that_overrides_everything_finds_them_too(tmp_path: Any) -> None:
    file = tmp_path / "kiosk.py"
    file.write_text(PLUGIN)
    kiosk = open_place(str(file))
    task = edited(kiosk)
    kiosk.use_definitions(kept(task).get)
    assert kiosk.task(task.id) == task
    assert kiosk.rephrase(task, 1) is None
    with pytest.raises(UnknownTask, match="knows nothing of bodies"):
        kiosk.task("kiosk/=short")


@pytest.mark.parametrize("named", ["{id}0", "shop/={other}", "retail/={sha}", "{id}/3", "shop/="])
def test_an_unknown_id_is_refused_with_its_name(named: str) -> None:
    shop = Shop()
    task = edited(shop)
    shop.use_definitions(kept(task).get)
    name = named.format(id=task.id, other="0" * 64, sha=task.id.partition("=")[2])
    with pytest.raises(UnknownTask) as refusal:
        shop.task(name)
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("hurry", "rush"), "it was changed"),
        (lambda text: text[:-1], "is no JSON"),
        (lambda text: "[]", "is no JSON object"),
        (lambda text: "[" * 100_000, "is no JSON"),
    ],
    ids=["changed", "cut off", "a list", "deep"],
)
def test_a_body_is_believed_only_where_it_hashes_to_the_id(change: Any, reason: str) -> None:
    shop = Shop()
    task = edited(shop)
    shop.use_definitions({task.id: change(kept(task)[task.id])}.get)
    with pytest.raises(UnknownTask, match=f"{reason}.*kintsugi tasks add"):
        shop.task(task.id)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x00b", True),
        ("\\u0000", False),
        ("\\\x00", True),
        ("\\\\u0000", False),
        ("\n\x00", True),
    ],
)
def test_a_character_that_no_table_holds_is_seen(text: str, expected: bool) -> None:
    assert has_nul({"scenario": {"persona": text}}) == expected
    assert has_nul({text: [1]}) == expected


def test_the_order_of_keys_and_the_escapes_of_a_text_are_no_part_of_the_id() -> None:
    task = edited(Shop())
    scenario = task.scenario.model_copy(update={"persona": "Zoë \u2028"})
    task = task.model_copy(update={"scenario": scenario}).name_by_content()
    body = task.dump_body()
    turned = json.dumps(dict(reversed(body.items())), ensure_ascii=False)
    assert read_body(task.id, turned) == read_body(task.id, write_body(body)) == task


def test_a_body_of_a_later_version_is_refused_and_not_read_in_part() -> None:
    body = {**edited(Shop()).dump_body(), "weather": []}
    name = compute_content_id(body)
    with pytest.raises(BadDefinition, match="no task of this version: weather"):
        read_body(name, write_body(body))
