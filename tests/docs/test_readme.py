"""What the README says holds: its length, promises, make targets, and paths to the code."""

import re
from pathlib import Path

from ops.house.__main__ import GOALS
from ops.proofs.claims import claims_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def section(text: str, heading: str) -> str:
    return text.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= GOALS["readme_lines"]


def test_every_promise_is_a_claim_with_a_proof() -> None:
    promises = re.findall(r"^- \*\*(.+?)\*\*", section(README, "What it guarantees"), re.MULTILINE)
    assert promises
    claims = {claim.promise for claim in claims_of(ROOT) if claim.document == "docs/guarantees.md"}
    assert set(promises) - claims == set()


def test_its_paths_to_the_code_are_those_of_the_architecture() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    here = re.findall(r"\]\(([\w/]+\.py)\)", section(README, "Where is ...?"))
    there = re.findall(r"\]\(\.\./([\w/]+\.py)\)", section(page, "Where is ...?"))
    assert here
    assert here == there


def test_every_make_target_that_documents_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"make ([a-z]+)`", pages)) | set(
        re.findall(r"^    make ([a-z]+)", pages, re.M)
    )
    assert named <= targets, named - targets


def test_ci_runs_exactly_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "`make test`" in README
    assert re.search(r"^make test$", script, re.MULTILINE)
