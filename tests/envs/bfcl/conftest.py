"""What the tests of bfcl share: a small folder, and the distribution with its classes."""

from pathlib import Path

import pytest

from envs.bfcl.classes import NoBfclClasses, require
from envs.bfcl.environment import Bfcl
from tests.conftest import missing
from tests.envs.bfcl.files import write_folder


@pytest.fixture(scope="session")
def classes() -> None:
    """The test needs BFCL's classes, which `make components` installs."""
    try:
        require()
    except NoBfclClasses as error:
        missing(str(error))


@pytest.fixture
def bfcl(tmp_path: Path) -> Bfcl:
    """The environment over a small folder."""
    return Bfcl(write_folder(tmp_path))
