"""A user played by a model: the scenario in its system prompt, the roles turned around.

The model sees what was said and no call of the agent, which is its `user`. It may call the tools
that the task gives the user and sees their results. A stop token (users.py) in its text hangs up.
Of several candidates for a line, those that break a rule (`find_breach`) are dropped, and the same
model chooses the best. Where that fails the first counts (for a model trained to play users, the
likeliest), and `remarks` says so. A line with an id or a long number that the user cannot know
counts only where no other line comes.

Guarantee: the model's failure is not the agent's: the episode ends unjudged, as `user_error` or
`infrastructure_error`. The exception is an agent that writes more than the model can read: the
episode ends as `context_window_exceeded`, which is judged. Else writing would avoid every failure.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from envs.endpoint import (
    AnswerFailure,
    Endpoint,
    EndpointRefusal,
    EndpointUnavailable,
    Sampling,
    Usage,
    request_seed,
)
from envs.environment import Environment
from envs.episode import Termination
from envs.evidence.spelling import has_value, is_value
from envs.evidence.words import collect_user_text, split_words, squeeze
from envs.patterns.search import matches
from envs.task import TaskDefinition
from envs.users import OUT_OF_SCOPE, STOP, STOP_TOKENS, TRANSFER
from events.errors import KintsugiError
from events.files import replace_file
from events.jobs import AdapterUser, EndpointUser
from events.messages import Message, Role

ROUNDS: Final = 3
"""How often candidates are asked for, with other seeds, before a line counts as failed."""

_DRAWN_AGAIN: Final = 8
"""Least lines of a model that was trained to play users, from the second time on: one that is sure
of a wrong value mostly draws it again."""

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

_OPEN: Final = "(The agent is there. Write your first message.)"
"""Line before the first message: many chat templates need one."""

_CHOOSE: Final = """\
Below are a customer's situation, a conversation with a support agent, and numbered candidates for
the customer's next message. Which one fits best? It must follow the situation to the letter, answer
what the agent said last, invent nothing, and end the conversation only when it is over.
Answer with its number alone.
"""

_LABEL: Final = r"(?m)^\W*(agent|assistant|support|representative|system|tool)\W*:"
_CALL_MARK: Final = "<tool_call>"
"""Beginning of a call in Hermes' format; no trace of it is left in a readable message."""
_NUMBER: Final = re.compile(r"\d+")
_OWN_OVERFLOW: Final = 0.8
"""Share of what a user reads from which on a context that it exceeds is the agent's doing."""


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A request to a user's model."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    choices: int
    """Answers that are asked for; fewer may come."""
    seed: int
    is_choice: bool
    is_likeliest: bool = False
    """Whether the most likely answer is wanted. As a choice, it is sampled at temperature 0."""

    @property
    def is_greedy(self) -> bool:
        """Whether it is answered at temperature 0."""
        return self.is_choice or self.is_likeliest


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer of a user's model."""

    message: Message
    is_cut: bool = False
    """Whether a limit cut it off, or should have."""


_CHARACTERS_PER_TOKEN: Final = 3
"""A low guess, so that estimates of tokens are high."""
_LINE_TOKENS: Final = 512
"""Tokens of a line whose length the endpoint alone limits, for estimates."""
_MOST_CHARACTERS_PER_TOKEN: Final = 32
"""A high guess of the mean over a line: text has less than ten in any language and tokenizer."""
_MOST_LINE_TOKENS: Final = 4096
"""Bound on the tokens of a line whose length the endpoint alone limits."""


class UserRefusal(EndpointRefusal):
    """The endpoint of a model that plays users will not serve."""


class UserBudgetSpent(KintsugiError):
    """A model that plays users has read and written what it may."""


