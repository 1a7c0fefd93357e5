"""The environment `lamp`: one in which the user acts too, as small as it can be.

A lamp shines when its line has power, which the agent turns on, and its switch is on, which only
the user can reach.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from envs.database import Database
from envs.environment import Environment
from envs.task import Answer, Assertion, Basis, Criteria, Scenario, Script, TaskDefinition
from envs.tools import ToolError, Toolset, read, write
from envs.users import STOP
from events.messages import Action, Message, ToolCall, executed_calls


class LineTools(Toolset):
    """The agent's."""

    @write
    def power_on(self) -> str:
        """Turn on the power of the line."""
        self.database.edit("lamp", "1")["power"] = True
        return "on"


class LampTools(Toolset):
    """The user's."""

    @read
    def look(self) -> str:
        """Look at the lamp."""
        lamp = self.database["lamp"]["1"]
        return "bright" if lamp["power"] and lamp["switch"] else "dark"

    @write
    def press(self, times: int = 1) -> str:
        """Press the switch."""
        if times < 1:
            raise ToolError("press at least once")
        lamp = self.database.edit("lamp", "1")
        lamp["switch"] = lamp["switch"] != (times % 2 == 1)
        return "pressed"


class Lamp(Environment):
    """A lamp that is dark."""

    name: ClassVar[str] = "lamp"
    toolset = LineTools
    user_toolset = LampTools
    capabilities: ClassVar[dict[str, str]] = {"dark": "power and switch"}

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """The lamp of this seed."""
        return TaskDefinition(
            id=self.task_id(capability, seed),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=Scenario(reason_for_call="My lamp is dark."),
            script=Script(
                opening="My lamp is dark.", answers=(Answer(asks="bright", says=f"Yes. {STOP}"),)
            ),
            criteria=Criteria(
                gold_actions=(Action(name="power_on"), Action(name="press", requestor="user")),
                assertions=(Assertion(name="is_bright", side="user"),),
                reward_basis=("DB", "ENV_ASSERTION"),
            ),
        )

    def pristine(self, task: TaskDefinition) -> Database:
        """A dark lamp."""
        return Database({"lamp": {"1": {"power": False, "switch": False}}})

    def policy(self, task: TaskDefinition) -> str:
        """The rules."""
        return "Help."

    def judge(
        self, basis: Basis, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[str, ...] | None:
        """Whether it shines."""
        if basis != "ENV_ASSERTION":
            return None
        tools = self.open_tools(task, self.reset(task))
        for item in executed_calls(messages):
            tools.call(item.call.name, item.call.arguments, item.requestor)
        lamp = tools.database["lamp"]["1"]
        return () if lamp["power"] and lamp["switch"] else ("the lamp is dark",)


def acts(name: str, **arguments: Any) -> Message:
    """A call of the user."""
    return Message(role="user", tool_calls=(ToolCall(name=name, arguments=arguments, id="u"),))
