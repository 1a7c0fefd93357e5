"""Pytest plugin: a run fails if a proof that a document names did not run and pass.

    pytest --proofs test      every proof except those that only `make long` runs
    pytest --proofs long      those only

`make test` and `make long` use it. A deselected, skipped, missing or expectedly failing test proves
nothing. A proof that needs recorded data that this machine lacks (KINTSUGI_BENCHMARKS) is reported
and fails nothing. With pytest-xdist each process reports its marks, and the first one judges.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from ops.proofs.claims import CONDITIONS, Claim, Condition, Proof, claims_of

_OPTION: Final = "--proofs"
_RUNS: Final = ("test", "long")
_DATA: Final = "KINTSUGI_BENCHMARKS"
_MARKS: Final[Mapping[str, Condition]] = dict(zip(("long", "benchmarks"), CONDITIONS, strict=True))
"""Mark of a test -> condition that a document must state."""
_OUTPUT: Final = "proofs"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        _OPTION,
        choices=_RUNS,
        help="fail where a proof that a document names did not run and pass: those that `make "
        "test` runs, or those that `make long` does",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register a ProofWatch if the option is set."""
    run = config.getoption(_OPTION)
    if run is not None:
        config.pluginmanager.register(ProofWatch(claims_of(config.rootpath), run), "proof-watch")


class ProofWatch:
    """Watches whether the proofs of the documents pass in one run."""

    def __init__(self, claims: list[Claim], run: str) -> None:
        """`run` is `test` or `long`."""
        self._claims = claims
        self._run = run
        self._named = {proof.test for claim in claims for proof in claim.proofs}
        self._conditions: dict[str, list[str]] = {}
        """Test -> conditions that all its items (parametrized cases) have."""
        self._passed: set[str] = set()
        self._failed: dict[str, str] = {}
        """Test -> why an item (a parametrized case) of it proves nothing."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Record the marks of the proofs before anything is deselected."""
        marked: defaultdict[str, list[set[str]]] = defaultdict(list)
        for item in items:
            if (test := _test_of(item.nodeid)) in self._named:
                own = {name for name in _MARKS if item.get_closest_marker(name)}
                marked[test].append({_MARKS[name] for name in own})
        for test, each in marked.items():
            self._conditions[test] = sorted(set.intersection(*each))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of each phase, also in the first process of pytest-xdist."""
        test = _test_of(report.nodeid)
        if test not in self._named:
            return
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            why = "xfail" if hasattr(report, "wasxfail") else report.outcome
            self._failed.setdefault(test, f"{why} ({report.when} of {report.nodeid})")
        elif report.when == "call":
            self._passed.add(test)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over the marks that another process reports; a crashed process reports none."""
        output = getattr(node, "workeroutput", None)
        if output is not None:
            self._conditions.update(output.get(_OUTPUT, {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run in the first process if there is a problem; report the marks in others."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT] = self._conditions
        elif any(self.problems()) and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a line for each problem."""
        problems = list(self.problems())
        if problems:
            terminalreporter.section("claims without a proof", red=True)
            for problem in problems:
                terminalreporter.write_line(problem)
        required = {proof.test for claim in self._claims for proof in self._select_proofs(claim)}
        left_out = self._without_data()
        terminalreporter.write_line(
            f"proofs of {len(self._claims)} claims: {len(required & self._passed)} of "
            f"{len(required)} tests ran and passed"
            + (f"; {left_out} more need {_DATA}, which is not set" if left_out else "")
        )

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each claim whose proof is missing or did not pass."""
        for claim in self._claims:
            if not claim.proofs:
                yield f"{claim.place}: {claim.promise!r} names no test as its proof"
            for proof in claim.proofs:
                yield from (
                    f"{claim.place}: {proof.test} {why}" for why in self._check_marks(proof)
                )
            for proof in self._select_proofs(claim):
                if (why := self._unproven(proof.test)) is not None:
                    yield f"{claim.place}: {proof.test} {why}"

    def _select_proofs(self, claim: Claim) -> Iterator[Proof]:
        for proof in claim.proofs:
            is_long = proof.condition == _MARKS["long"]
            lacks_data = proof.condition == _DATA and not os.environ.get(_DATA)
            if is_long == (self._run == "long") and not lacks_data:
                yield proof

    def _without_data(self) -> int:
        proofs = {proof for claim in self._claims for proof in claim.proofs}
        lacking = [item for item in proofs if item.condition == _DATA and not os.environ.get(_DATA)]
        return len(lacking) if self._run == "test" else 0

    def _check_marks(self, proof: Proof) -> Iterator[str]:
        marked = self._conditions.get(proof.test)
        if marked is None:
            return
        stated = [] if proof.condition is None else [proof.condition]
        if marked != stated:
            is_said, is_true = ", ".join(stated) or "nothing", ", ".join(marked) or "nothing"
            yield f"has {is_said} behind it in the document, and by its marks it is {is_true}"

    def _unproven(self, test: str) -> str | None:
        if test in self._failed:
            return self._failed[test]
        if test in self._passed:
            return None
        return "was left out" if test in self._conditions else "is not there"


def _test_of(nodeid: str) -> str:
    """Return `tests/a.py::test_b` for `tests/a.py::test_b[c]`."""
    return nodeid.partition("[")[0]
