"""A user played by a model: the scenario is its system prompt, and the roles are swapped.

The model sees all texts but no call of the agent, which has the role `user`. It may call the tools
that the task gives the user, and sees their results. A stop token (users.py) in its text hangs up.
Candidates for a line that break a rule (`find_breach`) are dropped, and the same model chooses the
best of the others. If the choice fails, the first counts (for a model trained to play users, the
likeliest), and `remarks` says so. A line with an id or a long number that the user cannot know
counts only if there is no other line.

Guarantee: a failure of the model is not the agent's. The episode ends unjudged, as `user_error` or
`infrastructure_error`. If the agent writes more than the model can read, the episode ends as
`context_window_exceeded` and is judged, so that long messages cannot avoid a failure.
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
"""Number of rounds of candidates, with different seeds, before a line counts as failed."""

_DRAWN_AGAIN: Final = 8
"""Smallest number of candidates, from the second round on, for a model trained to play users. Such
a model mostly repeats a wrong value of which it is sure."""

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
"""Message of the agent before the user's first one, which many chat templates need."""

_CHOOSE: Final = """\
Below are a customer's situation, a conversation with a support agent, and numbered candidates for
the customer's next message. Which one fits best? It must follow the situation to the letter, answer
what the agent said last, invent nothing, and end the conversation only when it is over.
Answer with its number alone.
"""

_LABEL: Final = r"(?m)^\W*(agent|assistant|support|representative|system|tool)\W*:"
_CALL_MARK: Final = "<tool_call>"
"""Beginning of a call in Hermes' format. A message that was read well contains none."""
_NUMBER: Final = re.compile(r"\d+")
_OWN_OVERFLOW: Final = 0.8
"""Share of the user's context above which the agent's text is to blame for an overflow."""


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A request to a model that plays the user."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    choices: int
    """Number of answers wanted; fewer may come."""
    seed: int
    is_choice: bool
    is_likeliest: bool = False
    """Whether the most likely answer is wanted, which is sampled at temperature 0."""

    @property
    def is_greedy(self) -> bool:
        """Whether it is sampled at temperature 0."""
        return self.is_choice or self.is_likeliest


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer of a model that plays the user."""

    message: Message
    is_cut: bool = False
    """Whether a limit cut it off, or it is longer than the limit."""


_CHARACTERS_PER_TOKEN: Final = 3
"""A low estimate, so that estimated numbers of tokens are high."""
_LINE_TOKENS: Final = 512
"""Estimated tokens of a line if only the endpoint limits its length."""
_MOST_CHARACTERS_PER_TOKEN: Final = 32
"""A high estimate of a line's mean. Text has less than ten in any language and tokenizer."""
_MOST_LINE_TOKENS: Final = 4096
"""Bound on the tokens of a line if only the endpoint limits its length."""


class UserRefusal(EndpointRefusal):
    """The endpoint of a model that plays users refuses to serve."""


class UserBudgetSpent(KintsugiError):
    """A model that plays users has used up its limit of tokens."""


class TokenMeter:
    """Counts, with high estimates, the tokens that a model which plays users reads and writes. It
    enforces a limit; with a file, for all processes of a job or a trial together."""

    def __init__(self, limit: int | None, file: Path | None = None) -> None:
        """`limit` is in tokens, None for no limit. `file` keeps the counts between processes."""
        self._limit, self._file = limit, file
        written = file.read_text() if file is not None and file.exists() else "0 0"
        self.spent, self._largest = map(int, written.split())
        """All tokens so far, and the tokens of the largest part."""

    def add(self, tokens: int) -> None:
        """Count the tokens of a request and its answers."""
        self.spent += tokens

    def check(self, part: str) -> None:
        """Raise UserBudgetSpent if the tokens left are fewer than the largest part so far took;
        `part` names the next part."""
        if self._limit is not None and self.spent + max(1, self._largest) > self._limit:
            raise UserBudgetSpent(
                f"the model that plays the users has read and written about {self.spent:,} tokens, "
                f"{part} takes about {self._largest:,}, and models.user.max_tokens is "
                f"{self._limit:,}; raise it"
            )

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the tokens that the block uses as one part, and store the counts. Before the block,
        raise UserBudgetSpent as `check` does."""
        self.check(part)
        before = self.spent
        try:
            yield
        finally:
            self._largest = max(self._largest, self.spent - before)
            if self._file is not None:
                replace_file(self._file, f"{self.spent} {self._largest}".encode())


LineSteps = Generator[LineRequest, Sequence[Candidate], Message]
"""Generator that yields requests, receives their answers and returns the user's message."""


