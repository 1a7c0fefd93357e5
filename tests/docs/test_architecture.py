"""docs/architecture.md shows every folder, and names what exists."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = ("events", "envs", "producers", "consumers", "migrations", "daemon", "ops")


def block(mark: str) -> list[str]:
    """The lines of the fenced block below `<!-- mark -->`."""
    match = re.search(rf"<!-- {mark} -->\n```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"the page has no block {mark!r}"
    return match[1].splitlines()


def tree() -> Iterator[str]:
    """The folders of the tree, from the root."""
    above: list[str] = []
    for line in block("tree"):
        match = re.fullmatch(r"( *)([\w.-]+)/ +\S.*", line)
        assert match, f"no folder with a description in {line!r}"
        depth = len(match[1]) // 2
        above[depth:] = [match[2]]
        yield "/".join(above)


def folders(package: str) -> set[str]:
    """The package and its folders of Python modules."""
    modules = (path for path in (ROOT / package).rglob("*.py") if not hidden(path))
    return {package} | {str(path.parent.relative_to(ROOT)) for path in modules}


def hidden(path: Path) -> bool:
    return any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)


def test_every_folder_of_the_tree_exists_and_is_there_once() -> None:
    named = list(tree())
    assert len(named) == len(set(named))
    assert [name for name in named if not (ROOT / name).is_dir()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_of_a_package_is_in_the_tree(package: str) -> None:
    assert folders(package) - set(tree()) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_directly_below_a_package_is_in_the_tree(package: str) -> None:
    below = {
        f"{package}/{path.name}"
        for path in (ROOT / package).iterdir()
        if path.is_dir() and not hidden(path) and any(path.iterdir())
    }
    assert below - set(tree()) == set()


def test_every_folder_of_the_repository_is_in_the_tree() -> None:
    named = {name for name in tree() if "/" not in name}
    present = {path.name for path in ROOT.iterdir() if path.is_dir() and not hidden(path)}
    assert named == present - {"dist", "build"}


def test_the_layers_are_those_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (rooms,) = [contract for contract in contracts if contract["id"] == "rooms"]
    assert block("rooms") == rooms["layers"]


def test_the_names_of_where_is_are_in_their_files() -> None:
    section = PAGE.split("## Where is ...?\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\|[^|]*\| \[[^]]+\]\(\.\./([\w/]+\.py)\) \| (.+) \|$", section, re.M)
    assert rows
    for path, text in rows:
        names = re.findall(r"`([\w.]+)`", text)
        assert names, f"no name of {path}"
        for name in names:
            assert defines(path, name), f"{path} does not define {name}"


def defines(path: str, name: str) -> bool:
    """Whether a module has a class or function `A`, or a class `A` with a method `b` for `A.b`."""
    body = ast.parse((ROOT / path).read_text()).body
    for part in name.split("."):
        matches = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == part
        ]
        if not matches:
            return False
        body = matches[0].body
    return True
