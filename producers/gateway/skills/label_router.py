"""The prompt and requests of a panel's router, and the meaning of its label scores. Pure.

The router's prompt has the options with descriptions and examples, then the conversation. The
labels' log-probabilities as the next token are compared. A model prefers some labels for any text.
So a second prompt rotates the labels by half their number, and only a choice by both counts. Each
label's score after an empty conversation (`calibration`) is subtracted first. A router of the form
`head` reads the session's own prompt once; its adapter adds to the labels' logits.

Gateway, trials, training and the command that composes panels build their prompts here. Source:
TRACE, arXiv 2604.05336 (training-free router), with calibration after Zhao et al. 2021, "Calibrate
before use".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from events.jobs import PanelRouter
from events.rollouts import ChoiceDoubt
from producers.gateway.routing.token_scores import (
    PLAIN_PROMPT,
    build_score_request,
)

ORDERS: Final = 2
"""Number of orders of the labels in which a router of the form `labels` is asked."""

MOST_MESSAGES: Final = 10
"""Number of messages that the router reads: the conversation's last ones."""
MOST_CHARACTERS: Final = 2_000
"""Number of characters that it reads of a message: the first ones."""

TIE: Final = 1e-3
"""Difference in nats up to which scores count as equal, because engines round by batch."""

_HEAD: Final = "Choose who answers next. Reply with one label.\n"
_QUESTION: Final = "\n\nLabel?"
_INSTRUCTIONS: Final = ("system", "developer")
_EMPTY: Final = "N/A"


@dataclass(frozen=True, slots=True)
class RouterAnswer:
    """The choice of a router, or why it made none."""

    skill: str | None
    """The chosen skill; None: the base answers."""
    doubt: ChoiceDoubt | None


def build_prompts(
    router: PanelRouter, messages: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], ...]:
    """Return the router's chat messages, one list per order of the labels. For form `head` they are
    `messages` unchanged; else instructions, calls and empty messages are left out."""
    if router.form == "head":
        return ([dict(message) for message in messages],)
    transcript = render_transcript(messages)
    return tuple(
        [
            {"role": "system", "content": _describe_options(router, order)},
            {"role": "user", "content": transcript + _QUESTION},
        ]
        for order in range(ORDERS)
    )


def build_calibration_prompts(router: PanelRouter) -> tuple[list[dict[str, Any]], ...]:
    """Return the prompts with an empty conversation; () for form `head`, which needs none."""
    if router.form == "head":
        return ()
    return build_prompts(router, [{"role": "user", "content": _EMPTY}])


def list_label_tokens(router: PanelRouter) -> list[int]:
    """Return the ids of the label tokens, whose log-probabilities are asked for."""
    return [option.token for option in router.options]


def find_label(router: PanelRouter, order: int, skill: str | None) -> int:
    """Return the token of the label that stands for a skill in an order."""
    skills = [option.skill for option in router.options]
    labels = _turn(len(skills), order)
    return router.options[labels[skills.index(skill)]].token


def read_scores(
    router: PanelRouter, order: int, logprobs: Mapping[int, float]
) -> tuple[float, ...]:
    """Return each option's score in nats. `logprobs`: label token -> nats. Raises KeyError."""
    tokens = list_label_tokens(router)
    return tuple(logprobs[tokens[label]] for label in _turn(len(tokens), order))


def decide(router: PanelRouter, scores: Sequence[Sequence[float]]) -> RouterAnswer:
    """Return a router's choice; `scores`: in each order, the options' scores in nats."""
    choices: list[str | None] = []
    for order, row in enumerate(scores):
        bias = router.calibration[order] if router.calibration else (0.0,) * len(row)
        worth = [score - offset for score, offset in zip(row, bias, strict=True)]
        best, second = sorted(worth, reverse=True)[:2]
        if not best - second > TIE:
            return RouterAnswer(None, "tie")
        choices.append(router.options[worth.index(best)].skill)
    if len(set(choices)) > 1:
        return RouterAnswer(None, "disagreement")
    return RouterAnswer(choices[0], "none" if choices[0] is None else None)


def read_answer(router: PanelRouter, logprobs: Sequence[Mapping[int, float]]) -> RouterAnswer:
    """Return a router's choice; `logprobs`: per order, token -> nats. Raises KeyError for gaps."""
    return decide(router, [read_scores(router, order, row) for order, row in enumerate(logprobs)])


def _turn(count: int, order: int) -> list[int]:
    """Return for each option the index of its label in the order with this number."""
    shift = (count // ORDERS) * order
    return [(place + shift) % count for place in range(count)]


def _describe_options(router: PanelRouter, order: int) -> str:
    """Return the system message: the options in the order of labels, with examples."""
    labels = [option.label for option in router.options]
    turned = _turn(len(labels), order)
    lines: dict[int, str] = {}
    examples: dict[int, str] = {}
    for option, place in zip(router.options, turned, strict=True):
        lines[place] = f"{labels[place]}: {option.description}"
        if option.example:
            examples[place] = f"\nExample of {labels[place]}:\n{option.example}"
    parts = [text for texts in (lines, examples) for _, text in sorted(texts.items())]
    return _HEAD + "\n".join(parts)


def render_transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation as text: a line for each of the last `MOST_MESSAGES` messages."""
    lines = []
    for message in messages:
        text = _read_text(message.get("content"))
        if message.get("role") not in _INSTRUCTIONS and text:
            lines.append(f"{message.get('role')}: {text[:MOST_CHARACTERS]}")
    return "\n".join(lines[-MOST_MESSAGES:])


def _read_text(content: Any) -> str:
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return " ".join(text for text in texts if isinstance(text, str)).strip()


@dataclass(frozen=True, slots=True)
class Opening:
    """The parts of a call from which a router's prompt is made."""

    messages: Sequence[Mapping[str, Any]]
    fields: Mapping[str, Any] | None
    """Other fields that change the prompt; None if the call has a prompt without messages."""

    @property
    def ends_with_user(self) -> bool:
        """Return whether the last message is the user's."""
        return bool(self.messages) and self.messages[-1].get("role") == "user"

    def build_requests(self, router: PanelRouter, model: str | None) -> list[dict[str, Any]]:
        """Return a request body per order of labels; [] without a prompt for the router."""
        fields = PLAIN_PROMPT if router.form == "labels" else self.fields
        if not self.messages or fields is None:
            return []
        tokens = list_label_tokens(router)
        return [
            build_score_request(model, prompt, tokens, fields)
            for prompt in build_prompts(router, self.messages)
        ]
