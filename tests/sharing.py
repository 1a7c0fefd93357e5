"""A part of pytest: how tests are shared out between the processes of pytest-xdist.

A file stays together, and so does all that asks vLLM, and all that asks Ray: what a module or a
session sets up is then set up once. What takes longest comes first, so that no process
is left with it alone. `--dist loadgroup` would do the same, but pytest-xdist 3.8 writes the groups
into a field that pytest 9.2 no longer reads, and shares out test by test without a word.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_MARKED = re.compile(r"pytest\.mark\.(\w+)")
SLOW = frozenset({"vllm", "ray", "faults"})
"""Marks of what comes first."""


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out units. It runs in the first process, which collects no tests and knows their names
    alone: what a file's tests are marked with stands in the file."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(self._root / nodeid.partition("::")[0])


@cache
def marks_in(file: Path) -> frozenset[str]:
    """Return the marks that a file names."""
    return frozenset(_MARKED.findall(file.read_text()))


def unit_of(file: Path) -> str:
    """Return the name of what one process has to run, of which this file is a part."""
    marks = marks_in(file)
    for service in ("ray", "vllm"):
        if service in marks:
            return service
    return str(file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    return FileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the files with slow tests to the front, and leave each file together."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not marks_in(item.path) & SLOW)
