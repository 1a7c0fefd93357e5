"""Records simulated rollouts: attempts become `RolloutEnded` events. Names of the reward's parts:

    DB, COMMUNICATE, ACTION, POLICY, ...   the unshaped parts of the verdict, 0 or 1; null: needs
                                           a judge
    task                                   their product, the unshaped reward
    penalty_authentication, penalty_...    penalties of shaping, at or below 0; null: unknown

Guarantee: the caller gives the id, so a repeated append changes no table. Not covered: exact
tokens, which a gateway records with its calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envs.catalog import catalog
from envs.environment import Environment
from envs.evaluation import Attempt
from envs.grading import Grade, get_version
from events.blobs import BlobStore
from events.codec import encode
from events.envelope import Envelope, utc_now
from events.log import EventLog, now_ms
from events.rollouts import Purpose, RolloutContent, RolloutEnded, RolloutVerdict

SOURCE: Final = "simulation"
SCRIPTED: Final = "scripted"
"""Name of a scripted user, which no model plays and which follows its task."""

_MAX_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class Provenance:
    """Fields that all rollouts of a run share: alias, base, policy, purpose and user simulator."""

    alias: str
    base: str
    policy: str
    purpose: Purpose
    simulator: str | None = None
    """Name of the model that plays the user; None: the environment's own user."""


def name_user(environment: Environment, model: str | None = None) -> str:
    """Return the recorded name of the user simulator: `model`, else the environment's own."""
    if model is not None:
        return model
    return f"{environment.name} itself" if environment.users_err else SCRIPTED


def name_fallible_user(environment: Environment, model: str | None = None) -> str | None:
    """Return the user simulator's name (`name_user`) if that user may make errors, else None."""
    may_err = model is not None or environment.users_err
    return name_user(environment, model) if may_err else None


def build_rollout_event(
    attempt: Attempt, environment: Environment, provenance: Provenance, rollout: str
) -> RolloutEnded:
    """Return an attempt's event under the id `rollout`. For a task made from a person's session it
    has no content, because that begins with the person's words."""
    is_open = attempt.task.salt is None
    declared = catalog(environment.name) is not None
    offered = (schema["function"]["name"] for schema in environment.schemas(attempt.task))
    return RolloutEnded(
        rollout=rollout,
        alias=provenance.alias,
        base=provenance.base,
        policy=provenance.policy,
        source=SOURCE,
        purpose=provenance.purpose,
        task=attempt.task.record(),
        trial=attempt.trial,
        seed=attempt.seed,
        success=attempt.success,
        reward=None if attempt.reward is None else attempt.reward.total,
        reward_parts={} if attempt.grade is None else name_parts(attempt.grade, attempt.penalties),
        grader=None if attempt.grade is None else f"{environment.name}/{get_version(attempt.task)}",
        verdicts=list_verdicts(attempt.check),
        termination=attempt.termination,
        reason=(_shorten(attempt.reason) or None) if is_open else None,
        simulator=name_user(environment, provenance.simulator),
        write_tools=None if declared else tuple(sorted(environment.writes)),
        known_tools=None if declared else tuple(offered),
        tool_roles=environment.recorded_tool_roles,
        content=RolloutContent(messages=attempt.messages) if is_open else None,
    )


def append_rollouts(log: EventLog, blobs: BlobStore, rollouts: Sequence[RolloutEnded]) -> None:
    """Append rollouts durably, in one batch. After LogError none is acknowledged."""
    encoded = [encode(_envelope(rollout), rollout, now_ms()) for rollout in rollouts]
    for event in encoded:
        if event.blob is not None:
            blobs.put(event.blob)
    log.append([event.entry for event in encoded])


def _envelope(data: RolloutEnded) -> Envelope:
    return Envelope(
        id=data.rollout,
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=utc_now(),
    )


def name_parts(grade: Grade, penalties: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the reward's parts under the names in this module's docstring."""
    return {
        **{str(basis): value for basis, value in grade.parts.items()},
        "task": grade.reward,
        **{f"penalty_{name}": value for name, value in penalties.items()},
    }


def list_verdicts(check: Grade | None) -> tuple[RolloutVerdict, ...]:
    """Return an additional verdict in the form of a rollout's `verdicts`; () without one."""
    if check is None:
        return ()
    parts = [
        f"{basis} {'open' if value is None else f'{value:g}'}"
        for basis, value in check.parts.items()
    ]
    verdict = RolloutVerdict(
        source="check", success=check.success, score=check.reward, reason=", ".join(parts)
    )
    return (verdict,)


def _shorten(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON - 3]}..."
