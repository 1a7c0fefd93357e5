"""A user played by a model: the scenario in its system prompt, the roles turned around.

The model sees what was said and no call of the agent; for it the agent is the `user`. Where the
task gives the user tools it may call them, and sees its own calls and results. One of the stop
tokens (users.py) in its text hangs up. It can give several candidates for a line: what breaks a
rule is dropped (`find_breach`), and of the rest the same model is asked for the number of the best.
Where that choice fails the first counts, and `remarks` says so.

Guarantee: its failure is never the agent's: the episode ends as `user_error` or
`infrastructure_error`, and is not judged.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envs.endpoint import AnswerFailure, Endpoint, Sampling, Usage, request_seed
from envs.episode import Termination
from envs.task import TaskDefinition
from envs.users import OUT_OF_SCOPE, STOP, STOP_TOKENS, TRANSFER
from events.messages import Message, Role

ROUNDS: Final = 3
"""How often candidates are asked for, with other seeds, before a line counts as failed."""

_RULES: Final = f"""\
You play a customer who writes to a company's support. The other side is a support agent; you never
are. Your situation is described below. Stay in it.

Write one short message at a time, in your own words, as a person would type it, and nothing else:
no name before it, no quotes, no notes.
Tell only what the situation says. Give a detail when it is needed or asked for, not all at once.
What the situation does not say you do not know: say so, and invent nothing. If it tells you how to
behave, or what to do when something is offered or refused, do that.

Three words end the conversation. Write one alone, when it is true:
{STOP}          what you came for is done, or you were told for certain that it will not be
{TRANSFER}      you are being handed over to a person
{OUT_OF_SCOPE}  your situation does not tell you enough to go on
Never write one of them while something is still open: a question to you, a confirmation, a part of
your request.

Your situation:
"""

_TOOL_RULES: Final = """\
You hold the device that this is about, and the tools are what you can do with it. Use one when the
agent asks you to do or to look at something, one step at a time, and tell the agent what you see.
Say nothing of the device that no tool has shown you, and do nothing that nobody asked you for. In
one message either call tools or write to the agent.

