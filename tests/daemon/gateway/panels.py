"""Panels for the tests: a router whose calibration says what it chooses, whatever it reads."""

from collections.abc import Sequence

from events.jobs import PanelRouter, RouterOption
from events.serving import Panel, PanelMember, RouteShare
from producers.gateway.routing.routes import Adapter, GatewayRoute, GatewayRoutes

SKILLS: tuple[str | None, ...] = ("returns", "payments", None)
TOKENS = (7, 31, 400)
MEMBERS = (
    PanelMember(skill="returns", adapter="one"),
    PanelMember(skill="payments", adapter="two"),
)
FORCE = 1e6
"""Nats by which a forced option is ahead."""


def panel(*choices: str | None, router: str | None = None) -> Panel:
    """Choose the first of the choices in the first order of labels, and the last in the second."""
    calibration = tuple(
        tuple(-FORCE if skill == choice else 0.0 for skill in SKILLS)
        for choice in (choices[0], choices[-1])
    )
    options = tuple(
        RouterOption(skill=skill, label=label, token=token, description=f"About {skill}.")
        for skill, label, token in zip(SKILLS, "ABC", TOKENS, strict=True)
    )
    chooser = PanelRouter(adapter=router, options=options, calibration=calibration)
    return Panel(members=MEMBERS, router=chooser)


def routed(
    panels: dict[str, Panel],
    answers: str | None,
    position: int = 1,
    taken_back: bool = False,
    shadow: str | None = None,
    kept: Sequence[str] = (),
) -> GatewayRoutes:
    """The routes in which one policy answers `agent`; sessions stay with the panels `kept`."""
    adapters = {name: Adapter("agent", "tiny", False) for name in ("one", "two")}
    adapters |= {name: Adapter("agent", "tiny", name in kept, it) for name, it in panels.items()}
    parts = (RouteShare(adapter=answers, share=1.0),)
    route = GatewayRoute("tiny", parts, shadow=shadow, taken_back=taken_back)
    return GatewayRoutes(position, {"agent": route}, adapters)
