"""The reference of the settings, made of their declarations."""

import json
from typing import Any

from daemon.config.reference import list_settings, schema
from daemon.config.settings import Settings, load, names
from tests.daemon.conftest import Kintsugi
from tests.docs.write_settings import PAGE, written


def test_every_setting_has_a_meaning_and_says_what_it_may_be() -> None:
    found = {one.setting: one for one in list_settings()}
    assert list(found) == list(names())
    for one in found.values():
        assert one.meaning, one.setting
        assert one.meaning.endswith("."), one.setting
    assert found["gateway.port"].values == "integer, at least 0, below 65536"
    assert found["jobs.runner"].values == "local, ray"
    assert found["kafka.security.password"].values == "secret"
    assert found["serving.adapters"].values == "path"
    assert found["redaction.rules"].values.endswith("or table")
    assert found["trial.gain"].values == "number, above 0, below 1"
    # Of the class that it is from.
    assert found["gate.alpha"].meaning.startswith("Chance of promoting")


def test_the_defaults_are_those_in_force() -> None:
    in_force = load().model_dump(mode="json")
    for one in list_settings():
        value: Any = in_force
        for part in one.setting.split("."):
            value = value[part]
        if one.setting != "home":  # its tilde is somebody's
            assert one.default == value, one.setting


def test_the_schema_says_it_too_also_of_tables_in_lists() -> None:
    found = schema()
    assert found["properties"]["agents"]["description"] == "Agents that are to be improved."
    upstream = found["$defs"]["Upstream"]["properties"]
    assert upstream["path_map"]["description"].startswith("Folder of this machine ->")
    assert "description" not in Settings.model_json_schema()["properties"]["agents"]


def test_the_command_prints_it(kintsugi: Kintsugi) -> None:
    told = kintsugi("config", "reference", "--json").json
    assert [one["setting"] for one in told] == list(names())
    assert "gateway.port" in kintsugi("config", "reference").out
    printed = kintsugi("config", "schema")
    assert "description" in json.loads(printed.out)["properties"]["home"]


def test_the_table_of_the_page_is_the_generated_one() -> None:
    text = PAGE.read_text()
    assert written(text) == text, "run python -m tests.docs.write_settings"
