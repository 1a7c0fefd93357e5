"""BFCL's classes, whose methods are the tools. They come from the distribution bfcl-eval, installed
without dependencies. Only the modules of the eight multi-turn classes and mpmath are imported.

Guarantee: instances share no state with each other or with their modules. Not covered: the time and
memory that the classes' own code takes.
"""

import sys
from copy import deepcopy
from importlib import import_module
from typing import Any, Final

from envs.environment import UnknownTask

REQUIREMENTS: Final = ("bfcl-eval==2026.3.23", "mpmath==1.3.0")
"""Packages to install without their dependencies. bfcl-eval pins this version of mpmath."""

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
"""Class -> the name of its module and of its documentation file."""

_PACKAGE: Final = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_PROMPTS: Final = "bfcl_eval.constants.default_prompts"
_STATELESS: Final = "MathAPI"


class NoBfclClasses(UnknownTask):
    """The distribution bfcl-eval is not installed, so no task can be executed."""


def instance(name: str, config: dict[str, Any], long_context: bool) -> Any:
    """Return a new object of a class with the initial state `config`. Raise NoBfclClasses."""
    api = getattr(_module(name), name)()
    if name != _STATELESS:
        api._load_scenario(deepcopy(config), long_context=long_context)
    # With a long context, parts of the state belong to the module; without a copy all share them.
    return deepcopy(api)


def require() -> None:
    """Import all classes. Raise NoBfclClasses if that fails."""
    for name in MODULES:
        _module(name)


def read_official_sentence() -> str:
    """Return BFCL's user message for held-out functions that come. Raise NoBfclClasses."""
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
