"""Players of a trial or an evaluation: an adapter, or a version with members and a chooser.

Only this module of the evaluation imports the methods by which choosers choose. In a stored plan
the chooser's fields are named `router` and `router_adapter`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from events.errors import KintsugiError
from events.jobs import Chooser, Sha256
from events.lifecycle import State
from events.messages import StrictModel
from events.rollouts import MemberChoice
from events.serving import Composition

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.serving import AdapterRow
    from daemon.engine.chat import Chat
    from daemon.engine.policy import Policy
    from daemon.engine.thread import EngineThread
    from daemon.evaluation.member_agents import Choose
    from daemon.methods.skills.endpoint_router import ListFields
    from envs.endpoint import Endpoint
    from producers.gateway.skills.label_router import RouterAnswer


class NoSuchPart(KintsugiError):
    """An adapter that is a part of a version is unknown, or its files were collected."""


class Adapter(StrictModel):
    """A player that is an adapter, with the folder in which its job wrote it."""

    name: str
    folder: str
    sha256: Sha256


class PlayerWithMembers(StrictModel):
    """A version with members and a chooser, and the adapters of both."""

    name: str
    members: dict[str, Adapter | None]
    """Member's skill -> the adapter that answers for it; None: the base."""
    router: Chooser
    router_adapter: Adapter | None = None
    """Adapter that chooses; None for the base."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        skills = {option.skill for option in self.router.options} - {None}
        if skills != set(self.members):
            raise ValueError(
                f"the members of {self.name} are of {', '.join(sorted(self.members))}, and its "
                f"router chooses among {', '.join(sorted(map(str, skills)))}"
            )
        asked = None if self.router_adapter is None else self.router_adapter.name
        if asked != self.router.adapter:
            raise ValueError(
                f"the router of {self.name} is {self.router.adapter or 'the base'}, and the files "
                f"are those of {asked or 'the base'}"
            )
        return self

    @property
    def chooser_adapter(self) -> Adapter | None:
        """Return the adapter that chooses; None for the base."""
        return self.router_adapter

    def find_member(self, choice: MemberChoice) -> Adapter | None:
        """Return the adapter of the chosen member; None: the base."""
        return None if choice.skill is None else self.members[choice.skill]


Player = Adapter | PlayerWithMembers | None
"""The policy that plays: an adapter, a version with members, or None for the base."""


def list_adapters(player: Player) -> list[Adapter]:
    """Return all adapters that a player needs, with its chooser's."""
    if isinstance(player, PlayerWithMembers):
        parts = (*player.members.values(), player.chooser_adapter)
        return [adapter for adapter in parts if adapter is not None]
    return [] if player is None else [player]


def build_player(connection: "Connection", row: "AdapterRow | None") -> Player:
    """Return the player for a version's row; None (the base) for no row. Raises NoSuchPart."""
    if row is None:
        return None
    if row.chooser is None:
        return _describe(row)
    parts = {name: _read_part(connection, row, name) for name in row.parts}
    chooser = row.chooser
    return PlayerWithMembers(
        name=row.adapter,
        members={
            name: None if adapter is None else parts[adapter]
            for name, adapter in row.members.items()
        },
        router=chooser,
        router_adapter=None if chooser.adapter is None else parts[chooser.adapter],
    )


def describe_composition(composition: Composition) -> dict[str, Any]:
    """Return the field that a composition adds to an evaluation's digest."""
    return {"panel": composition.model_dump(mode="json")}


def list_member_kinds(connection: "Connection", row: "AdapterRow") -> tuple[str, ...]:
    """Return the different kinds of task of a version's members, or of an adapter its own kind."""
    from consumers.reads.serving import adapter_row

    if row.has_files:
        return () if row.capability is None else (row.capability,)
    rows = (
        adapter_row(connection, adapter) for adapter in row.members.values() if adapter is not None
    )
    kinds = (part.capability for part in rows if part is not None)
    return tuple(dict.fromkeys(kind for kind in kinds if kind is not None))


def _read_part(connection: "Connection", whole: "AdapterRow", name: str) -> Adapter:
    from consumers.reads.serving import adapter_row

    row = adapter_row(connection, name)
    if row is None or row.state is State.COLLECTED:
        raise NoSuchPart(
            f"{whole.adapter} has {name} as a part, "
            f"{'which is not known' if row is None else 'whose files were collected'}; compose a "
            "panel of adapters that are there"
        )
    return _describe(row)


def _describe(row: "AdapterRow") -> Adapter:
    return Adapter(name=row.adapter, folder=row.path, sha256=row.sha256)


def choose_members(
    player: PlayerWithMembers,
    policy: "Policy",
    chat: "Chat",
    conversations: Sequence[Sequence[Mapping[str, Any]]],
    tools: Sequence[Sequence[Mapping[str, Any]]],
) -> list[MemberChoice]:
    """Let the chooser, which answers by `policy`, choose a member for each conversation. `tools`
    holds the tools that each conversation offers the agent. Raises NoTemplate."""
    from daemon.methods.skills.engine_router import ask

    answers = ask(policy, chat, player.router, conversations, tools)
    return [_build_choice(player, answer) for answer in answers]


async def choose_member(
    player: PlayerWithMembers,
    thread: "EngineThread",
    policy: "Policy",
    chat: "Chat",
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> MemberChoice:
    """Let the chooser choose a conversation's member, with the engine that `thread` runs. Raises
    EndpointUnavailable, NoTemplate."""
    from daemon.methods.skills.engine_router import ask_thread

    answer = await ask_thread(thread, chat, policy, player.router, messages, tools)
    return _build_choice(player, answer)


def make_endpoint_chooser(
    composition: Composition, endpoints: "Mapping[str | None, Endpoint]", list_fields: "ListFields"
) -> "Choose":
    """Return a function that asks the chooser over HTTP. `endpoints` maps each adapter (None: the
    base) to its endpoint. `list_fields` returns the prompt's fields other than the messages."""
    from daemon.methods.skills.endpoint_router import EndpointRouter

    return EndpointRouter(composition, endpoints, list_fields).choose


def _build_choice(player: PlayerWithMembers, answer: "RouterAnswer") -> MemberChoice:
    member = None if answer.skill is None else player.members[answer.skill]
    return MemberChoice(
        skill=answer.skill,
        adapter=None if member is None else member.name,
        doubt=answer.doubt,
    )
