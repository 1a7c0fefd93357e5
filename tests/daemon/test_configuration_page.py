"""docs/configuration.md names every setting, every command and every option, and no others."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic_core import PydanticUndefined

from daemon.cli.root import app
from daemon.config.settings import Settings, names, variable

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

COMMON = {"--home", "--json", "--quiet", "--debug", "--help"}

SAID_OTHERWISE = {"--diagnose", "--wait", "-n", "-f"}
"""Defaults and short forms of options that are named."""


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the first table below a heading, by its first column."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip(" `"): row[1:] for row in cells}


def default(name: str) -> Any:
    model: Any = Settings
    *sections, last = name.split(".")
    for section in sections:
        model = model.model_fields[section].annotation
    value = model.model_fields[last].default
    assert value is not PydanticUndefined
    return value


def test_every_setting_is_described_with_its_variable_and_default() -> None:
    described = rows("Settings")
    assert list(described) == list(names())
    for name, (named, written, meaning) in described.items():
        assert named == f"`{variable(name)}`"
        value = default(name)
        assert written.strip("`") == ("" if value in (None, "", ()) else str(value)), name
        assert meaning


def commands(
    group: typer.Typer, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    tree = typer.main.get_command(group)

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if path and getattr(command, "invoke_without_command", False):
            yield path, command  # A noun that does something by itself.
        if hasattr(command, "commands"):
            for name, child in command.commands.items():
                yield from walk(child, (*path, name))
        else:
            yield path, command

    yield from walk(tree, path)


def test_every_command_and_option_is_described() -> None:
    described = rows("Commands")
    known = dict(commands(app))
    documented = {
        tuple(re.findall(r"[a-z-]+", re.split(r" [A-Z\[]", row)[0])[1:]): " ".join(cells)
        for row, cells in described.items()
    }
    assert set(documented) == set(known)
    for path, command in known.items():
        options = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("-")
        }
        for option in options - COMMON - SAID_OTHERWISE:
            assert option in documented[path], f"kintsugi {' '.join(path)} {option}"


def test_every_command_has_a_help_text() -> None:
    for path, command in commands(app):
        assert command.help, path


def test_the_example_file_can_be_used(tmp_path: Path, clean: Path) -> None:
    from daemon.config.settings import load

    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (clean / "kintsugi.toml").write_text(example)
    assert load().kafka.replication_factor == 3
