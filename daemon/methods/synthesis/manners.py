"""A user's manner of speaking: it changes a task's words and leaves its calls as they are (pure).

    give_manner(task, "terse")             the task in that manner; None if it cannot have it
    vary_manner(task, 3, tuple(MANNERS))   the task in the manner of place 3

A manner changes the lines of the script, and the scenario's persona for a model that plays the
user. First state, gold actions, criteria and every spoken value stay, so no manner depends on an
environment. Not covered: whether the perfect agent still wins; the check `solvable`
(daemon/proposer/verification.py) plays that. Source of the idea: AReaL-SEA, arXiv 2601.22607, whose
plans differ in the user's style; the manners are ours.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envs.task import Answer, Script, TaskDefinition
from envs.users import STOP_TOKENS, improvise_script

_GREETING: Final = re.compile(r"^\s*(?:hello|hi|hey|good (?:day|morning|evening))\b[,.!]*\s*", re.I)
_ADDRESSED: Final = re.compile(r"\byou(?:r|rs)?\b", re.IGNORECASE)
"""Words by which an identity addresses the user instead of quoting what the user says."""
_WISH: Final = re.compile(
    r"\b(?:please let me|i (?:want|need|would like|have) to|i would rather|please"
    r"|(?:can|could) you)\s+",
    re.IGNORECASE,
)
_HAS_VALUE: Final = re.compile(r"[\d#@]|[a-z]_[a-z]")
_YES: Final = re.compile(r"^(yes)\b[^#]*$", re.IGNORECASE)
"""An answer that agrees and does not end the conversation."""

_HEAD: Final = 4
"""Most words of a request that a user says before breaking off and beginning again."""
_LEAST_HEAD: Final = 2

_Change = Callable[[TaskDefinition, Script], Script | None]


@dataclass(frozen=True, slots=True)
class Manner:
    """A user's manner of speaking."""

    writing: str
    """Properties of the lines of such a user, as a part of a plan's sentence."""
    judging: str
    """Advice for judging such tasks, as a part of a plan's sentence."""
    persona: str
    """Instruction for a model that plays the user; may be empty."""
    change: _Change
    """Returns the script in this manner; None if the task cannot have it."""


def give_manner(task: TaskDefinition, name: str) -> TaskDefinition | None:
    """Return the task in a manner, named by content; None if it cannot have one: its agent works
    alone, or its prefix already has the user's words. Raise KeyError."""
    manner = MANNERS[name]
    if task.solo or task.prefix:
        return None
    script = task.script or improvise_script(task)
    changed = manner.change(task, script)
    if changed is None:
        return None
    persona = " ".join(filter(None, (task.scenario.persona, manner.persona)))
    scenario = task.scenario.model_copy(update={"persona": persona})
    update = {"script": changed, "scenario": scenario}
    return task.model_copy(update=update).name_by_content()


def vary_manner(task: TaskDefinition, place: int, manners: Sequence[str]) -> TaskDefinition:
    """Return the task in the manner of its place, or unchanged if impossible. Raise KeyError."""
    manner = find_turn(place, manners)
    return task if manner is None else give_manner(task, manner) or task


def find_turn(place: int, manners: Sequence[str]) -> str | None:
    """Return the manner of a place, taking `manners` in turn; None without manners."""
    return manners[place % len(manners)] if manners else None


def find_identity(task: TaskDefinition, script: Script) -> str | None:
    """Return the user's identity in the first person, from known information or the opening."""
    known = task.scenario.known_info
    if known and not _ADDRESSED.search(known):
        return known
    request = task.scenario.reason_for_call
    if not request or request not in script.opening:
        return None
    rest = _GREETING.sub("", script.opening.replace(request, " "))
    return " ".join(rest.split()) or None


def _keep(task: TaskDefinition, script: Script) -> Script:
    return script


def _tell_all(task: TaskDefinition, script: Script) -> Script | None:
    identity, request = find_identity(task, script), task.scenario.reason_for_call
    if identity is None or identity in script.opening or request not in script.opening:
        return None
    return _open(script, f"{identity} {request} That is all I can tell you.")


def _reserve(task: TaskDefinition, script: Script) -> Script | None:
    """Open with the request alone, if an answer of the script tells the rest when asked."""
    identity, request = find_identity(task, script), task.scenario.reason_for_call
    answered = any(identity is not None and identity in answer.says for answer in script.answers)
    if not answered or request not in script.opening or script.opening.strip() == request.strip():
        return None
    return _open(script, request)


def _shorten(task: TaskDefinition, script: Script) -> Script | None:
    opening = _WISH.sub("", _GREETING.sub("", script.opening))
    sentences = (part[:1].upper() + part[1:] for part in _split_sentences(opening))
    opening = " ".join(sentences)
    if opening == script.opening:
        return None
    return _open(_agree(script, "Yes."), opening)


