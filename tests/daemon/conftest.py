"""The command line in this process, with no setting from outside; adapters for it; and the vLLM
servers that the tests of several folders share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemon.__main__ import main
from tests.daemon.commands import Result, write_examples

if TYPE_CHECKING:
    from ops.random_adapters import Adapters
    from ops.vllm.server import Vllm
    from tests.daemon.vllms import RecitingVllm

Kintsugi = Callable[..., Result]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No setting from outside, and a working directory of the test's own."""
    for name in list(os.environ):
        if name.startswith("KINTSUGI_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: Path) -> Path:
    """A home that does not exist yet, in force."""
    folder = tmp_path / "home"
    monkeypatch.setenv("KINTSUGI_HOME", str(folder))
    return folder


@pytest.fixture
def kintsugi(capsys: pytest.CaptureFixture[str], clean: Path) -> Kintsugi:
    """Run a command line in this process."""

    def run(*arguments: str | Path) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def imported(home: Path, kintsugi: Kintsugi, tmp_path: Path) -> Path:
    """A home with the examples in it."""
    result = kintsugi("import", write_examples(tmp_path / "examples.jsonl"), "--json")
    assert (result.code, result.json["imported"]) == (0, 5), result.err
    return home


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> "Adapters":
    """Directories of adapters of the reference policy, which nobody changes."""
    from ops.random_adapters import make_adapters

    return make_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def vllm() -> "Iterator[Vllm]":
    """A real vLLM over the reference policy, in float32. A test unloads the adapters it loads."""
    from tests.daemon.vllms import serve_reference

    with serve_reference() as server:
        yield server


@pytest.fixture(scope="session")
def reciting_vllm() -> "Iterator[RecitingVllm]":
    """A real vLLM as it must be, whose model recites. The sampling parameters of its checkpoint
    must be without effect."""
    from daemon.solver.reference.demonstrations import vocabulary
    from envs.shop.environment import Shop
    from tests.daemon.vllms import serve_reciting

    with serve_reciting(vocabulary(Shop()), temperature=0.5) as server:
        yield server
