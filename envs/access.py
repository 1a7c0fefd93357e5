"""The tools of both parties over one state: who may call what.

    access = ToolAccess(AgentTools(database), UserTools(database))
    access.call("get_line", {...})                      the agent
    access.call("toggle_data", {}, requestor="user")    the user

Where the user has tools (dual control), each party reaches its own alone: for the other's it is
told that there is no such tool. In a solo task the agent has both.

Guarantee: as `Toolset.call`, whatever is called returns a result and raises nothing.
"""

from collections.abc import Mapping
from typing import Any, Literal

from envs.database import Database
from envs.tools import ToolResult, Toolset

Requestor = Literal["assistant", "user"]


class ToolAccess:
    """Runs the calls of both parties."""

    __slots__ = ("_agent", "_solo", "_user", "database")

    def __init__(self, agent: Toolset, user: Toolset | None = None, *, solo: bool = False) -> None:
        """`user` has the user's tools, over the same database; with `solo` they are the agent's."""
        self.database: Database = agent.database
        self._agent = agent
        self._user = user
        self._solo = solo

    def call(
        self, name: str, arguments: Mapping[str, Any] | str, requestor: Requestor = "assistant"
    ) -> ToolResult:
        """Run one tool for a party; see `Toolset.call`."""
        if requestor == "user":
            if self._user is None or self._solo:
                return ToolResult("Error: the user has no tools.", error=True, malformed=True)
            return self._user.call(name, arguments)
        if self._solo and self._user is not None and name in self._user.tools():
            return self._user.call(name, arguments)
        return self._agent.call(name, arguments)
