"""Users played by adapters in this process, on the same engine as the agent.

Agent and users are adapters of one base. The engine holds that base once, beside the weights in
training. One forward pass writes the next tokens of both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel

from daemon.adapters.adoption import intact
from daemon.adapters.directory import has_provenance, verify
from daemon.config.adapter_paths import locate_for_job
from daemon.engine.chat import Chat
from daemon.engine.generation import Emission, Engine, PromptTooLong, Request
from daemon.engine.policy import Policy
from daemon.engine.weights import Weights
from daemon.solver.base import load_base
from daemon.solver.lora import check_base
from envs.endpoint import AnswerFailure, request_seed
from envs.episode import Episode, Party, Termination
from envs.simulator import Candidate, LineRequest, LineWriter
from envs.task import TaskDefinition
from events.jobs import AdapterUser, JobSpec, ModelUser
from events.messages import Message

Users = Mapping[AdapterUser, Policy]


@dataclass(frozen=True, slots=True)
class UserPolicies:
    """Policies that play a job's users, and the base that they share with the agent."""

    base: Weights
    policies: Users

    def adapt(self, model: PeftModel, name: str) -> Policy:
        """Return the policy of a model in training, with its present weights, over this base."""
        adapted: Any = model.get_base_model()
        return Policy(name, self.base.with_adapters(adapted))


def list_adapter_users(users: Iterable[ModelUser | None]) -> list[AdapterUser]:
    """Return the distinct users that adapters play."""
    return list(dict.fromkeys(user for user in users if isinstance(user, AdapterUser)))


def load_users(spec: JobSpec) -> UserPolicies | None:
    """Load the adapters of a job's users; return None if there are none. Only the engine's copy of
    the base stays in memory. Raise CannotBegin, BadAdapter, WrongBase, OSError."""
    users = list_adapter_users(pool.user for pool in spec.pools)
    if not users:
        return None
    loaded, _ = load_base(spec)
    base = Policy(spec.base, Weights.of(loaded), loaded)
    policies: dict[AdapterUser, Policy] = {}
    for user in users:
        folder = prove_user(user, Path(spec.checkpoint))
        if has_provenance(folder):
            check_base(verify(folder), loaded, folder)
        policies[user] = base.with_adapter(folder, user.adapter)
    return UserPolicies(base.weights, policies)


def prove_user(user: AdapterUser, checkpoint: Path | None) -> Path:
    """Return a user's adapter folder. Raise BadAdapter, BadBase unless it has the user's sha256."""
    folder = locate_for_job(user.folder)
    intact(folder, user.sha256, checkpoint, None)
    return folder


def make_writer(user: AdapterUser, episode: Episode) -> LineWriter:
    """Return the writer that produces the user's lines in an episode."""
    task: TaskDefinition = episode.task
    return LineWriter(
        task,
        episode.seed,
        candidates=user.candidates,
        tools=episode.environment.user_schemas(task),
        trained=True,
    )


class UserLine:
    """The user's next message, while the engine writes it."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        policy: Policy,
        user: AdapterUser,
        writer: LineWriter,
        episode: Episode,
    ) -> None:
        """Prepare the message of an episode in which it is the user's turn; request nothing yet."""
        self.tokens = 0
        """Tokens that the engine wrote so far, for all candidate messages."""
        self.tickets: set[int] = set()
        self._engine, self._chat, self._policy, self._user = engine, chat, policy, user
        self._steps = writer.write(episode.view(Party.USER))
        self._number = len(episode.messages)
        self._written: dict[int, list[int]] = {}
        """Ticket of the last request -> token ids of its answer so far."""
        self._cut: set[int] = set()

    def begin(self) -> Message | None:
        """Request the message; return it if no request is needed. Raise AnswerFailure."""
        return self._advance(None)

    def take(self, emission: Emission) -> Message | None:
        """Add a token; return the message when it is complete. Raise AnswerFailure."""
        self.tokens += 1
        ticket = emission.ticket
        self._written[ticket].append(emission.token)
        if emission.finish is None:
            return None
        self.tickets.discard(ticket)
        if emission.finish == "length":
            self._cut.add(ticket)
        if self.tickets:
            return None
        return self._advance(
            [
                Candidate(self._chat.message(ids, self._number), ticket in self._cut)
                for ticket, ids in self._written.items()
            ]
        )

    def _advance(self, answers: list[Candidate] | None) -> Message | None:
        try:
            request = next(self._steps) if answers is None else self._steps.send(answers)
            while True:
                try:
                    self._submit(request)
                except PromptTooLong as error:
                    failure = AnswerFailure(Termination.CONTEXT_OVERFLOW, str(error))
                    request = self._steps.throw(failure)
                else:
                    return None
        except StopIteration as end:
            message: Message = end.value
            return message

    def _submit(self, request: LineRequest) -> None:
        tools = request.tools if self._chat.shows_tools else ()
        prompt = self._chat.prompt(request.messages, tools)
        self._written, self._cut = {}, set()
        for place in range(request.choices):
            asked = Request(
                prompt=prompt,
                max_tokens=self._user.max_tokens,
                temperature=0.0 if request.is_greedy else self._user.temperature,
                seed=request_seed(request.seed, place) if place else request.seed,
                stop=self._chat.ends,
            )
            ticket = self._engine.submit(self._policy, asked)
            self._written[ticket] = []
            self.tickets.add(ticket)
