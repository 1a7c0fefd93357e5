"""Fixtures of serving that these tests share."""

from tests.daemon.serving.conftest import make_home, reference

__all__ = ["make_home", "reference"]
