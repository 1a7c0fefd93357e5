"""The prompt and requests of a panel's router, and the meaning of its label scores. Pure.

The router reads the options with descriptions and examples, then the conversation; the next token's
log-probabilities are compared at the labels. A model prefers some labels whatever the text says, so
a second order turns the labels by half their number, and a choice counts if both orders make it.
Each label's score after an empty conversation (`calibration`) is subtracted first. A router of the
form `head` reads the session's own prompt, and its adapter adds to the logits of the labels there,
in one order.

Gateway, composing command, trials and training all build the prompt here. Source: TRACE, arXiv
2604.05336 (training-free router), with calibration after Zhao et al. 2021, "Calibrate before use".
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
"""Orders of the labels in which a router of the form `labels` is asked."""

MOST_MESSAGES: Final = 10
"""Messages of a conversation that the router reads, the last ones."""
MOST_CHARACTERS: Final = 2_000
"""Characters of one message that it reads, the first ones."""

TIE: Final = 1e-3
"""Difference in nats below which scores are equal: engines round otherwise in each batch."""

_HEAD: Final = "Choose who answers next. Reply with one label.\n"
_QUESTION: Final = "\n\nLabel?"
_INSTRUCTIONS: Final = ("system", "developer")
_EMPTY: Final = "N/A"


@dataclass(frozen=True, slots=True)
class RouterAnswer:
    """The choice of a router."""

    skill: str | None
    """None: the base answers."""
    doubt: ChoiceDoubt | None


def build_prompts(
    router: PanelRouter, messages: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], ...]:
    """Return the chat messages that the router reads, one list per order of the labels. A head
    reads `messages` unchanged; another router without instructions, calls and empty messages."""
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
    """Return the prompts of an empty conversation; a head has none and needs no calibration."""
    if router.form == "head":
        return ()
    return build_prompts(router, [{"role": "user", "content": _EMPTY}])


def list_label_tokens(router: PanelRouter) -> list[int]:
    """Return the ids of the label tokens, whose log-probabilities are asked for."""
    return [option.token for option in router.options]


def find_label(router: PanelRouter, order: int, skill: str | None) -> int:
    """Return the token of the label that means a skill in an order."""
    skills = [option.skill for option in router.options]
    labels = _turn(len(skills), order)
    return router.options[labels[skills.index(skill)]].token


def read_scores(
    router: PanelRouter, order: int, logprobs: Mapping[int, float]
) -> tuple[float, ...]:
    """Return each option's score (nats) from label token -> log-probability, or raise KeyError."""
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
    """Return a router's choice from token -> nats per order. Raises KeyError for missing labels."""
    return decide(router, [read_scores(router, order, row) for order, row in enumerate(logprobs)])


def _turn(count: int, order: int) -> list[int]:
    """Return, for each option, the place of its label in an order."""
    shift = (count // ORDERS) * order
    return [(place + shift) % count for place in range(count)]


def _describe_options(router: PanelRouter, order: int) -> str:
    """Return the first message: the options in the order of their labels, with examples."""
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
    """Return a conversation as a router reads it: a line per message, the last `MOST_MESSAGES`."""
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
    """The part of a call that a router reads."""

    messages: Sequence[Mapping[str, Any]]
    fields: Mapping[str, Any] | None
    """Fields that render the prompt beside the messages; None for a prompt without messages."""

    @property
    def ends_with_user(self) -> bool:
        """Return whether the user spoke last."""
        return bool(self.messages) and self.messages[-1].get("role") == "user"

    def build_requests(self, router: PanelRouter, model: str | None) -> list[dict[str, Any]]:
        """Return a request body per order of labels; none if the router can read nothing."""
        fields = PLAIN_PROMPT if router.form == "labels" else self.fields
        if not self.messages or fields is None:
            return []
        tokens = list_label_tokens(router)
        return [
            build_score_request(model, prompt, tokens, fields)
            for prompt in build_prompts(router, self.messages)
        ]