class LineWriter:
    """Decides on requests to a model that plays a user, and on its answer. The caller sends the
    requests.

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
        """`candidates` is the number for each line; from two on, the best is chosen. `tools` are
        the user's, in OpenAI's format. `trained`: whether the model was trained to play users."""
        self.scenario = task.scenario.text()
        self._situation = squeeze(collect_user_text(task))
        self.seed = seed
        self.candidates = candidates
        self.tools = tools
        self.trained = trained
        self.remarks: list[str] = []
        self.answers = 0
        """Number of lines and calls that the model wrote for the user, including dropped ones."""
        self.breaches: list[str] = []
        """For each dropped answer, the rule that it broke."""

    def write(self, messages: Sequence[Message]) -> LineSteps:
        """Write the user's next message. Raise AnswerFailure, with an ending that blames the agent
        only if its text fills the context."""
        try:
            candidates = yield from self._collect(messages)
            if self.trained:
                # The likeliest candidate decides between a text and a call.
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
        """Return the usable candidates without duplicates, from as many requests as needed. One
        that names a value unknown to the user is returned only if all do."""
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
                # A model trained only to play users may be unable to choose by number. Then its
                # first line counts, so that line is the most likely one.
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
        """Return an id or long number that neither situation nor conversation has, or None."""
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
    """A player of the user (players.py), behind an endpoint."""

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
        """Take the arguments of `LineWriter`, the sampling of lines, and a counter of tokens."""
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
            # Servers may ignore the bound on tokens and report a regular stop.
            Candidate(message, reason == "length" or _count_characters(message) > most)
            for message, reason in zip(completion.messages, completion.finish_reasons, strict=True)
        ]


async def open_user(
    stack: AsyncExitStack, user: EndpointUser, key: str | None, concurrency: int
) -> Endpoint:
    """Open and check the endpoint of a model that plays users; `stack` closes it. Raise
    EndpointRefusal, or EndpointUnavailable with the advice to run the command again."""
    endpoint = Endpoint(
        user.url, user.model, api_key=key, concurrency=concurrency, timeout=user.timeout
    )
    await stack.enter_async_context(endpoint)
    try:
        await endpoint.check()
    except EndpointUnavailable as error:
        raise EndpointUnavailable(
            f"the user's model: {error}; correct this, then run the same command to go on"
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
    """Return a model behind an endpoint as a player of the user. `meter` counts its tokens."""
    is_adapter = isinstance(user, AdapterUser)
    # These values override a checkpoint's generation settings, which our adapter must not use.
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
    """Return a high estimate of the number of tokens in a request."""
    characters = sum(map(_count_characters, request.messages))
    return (characters + len(str(list(request.tools)))) // _CHARACTERS_PER_TOKEN


def _count_characters(message: Message) -> int:
    calls = sum(len(call.name) + len(str(call.arguments)) for call in message.tool_calls)
    return len(message.text) + calls


def build_user_view(
    scenario: str, messages: Sequence[Message], *, acts: bool, trained: bool = False
) -> list[Message]:
    """Return the conversation as the user's model sees it: rules, situation, and messages with
    swapped roles. `acts`: it has tools. `trained`: it was trained to play users and gets no
    rules."""
    if trained:
        return _build_short_view(scenario, messages)
    rules = _TOOL_RULES + _RULES if acts else _RULES
    return [Message(role="system", content=rules + scenario), *swap_roles(messages)]


def _build_short_view(scenario: str, messages: Sequence[Message]) -> list[Message]:
    """Return the situation as the other side's first message, then the conversation. An agent's
    first text joins it, as chat templates want turns. Each prompt extends the one before."""
    lines = swap_roles(messages) if messages else []
    if lines and lines[0].role == "user":
        return [Message(role="user", content=f"{scenario}\n\n{lines[0].text}"), *lines[1:]]
    return [Message(role="user", content=scenario), *lines]


def swap_roles(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with swapped roles: the agent is `user`. The user's own calls and
    their results stay in it."""
    lines = [_swap_role(message) for message in messages]
    return lines or [Message(role="user", content=_OPEN)]


def _swap_role(message: Message) -> Message:
    if message.role == "tool":
        return message
    if message.tool_calls:
        # Reasoning is left out, as in its texts.
        return message.model_copy(update={"role": "assistant", "reasoning": None})
    role: Role = "user" if message.role == "assistant" else "assistant"
    return Message(role=role, content=message.text)


def find_breach(message: Message, *, opening: bool, acts: bool = False) -> str | None:
    """Return the rule that a candidate breaks, or None. `acts`: the user has tools."""
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
    """Return the only number from 1 to `count` in a text, or None if it has none or several."""
    named = {int(digits) for digits in _NUMBER.findall(text[:1000]) if len(digits) < 4}
    valid = [number for number in named if 1 <= number <= count]
    return valid[0] if len(valid) == 1 else None


def _spoke(messages: Sequence[Message]) -> bool:
    """Return whether the user has said something. A call is no saying."""
    return any(message.role == "user" and not message.tool_calls for message in messages)


def _speaker(message: Message) -> str:
    return "Agent" if message.role == "assistant" else "Customer"


def _assign(failure: AnswerFailure, scenario: str, messages: Sequence[Message]) -> AnswerFailure:
    """Return the failure with the termination of the party at fault. That is the user, unless a
    machine failed or the agent's text fills the context."""
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