class TokenMeter:
    """Tokens that a model which plays users reads and writes, by a high estimate, and how many it
    may; with a file, for all processes of a job or a trial together."""

    def __init__(self, limit: int | None, file: Path | None = None) -> None:
        """`limit`: None for any number. `file` holds the counts between processes."""
        self._limit, self._file = limit, file
        written = file.read_text() if file is not None and file.exists() else "0 0"
        self.spent, self._largest = map(int, written.split())
        """All tokens, and those of the largest part."""

    def add(self, tokens: int) -> None:
        """Count tokens of a request and its answers."""
        self.spent += tokens

    def check(self, part: str) -> None:
        """Raise UserBudgetSpent where another part as large as the largest one would take more
        tokens than are left; `part` names it."""
        if self._limit is not None and self.spent + max(1, self._largest) > self._limit:
            raise UserBudgetSpent(
                f"the model that plays the users has read and written about {self.spent:,} tokens, "
                f"{part} takes about {self._largest:,}, and models.user.max_tokens is "
                f"{self._limit:,}; raise it"
            )

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count what is played inside as a part, and keep it. Raise UserBudgetSpent before
        playing."""
        self.check(part)
        before = self.spent
        try:
            yield
        finally:
            self._largest = max(self._largest, self.spent - before)
            if self._file is not None:
                replace_file(self._file, f"{self.spent} {self._largest}".encode())


LineSteps = Generator[LineRequest, Sequence[Candidate], Message]
"""The requests for one message of a user; answers are sent in, and the message is returned."""


class LineWriter:
    """Decides what a model that plays a user is asked and which answer counts; the caller asks.

    steps = writer.write(messages)
    request = next(steps)
    while True:
        request = steps.send([Candidate(...), ...])     or steps.throw(AnswerFailure(...))
                                                        StopIteration has the user's message
    """

    def __init__(
        self,
        task: TaskDefinition,
        seed: int,
        *,
        candidates: int = 1,
        tools: Sequence[Mapping[str, Any]] = (),
        trained: bool = False,
    ) -> None:
        """`candidates` per line; from two on, the best is chosen. `tools` are the user's, in
        OpenAI's format. `trained`: whether the model was trained to play users."""
        self.scenario = task.scenario.text()
        self._situation = squeeze(collect_user_text(task))
        self.seed = seed
        self.candidates = candidates
        self.tools = tools
        self.trained = trained
        self.remarks: list[str] = []
        self.answers = 0
        """Lines and calls that the model wrote for the user, those that were dropped included."""
        self.breaches: list[str] = []
        """Broken rule of each dropped answer."""

    def write(self, messages: Sequence[Message]) -> LineSteps:
        """Write the user's next message. Raise AnswerFailure, the agent's only if it fills the
        context."""
        try:
            candidates = yield from self._collect(messages)
            if self.trained:
                # What it is most likely to do decides whether it speaks.
                acts = bool(candidates[0].tool_calls)
                candidates = [item for item in candidates if bool(item.tool_calls) == acts]
            for candidate in candidates:
                if candidate.tool_calls:
                    return Message(role="user", tool_calls=candidate.tool_calls)
            lines = [candidate.text.strip() for candidate in candidates]
            line = lines[0] if len(lines) == 1 else (yield from self._choose(messages, lines))
        except AnswerFailure as failure:
            raise _assign(failure, self.scenario, messages) from failure
        return Message(role="user", content=line)

    def _collect(
        self, messages: Sequence[Message]
    ) -> Generator[LineRequest, Sequence[Candidate], list[Message]]:
        """Return the usable candidates, each line once; from as many requests as it takes. Those
        that name a value which the user cannot know are returned only where all do."""
        acts = bool(self.tools)
        asked = build_user_view(self.scenario, messages, acts=acts, trained=self.trained)
        broken = ""
        doubtful: dict[str, Message] = {}
        for turn in range(ROUNDS):
            usable: dict[str, Message] = {}
            count = 0
            wanted = (
                max(self.candidates, _DRAWN_AGAIN) if self.trained and turn else self.candidates
            )
            while count < wanted:
                seed = request_seed(self.seed, "user", len(messages), turn, count)
                # One that was taught to play users alone may name no number: then its first line
                # counts, and shall be the one that it writes where it writes no other.
                likeliest = self.trained and not turn and not count
                choices = 1 if likeliest else wanted - count
                answers = yield LineRequest(
                    asked, self.tools, choices, seed, is_choice=False, is_likeliest=likeliest
                )
                count += len(answers)
                for answer in answers:
                    message = answer.message
                    problem = find_breach(message, opening=not _spoke(messages), acts=acts)
                    if answer.is_cut:
                        problem = f"it never stops: {message.text.strip()[:80]!r}"
                    self.answers += max(1, len(message.tool_calls))
                    if problem is not None:
                        broken = problem
                        self.breaches.append(problem)
                    else:
                        usable.setdefault(message.text.strip(), message)
            known = [
                message
                for line, message in usable.items()
                if self._find_unknown(line, messages) is None
            ]
            if known:
                return known[: self.candidates]
            doubtful = doubtful or usable
            if usable:
                value = self._find_unknown(next(iter(usable)), messages)
                self.remarks.append(f"the user's line names {value!r}, which it cannot know")
                continue
            self.remarks.append(f"no candidate for the user's line could be used: {broken}")
        if doubtful:
            return list(doubtful.values())[: self.candidates]
        raise AnswerFailure(
            Termination.USER_ERROR, f"no line could be used in {ROUNDS} rounds: {broken}"
        )

    def _find_unknown(self, line: str, messages: Sequence[Message]) -> str | None:
        """Return an id or long number that neither situation nor conversation has; else None."""
        values = [word for word in split_words(line) if is_value(word)]
        if not values:
            return None
        known = self._situation + squeeze("\n".join(message.text for message in messages))
        return next((value for value in values if not has_value(known, value)), None)

    def _choose(
        self, messages: Sequence[Message], lines: Sequence[str]
    ) -> Generator[LineRequest, Sequence[Candidate], str]:
        spoken = [message for message in messages if message.text and message.role != "tool"]
        conversation = "\n".join(f"{_speaker(message)}: {message.text}" for message in spoken)
        numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
        question = (
            f"Situation:\n{self.scenario}\n\nConversation:\n{conversation}\n\n"
            f"Candidates:\n{numbered}"
        )
        asked = [Message(role="system", content=_CHOOSE), Message(role="user", content=question)]
        seed = request_seed(self.seed, "choice", len(messages))
        try:
            answers = yield LineRequest(asked, (), 1, seed, is_choice=True)
        except AnswerFailure as failure:
            if failure.termination is Termination.INFRASTRUCTURE_ERROR:
                raise
            return self._take_first(lines, failure.reason)
        chosen = parse_number(answers[0].message.text, len(lines))
        if chosen is None:
            return self._take_first(lines, "it named none")
        return lines[chosen - 1]

    def _take_first(self, lines: Sequence[str], because: str) -> str:
        self.remarks.append(f"the choice of the user's line failed, the first was taken: {because}")
        return lines[0]


