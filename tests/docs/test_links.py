"""What the documents point at exists: files, headings and tests."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text())


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files or headings that do not exist."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{name_of(page)}: {target}")
    return broken


def test_links_lead_somewhere() -> None:
    assert PAGES
    broken = [link for page in PAGES for link in broken_links(page)]
    assert not broken, f"these links lead nowhere: {', '.join(broken)}"


def test_tests_that_are_named_as_proof_exist() -> None:
    named = {
        (page, file, test)
        for page in PAGES
        for file, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", page.read_text())
    }
    assert named
    missing = [
        f"{name_of(page)}: {file}::{test}"
        for page, file, test in sorted(named)
        if test not in functions(ROOT / file)
    ]
    assert not missing, f"these tests do not exist: {', '.join(missing)}"


@cache
def functions(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_fault_driver_is_in_the_table_of_faults_and_in_the_plan() -> None:
    from ops.faults.run import PLAN, drivers

    names = {driver.name for driver in drivers()}
    assert names == set(PLAN)
    page = (ROOT / "docs" / "guarantees.md").read_text()
    assert names == set(re.findall(r"\.\./ops/faults/(\w+)\.py", page))


def test_every_decision_is_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs" / "adr"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
    for name in listed:
        text = (folder / name).read_text()
        assert text.startswith(f"# {name[:4]} ")
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences"))


def test_every_document_is_in_the_index_once() -> None:
    folder = ROOT / "docs"
    listed = re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \|", (folder / "README.md").read_text(), re.M)
    present = {path.name for path in folder.glob("*.md")} - {"README.md"}
    present |= {f"{path.parent.name}/README.md" for path in folder.glob("*/README.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == present