def _be_polite(task: TaskDefinition, script: Script) -> Script:
    opening = _GREETING.sub("", script.opening)
    polite = f"Good day. {opening} Thank you very much for your kind help."
    return _open(_agree(script, "Yes, please do, thank you."), polite)


def _chat(task: TaskDefinition, script: Script) -> Script:
    opening = _GREETING.sub("", script.opening)
    chatty = f"Hello there. What a day, I have just sat down with some tea. {opening}"
    return _open(_agree(script, "Yes, that sounds lovely, go ahead."), chatty)


def _begin_anew(task: TaskDefinition, script: Script) -> Script | None:
    """Break off after the first words of the request, before any value, then say it all again."""
    request = task.scenario.reason_for_call
    head: list[str] = []
    for word in request.split()[:_HEAD]:
        if _HAS_VALUE.search(word) or word[-1:] in ".!?":
            break
        head.append(word)
    if len(head) < _LEAST_HEAD or request not in script.opening:
        return None
    again = f"{' '.join(head)} ... no, wait, let me begin again. {request}"
    return _open(script, script.opening.replace(request, again, 1))


def _hurry(task: TaskDefinition, script: Script) -> Script:
    hurried = _open(
        _agree(script, "Yes, yes, just do it."), f"{script.opening} Be quick, I am late."
    )
    changed = {"otherwise": f"I have no time for this. {script.otherwise}", "patience": 1}
    return hurried.model_copy(update=changed)


def _doubt(task: TaskDefinition, script: Script) -> Script:
    opening = _GREETING.sub("", script.opening)
    unsure = f"Hello, I hope this is the right place, I have never done this before. {opening}"
    changed = {"otherwise": f"Sorry, I am not sure what you mean. {script.otherwise}"}
    return _open(_agree(script, "Yes, I think so, yes."), unsure).model_copy(update=changed)


def _state_formally(task: TaskDefinition, script: Script) -> Script:
    opening = _GREETING.sub("", script.opening)
    formal = f"To whom it may concern: {opening} I look forward to your answer."
    return _open(_agree(script, "Yes, I hereby agree."), formal)


def _open(script: Script, opening: str) -> Script:
    return script.model_copy(update={"opening": " ".join(opening.split())})


def _agree(script: Script, says: str) -> Script:
    """Replace the user's answers that only agree by the words `says`."""
    answers = tuple(_reword(answer, says) for answer in script.answers)
    return script.model_copy(update={"answers": answers})


def _reword(answer: Answer, says: str) -> Answer:
    plain = _YES.match(answer.says) and len(answer.says.split()) <= _HEAD
    if not plain or any(token in answer.says for token in STOP_TOKENS):
        return answer
    return answer.model_copy(update={"says": says})


def _split_sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+(?=[a-z])", text)


AS_IS: Final = "as_is"
"""The manner that leaves a task unchanged; every task can have it."""

MANNERS: Final[Mapping[str, Manner]] = {
    AS_IS: Manner(
        "keep the words of the generator unchanged",
        "a neutral caller answers what is asked",
        "",
        _keep,
    ),
    "tells_all": Manner(
        "name, numbers and wish fill one long message",
        "no later turn adds a fact",
        "You tell everything that you know in your first message.",
        _tell_all,
    ),
    "reserved": Manner(
        "the bare wish first, and identity only on demand",
        "each detail follows its own question",
        "You tell only what you want at first, and everything else when you are asked for it.",
        _reserve,
    ),
    "terse": Manner(
        "no greeting or filler, few words per line",
        "short replies are still complete",
        "You speak in as few words as possible, without greetings.",
        _shorten,
    ),
    "polite": Manner(
        "warm greeting, thanks in advance, graceful consent",
        "thanks are neither consent nor goodbye",
        "You are very polite and thank the agent for everything.",
        _be_polite,
    ),
    "chatty": Manner(
        "small talk about tea before the point",
        "idle remarks ask for nothing",
        "You like to talk, and say something about your day beside what you want.",
        _chat,
    ),
    "corrects_itself": Manner(
        "the speaker stumbles, breaks off, begins again",
        "only the full second version counts",
        "You sometimes break off and say a sentence again from its beginning.",
        _begin_anew,
    ),
    "impatient": Manner(
        "hurry and annoyance, one needless question is forgiven",
        "losing this customer is a failure",
        "You are in a hurry, and hang up when you are asked needless questions.",
        _hurry,
    ),
    "unsure": Manner(
        "a beginner who doubts every step and apologises",
        "doubt in its voice refuses nothing",
        "You are not sure how all this works, and say so.",
        _doubt,
    ),
    "formal": Manner(
        "phrased like a business letter with a salutation",
        "stiff formulas are no further requests",
        "You speak like a business letter.",
        _state_formally,
    ),
}
"""Name -> manner of speaking."""