class ModelUser:
    """A player of the user's party (players.py), behind an endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        task: TaskDefinition,
        seed: int,
        *,
        candidates: int = 1,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        trained: bool = False,
        meter: TokenMeter | None = None,
    ) -> None:
        """Take the arguments of `LineWriter`, how lines are sampled, and the counter of tokens."""
        self._meter = meter
        self.endpoint = endpoint
        self.sampling = sampling
        self.usage = Usage()
        self._writer = LineWriter(task, seed, candidates=candidates, tools=tools, trained=trained)

    @property
    def remarks(self) -> Sequence[str]:
        """Deviations that did not end the episode."""
        return self._writer.remarks

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return the user's next line. Raise as `LineWriter.write` does, and UserRefusal."""
        steps = self._writer.write(messages)
        try:
            request = next(steps)
            while True:
                try:
                    answers = await self._ask(request)
                except AnswerFailure as failure:
                    request = steps.throw(failure)
                else:
                    request = steps.send(answers)
        except StopIteration as end:
            message: Message = end.value
            return message

    async def _ask(self, request: LineRequest) -> list[Candidate]:
        sampling = self.sampling or Sampling()
        bound = request.choices * (sampling.max_tokens or _LINE_TOKENS)
        if self._meter is not None:
            self._meter.add(_estimate_tokens(request) + bound)
        try:
            completion = await self.endpoint.complete(
                request.messages,
                tools=request.tools,
                sampling=replace(sampling, temperature=0.0) if request.is_greedy else sampling,
                seed=request.seed,
                choices=request.choices,
            )
        except EndpointRefusal as error:
            raise UserRefusal(f"the user's model: {error}") from error
        self.usage += completion.usage
        if self._meter is not None:
            length = sum(map(_count_characters, completion.messages))
            self._meter.add(max(0, length // _CHARACTERS_PER_TOKEN - bound))
        most = (sampling.max_tokens or _MOST_LINE_TOKENS) * _MOST_CHARACTERS_PER_TOKEN
        return [
            # Servers may ignore the bound on tokens, and say that the model stopped.
            Candidate(message, reason == "length" or _count_characters(message) > most)
            for message, reason in zip(completion.messages, completion.finish_reasons, strict=True)
        ]


async def open_user(
    stack: AsyncExitStack, user: EndpointUser, key: str | None, concurrency: int
) -> Endpoint:
    """Return the endpoint of a user's model, seen to be there; `stack` closes it. Raises
    EndpointRefusal, and EndpointUnavailable in words by which a job or a trial is tried again."""
    endpoint = Endpoint(
        user.url, user.model, api_key=key, concurrency=concurrency, timeout=user.timeout
    )
    await stack.enter_async_context(endpoint)
    try:
        await endpoint.check()
    except EndpointUnavailable as error:
        raise EndpointUnavailable(
            f"the user's model: {error}; then run the same command to go on"
        ) from error
    return endpoint


def make_user(
    user: EndpointUser | AdapterUser,
    endpoint: Endpoint,
    environment: Environment,
    task: TaskDefinition,
    seed: int,
    *,
    meter: TokenMeter | None = None,
) -> ModelUser:
    """Return a model behind an endpoint as a user's player; `meter` counts its tokens."""
    is_adapter = isinstance(user, AdapterUser)
    # States explicitly what a checkpoint's generation settings would change of our own adapter.
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    return ModelUser(
        endpoint,
        task,
        seed,
        candidates=user.candidates,
        sampling=Sampling(user.temperature, user.max_tokens, neutral if is_adapter else {}),
        tools=environment.user_schemas(task),
        trained=is_adapter,
        meter=meter,
    )


def _estimate_tokens(request: LineRequest) -> int:
    """Return a high estimate of the tokens of a request."""
    characters = sum(map(_count_characters, request.messages))
    return (characters + len(str(list(request.tools)))) // _CHARACTERS_PER_TOKEN


def _count_characters(message: Message) -> int:
    calls = sum(len(call.name) + len(str(call.arguments)) for call in message.tool_calls)
    return len(message.text) + calls


def build_user_view(
    scenario: str, messages: Sequence[Message], *, acts: bool, trained: bool = False
) -> list[Message]:
    """Return a model's view as the user: rules, situation, and the conversation with roles turned
    around. `acts`: it has tools; `trained`: it sees the situation alone."""
    if trained:
        return _build_short_view(scenario, messages)
    rules = _TOOL_RULES + _RULES if acts else _RULES
    return [Message(role="system", content=rules + scenario), *swap_roles(messages)]


def _build_short_view(scenario: str, messages: Sequence[Message]) -> list[Message]:
    """Return the situation as the other side's first message, then the conversation. What the agent
    says first joins it, as chat templates want turns. Each prompt begins with the one before it."""
    lines = swap_roles(messages) if messages else []
    if lines and lines[0].role == "user":
        return [Message(role="user", content=f"{scenario}\n\n{lines[0].text}"), *lines[1:]]
    return [Message(role="user", content=scenario), *lines]


def swap_roles(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation for the user's model: the agent is `user`. The user's own calls
    and their results stay with it."""
    lines = [_swap_role(message) for message in messages]
    return lines or [Message(role="user", content=_OPEN)]


def _swap_role(message: Message) -> Message:
    if message.role == "tool":
        return message
    if message.tool_calls:
        # Its lines are without its reasoning as well.
        return message.model_copy(update={"role": "assistant", "reasoning": None})
    role: Role = "user" if message.role == "assistant" else "assistant"
    return Message(role=role, content=message.text)


def find_breach(message: Message, *, opening: bool, acts: bool = False) -> str | None:
    """Return which rule a candidate breaks; None for a usable one. `acts`: the user has tools."""
    text = message.text.strip()
    if message.tool_calls:
        return None if acts else "it calls a tool"
    if not text:
        return "it is empty"
    if _CALL_MARK in text:
        return f"it writes a call that cannot be read: {text[:80]!r}"
    if matches(_LABEL, text):
        return f"it speaks for the agent: {text[:80]!r}"
    if opening and any(token in text for token in STOP_TOKENS):
        return f"it hangs up before it said what it wants: {text[:80]!r}"
    return None


def parse_number(text: str, count: int) -> int | None:
    """Return the one number from 1 to `count` that a text names; None for none or several."""
    named = {int(digits) for digits in _NUMBER.findall(text[:1000]) if len(digits) < 4}
    valid = [number for number in named if 1 <= number <= count]
    return valid[0] if len(valid) == 1 else None


def _spoke(messages: Sequence[Message]) -> bool:
    """Return whether the user has said something; a call of a tool says nothing."""
    return any(message.role == "user" and not message.tool_calls for message in messages)


def _speaker(message: Message) -> str:
    return "Agent" if message.role == "assistant" else "Customer"


def _assign(failure: AnswerFailure, scenario: str, messages: Sequence[Message]) -> AnswerFailure:
    """Return a failure of the user's model with the ending of the party that it is due to: the
    user, unless a machine failed, or the agent's words fill the context."""
    termination = failure.termination
    if termination is Termination.CONTEXT_OVERFLOW:
        own = sum(len(item.text) for item in messages if item.role == "assistant")
        whole = len(scenario) + sum(len(item.text) for item in messages)
        if own > _OWN_OVERFLOW * whole:
            reason = f"the agent wrote {own:,} characters: {failure.reason}"
            return AnswerFailure(termination, f"the user's model: {reason}")
    if termination is not Termination.INFRASTRUCTURE_ERROR:
        termination = Termination.USER_ERROR
    return AnswerFailure(termination, f"the user's model: {failure.reason}")
