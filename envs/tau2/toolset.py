"""The form in which the tools of tau2-bench's domains answer.

    any exception       `Error: ` and its own text; types of arguments are not checked
    unknown tool        `Error: Tool 'x' not found.`
    arguments that do   Python's own text, with the class and the tool: `Error:
    not bind            RetailTools.get_order_details() missing 1 required positional argument: ...`
    a string            unchanged
    a record            `json.dumps` of it, in the order of its fields
    nothing             `null`

Guarantee: `call` raises nothing and answers byte for byte as the original. Not covered: plain data
whose numbers and truth values the original shows as strings; a tool must return them as strings.
Each domain defines how its tools change the state.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from envs.database import Record
from envs.tau2 import arithmetic
from envs.tools import ToolResult, Toolset, generic

TRANSFERRED: Final = "Transfer successful"


class Tau2Conventions(Toolset):
    """The form in which the tools of every tau2 domain answer."""

    validates: ClassVar[bool] = False

    def render(self, value: Any) -> str:
        """Return a string unchanged, and any other value as JSON in ASCII."""
        return value if isinstance(value, str) else json.dumps(value)

    def _run(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        method = getattr(self, name)
        try:
            return ToolResult(self.render(method(**arguments)))
        except TypeError as error:
            if _binds(method, arguments):
                return ToolResult(f"Error: {error}", error=True)
            # Python names the class that defines the method, the original its domain's.
            text = str(error).replace(f"{method.__qualname__}()", f"{type(self).__name__}.{name}()")
            return ToolResult(f"Error: {text}", error=True, malformed=True)
        except Exception as error:
            return ToolResult(f"Error: {error}", error=True)


class Tau2Toolset(Tau2Conventions):
    """The two tools that retail and airline share, a look-up of records, and the conventions."""

    @generic
    def calculate(
        self,
        expression: Annotated[
            str, Field(description="Numbers, + - * / and parentheses, such as '(12.5 - 3) * 2'.")
        ],
    ) -> str:
        """Work out an arithmetic expression; the result is rounded to two digits."""
        return arithmetic.calculate(expression)

    @generic
    def transfer_to_human_agents(
        self, summary: Annotated[str, Field(description="What the user wants and what was done.")]
    ) -> str:
        """Hand the user over to a person.

        Only when the user asks for one, or when neither the policy nor the tools allow to help.
        """
        return TRANSFERRED

    def _find(self, table: str, key: str, refusal: str) -> Record:
        """Return the record of a table with this key. Raise ValueError with `refusal` if there is
        none."""
        if key not in self.database[table]:
            raise ValueError(refusal)
        return self.database[table][key]


def _binds(method: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(method).bind(**arguments)
    except TypeError:
        return False
    return True
