"""BFCL's classes, whose methods are the tools: loaded from the distribution bfcl-eval, installed
without dependencies. Only the modules of the eight multi-turn classes and mpmath are imported.

Guarantee: instances share nothing, neither with each other nor with their modules. Not covered:
what the classes' own code does with memory and time.
"""

import sys
from copy import deepcopy
from importlib import import_module
from typing import Any, Final

from envs.environment import UnknownTask

REQUIREMENTS: Final = ("bfcl-eval==2026.3.23", "mpmath==1.3.0")
"""Packages to install, without dependencies; mpmath as bfcl-eval pins it."""

MODULES: Final = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""Class -> its module, and the file of its documentation."""

_PACKAGE: Final = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_PROMPTS: Final = "bfcl_eval.constants.default_prompts"
_STATELESS: Final = "MathAPI"


class NoBfclClasses(UnknownTask):
    """The distribution is not installed, so no task can be executed."""


def instance(name: str, config: dict[str, Any], long_context: bool) -> Any:
    """Return a new object of the class in this initial state. Raise NoBfclClasses."""
    api = getattr(_module(name), name)()
    if name != _STATELESS:
        api._load_scenario(deepcopy(config), long_context=long_context)
    # In the long context, parts of the state are the module's own and would be changed for all.
    return deepcopy(api)


def require() -> None:
    """See that the classes can be imported. Raise NoBfclClasses."""
    for name in MODULES:
        _module(name)


def read_official_sentence() -> str:
    """Return what BFCL's user says when held-out functions come. Raise NoBfclClasses."""
    return str(_import(_PROMPTS).DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)


def _module(name: str) -> Any:
    return _import(f"{_PACKAGE}.{MODULES[name]}")


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise NoBfclClasses(
            f"the tools of bfcl are classes of another distribution ({error}); install it without "
            f"its dependencies: uv pip install --python {sys.executable} --no-deps "
            f"{' '.join(REQUIREMENTS)}"
        ) from error
