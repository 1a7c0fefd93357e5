"""What was won live since the first promotion, for the demo's report.

read_lift(connection, alias)    the lift of the demo's agent; None before a promotion
lift_section(report)            a part of the page
"""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from daemon.serving.lift import Lift, read_lifts
from daemon.status.stages import describe_lift

if TYPE_CHECKING:
    from sqlalchemy import Connection


def read_lift(connection: "Connection", alias: str) -> Lift | None:
    """Return the lift of an agent; None while none of its sessions are compared."""
    return next((lift for lift in read_lifts(connection) if lift.alias == alias), None)


def lift_section(report: Mapping[str, Any]) -> str:
    """Return the heading and the sentence of the page; empty where nothing was held out."""
    if report["lift"] is None:
        return ""
    sentence = escape(_sentence(report["lift"]))
    return f"<h2>Won live since the first promotion</h2>\n<p>{sentence}</p>"


def _sentence(lift: Mapping[str, Any]) -> str:
    return (
        f"{describe_lift(lift)}. {lift['share']:.0%} of the sessions stay with the base; the "
        "bounds hold with 95 % however often they are read."
    )