"""

_TRAINED_RULES: Final = "You are the customer. Your situation:\n"
"""All that a model is told that was trained to play users: the rest it has learnt."""

_OPEN: Final = "(The agent is there. Write your first message.)"
"""What the model is told before the first message: many chat templates need a first line."""

_CHOOSE: Final = """\
Below are a customer's situation, a conversation with a support agent, and numbered candidates for
the customer's next message. Which one fits best? It must follow the situation to the letter, answer
what the agent said last, invent nothing, and end the conversation only when it is over.
Answer with its number alone.
"""

_LABEL: Final = re.compile(
    r"^\W*(agent|assistant|support|representative|system|tool)\W*:", re.IGNORECASE | re.MULTILINE
)
_NUMBER: Final = re.compile(r"\d+")


class ModelUser:
    """A player of the user's party (players.py)."""

    def __init__(
        self,
        endpoint: Endpoint,
        task: TaskDefinition,
        seed: int,
        *,
        candidates: int = 1,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`candidates` per line; from two on, the best is chosen. `tools` are the user's, in
        OpenAI's format."""
        self.endpoint = endpoint
        self.scenario = task.scenario.text()
        self.seed = seed
        self.candidates = candidates
        self.sampling = sampling
        self.tools = tools
        self.usage = Usage()
        self.remarks: list[str] = []

    async def reply(self, messages: Sequence[Message]) -> Message:
        """The user's next line. Raises AnswerFailure (never for the agent's account)."""
        try:
            candidates = await self._candidates(messages)
            for candidate in candidates:
                if candidate.tool_calls:
                    return Message(role="user", tool_calls=candidate.tool_calls)
            lines = [candidate.text.strip() for candidate in candidates]
            line = lines[0] if len(lines) == 1 else await self._best(messages, lines)
        except AnswerFailure as failure:
            raise _as_users(failure) from failure
        return Message(role="user", content=line)

    async def _candidates(self, messages: Sequence[Message]) -> list[Message]:
        """The usable candidates, each line once; from as many requests as the endpoint needs."""
        asked = build_user_view(self.scenario, messages, acts=bool(self.tools))
        broken = ""
        for turn in range(ROUNDS):
            usable: dict[str, Message] = {}
            count = 0
            while count < self.candidates:
                seed = request_seed(self.seed, "user", len(messages), turn, count)
                completion = await self.endpoint.complete(
                    asked,
                    tools=self.tools,
                    sampling=self.sampling,
                    seed=seed,
                    choices=self.candidates - count,
                )
                self.usage += completion.usage
                count += len(completion.messages)
                for message in completion.messages:
                    problem = find_breach(
                        message, opening=not _spoke(messages), acts=bool(self.tools)
                    )
                    broken = problem or broken
                    if problem is None:
                        usable.setdefault(message.text.strip(), message)
            if usable:
                return list(usable.values())
            self.remarks.append(f"no candidate for the user's line could be used: {broken}")
        raise AnswerFailure(
            Termination.USER_ERROR, f"no line could be used in {ROUNDS} rounds: {broken}"
        )

    async def _best(self, messages: Sequence[Message], lines: Sequence[str]) -> str:
        """The candidate that the model chooses; the first where it does not."""
        spoken = [message for message in messages if message.text and message.role != "tool"]
        conversation = "\n".join(f"{_speaker(message)}: {message.text}" for message in spoken)
        numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
        question = (
            f"Situation:\n{self.scenario}\n\nConversation:\n{conversation}\n\n"
            f"Candidates:\n{numbered}"
        )
        try:
            completion = await self.endpoint.complete(
                [
                    Message(role="system", content=_CHOOSE),
                    Message(role="user", content=question),
                ],
                sampling=Sampling(temperature=0.0),
                seed=request_seed(self.seed, "choice", len(messages)),
            )
        except AnswerFailure as failure:
            if failure.termination is Termination.INFRASTRUCTURE_ERROR:
                raise
            return self._first(lines, failure.reason)
        self.usage += completion.usage
        chosen = parse_number(completion.message.text, len(lines))
        if chosen is None:
            return self._first(lines, "it named none")
        return lines[chosen - 1]

    def _first(self, lines: Sequence[str], because: str) -> str:
        self.remarks.append(f"the choice of the user's line failed, the first was taken: {because}")
        return lines[0]


def build_user_view(
    scenario: str, messages: Sequence[Message], *, acts: bool, trained: bool = False
) -> list[Message]:
    """Return what a model that plays a user reads: the rules, its situation, and what was said with
    the roles turned around. `acts`: whether the user has tools; `trained`: whether the model was
    trained to play users, and so is shown its situation alone."""
    untrained = _TOOL_RULES + _RULES if acts else _RULES
    rules = _TRAINED_RULES if trained else untrained
    return [Message(role="system", content=rules + scenario), *swap_roles(messages)]


def swap_roles(messages: Sequence[Message]) -> list[Message]:
    """What was said as the user's model sees it: the agent speaks as `user`. The user's own calls
    and their results stay with it."""
    lines = [_swap_role(message) for message in messages]
    return lines or [Message(role="user", content=_OPEN)]


def _swap_role(message: Message) -> Message:
    if message.role == "tool":
        return message
    if message.tool_calls:
        return message.model_copy(update={"role": "assistant"})
    role: Role = "user" if message.role == "assistant" else "assistant"
    return Message(role=role, content=message.text)


def find_breach(message: Message, *, opening: bool, acts: bool = False) -> str | None:
    """Return which rule a candidate breaks, in words; None for a usable one. `acts`: whether the
    user has tools."""
    text = message.text.strip()
    if message.tool_calls:
        return None if acts else "it calls a tool"
    if not text:
        return "it is empty"
    if _LABEL.search(text):
        return f"it speaks for the agent: {text[:80]!r}"
    if opening and any(token in text for token in STOP_TOKENS):
        return f"it hangs up before it said what it wants: {text[:80]!r}"
    return None


def parse_number(text: str, count: int) -> int | None:
    """The one number from 1 to `count` that a text names; None for none or several."""
    named = {int(digits) for digits in _NUMBER.findall(text[:1000]) if len(digits) < 4}
    valid = [number for number in named if 1 <= number <= count]
    return valid[0] if len(valid) == 1 else None


def _spoke(messages: Sequence[Message]) -> bool:
    """Whether the user has said something; a call of a tool says nothing."""
    return any(message.role == "user" and not message.tool_calls for message in messages)


def _speaker(message: Message) -> str:
    return "Agent" if message.role == "assistant" else "Customer"


def _as_users(failure: AnswerFailure) -> AnswerFailure:
    """A failure of the user's model, told from one of the agent's."""
    infrastructure = failure.termination is Termination.INFRASTRUCTURE_ERROR
    termination = Termination.INFRASTRUCTURE_ERROR if infrastructure else Termination.USER_ERROR
    return AnswerFailure(termination, f"the user's model: {failure.reason}")
