"""Fixtures of the reference policy, for what trains it."""

from tests.daemon.engine.reference.conftest import tokens

__all__ = ["tokens"]
