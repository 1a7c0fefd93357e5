"""A run fails where a claim's proof did not run and pass; the runs here are real ones of pytest."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.proofs.claims import Claim, Proof, claims_in, claims_of

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_passes_with_each(number):
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_fails_with_one(number):
    assert number == 1

@pytest.mark.skip(reason="not today")
def test_is_skipped():
    pass

@pytest.mark.xfail
def test_is_expected_to_fail():
    assert False

@pytest.mark.long
def test_is_long():
    pass

@pytest.mark.benchmarks
def test_needs_data():
    pass
"""
SETTINGS = """
[pytest]
addopts = -m "not long" -p no:cacheprovider
markers =
    long: takes minutes
    benchmarks: needs data
"""

Project = Callable[..., tuple[int, str]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Run the tests of a small project whose one document claims what these cells prove."""

    def run(*cells: str, run: str = "test", options: tuple[str, ...] = ()) -> tuple[int, str]:
        rows = [f"| promise {number} | {cell} |" for number, cell in enumerate(cells)]
        table = "\n".join(["| promise | proof |", "|---|---|", *rows])
        for name, text in {
            "README.md": table,
            "docs/guarantees.md": "# Guarantees\n\nNothing.\n",
            "pytest.ini": SETTINGS,
            "tests/test_planted.py": TESTS,
        }.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        clean = {name: value for name, value in os.environ.items() if name != "KINTSUGI_BENCHMARKS"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "ops.proofs.plugin", "--proofs", run, *options],
            cwd=tmp_path,
            env={**clean, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout

    return run


def named(test: str, condition: str = "") -> str:
    return f"`tests/test_planted.py::{test}`" + (f" ({condition})" if condition else "")


KEEP = ("-k", "not fails_with_one")
"""Without the test that fails the run by itself."""


@pytest.mark.processes
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "in two processes"])
def test_what_ran_and_passed_is_proven(project: Project, options: tuple[str, ...]) -> None:
    code, output = project(
        f"{named('test_passes')}, {named('test_passes_with_each')}",
        named("test_is_long", "make long"),
        named("test_needs_data", "KINTSUGI_BENCHMARKS"),
        options=(*KEEP, *options),
    )
    assert code == 0, output
    assert "proofs of 3 claims: 2 of 2 tests ran and passed; 1 more need" in output


@pytest.mark.processes
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "in two processes"])
def test_every_claim_that_nothing_shows_fails_the_run_with_its_reason(
    project: Project, options: tuple[str, ...]
) -> None:
    code, output = project(
        named("test_passes"),
        "by looking at it",
        named("test_is_skipped"),
        named("test_is_expected_to_fail"),
        named("test_is_long"),
        named("test_is_missing"),
        named("test_passes_with_each", "make long"),
        options=(*KEEP, *options),
    )
    assert code == 1, output
    for line in (
        "README.md:4: 'promise 1' names no test as its proof",
        "README.md:5: tests/test_planted.py::test_is_skipped skipped (",
        "README.md:6: tests/test_planted.py::test_is_expected_to_fail xfail (",
        "README.md:7: tests/test_planted.py::test_is_long has nothing behind it",
        "README.md:7: tests/test_planted.py::test_is_long was left out",
        "README.md:8: tests/test_planted.py::test_is_missing is not there",
        "README.md:9: tests/test_planted.py::test_passes_with_each has make long behind it",
    ):
        assert line in output, f"{line}\n{output}"
    assert "README.md:3" not in output


@pytest.mark.processes
def test_one_bad_parameter_or_a_narrowed_run_proves_nothing(project: Project) -> None:
    code, output = project(named("test_fails_with_one"))
    assert (code, "test_fails_with_one failed (call of" in output) == (1, True), output
    code, output = project(named("test_passes"), options=("-k", "nothing_like_it"))
    assert (code, "test_passes was left out" in output) == (1, True), output


@pytest.mark.processes
def test_the_long_run_proves_what_is_long_and_nothing_else(project: Project) -> None:
    cells = named("test_is_long", "make long"), named("test_passes")
    code, output = project(*cells, run="long", options=("-m", "long"))
    assert (code, "1 of 1 tests ran and passed" in output) == (0, True), output
    code, output = project(*cells, run="long", options=KEEP)
    assert (code, "test_is_long was left out" in output) == (1, True), output


def test_claims_are_rows_of_tables_with_a_column_of_proofs() -> None:
    text = """
| promise | means | proof |
|---|---|---|
| One | a \\| b | `tests/a.py::test_b` (make long), `tests/c.py::test_d` |
| Two | nothing | none |

| what | where |
|---|---|
| `tests/a.py::test_b` | no claim |
"""
    assert list(claims_in("README.md", text)) == [
        Claim(
            "One",
            "README.md",
            4,
            (Proof("tests/a.py::test_b", "make long"), Proof("tests/c.py::test_d", None)),
        ),
        Claim("Two", "README.md", 5, ()),
    ]


def test_every_claim_of_these_documents_names_a_test() -> None:
    claims = claims_of(ROOT)
    assert [claim.place for claim in claims if not claim.proofs] == []
    assert "docs/guarantees.md" in {claim.document for claim in claims}


@pytest.mark.parametrize("target", ["test", "long"])
def test_make_asks_for_the_proofs_where_it_runs_everything(target: str) -> None:
    """A narrowed run cannot show them all."""
    steps = subprocess.run(
        ["make", "--dry-run", target, "PYTEST="], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert f"--proofs {target}" in steps
    narrowed = subprocess.run(
        ["make", "--dry-run", target, "PYTEST=-k x"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert "--proofs" not in narrowed
