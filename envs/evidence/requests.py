"""Decide by words alone whether a user has said something about its request (pure).

    roots = list_request_roots(environment, task)    {"canc", "orde", "blan"}
    has_request("Could you cancel it?", roots)       True
    has_request("I am a user.", roots)               False

A root is the beginning of a word, so that forms of one word are the same. A task's roots come from
its reason for call, the user's first line and the names of tools. Words that fit any request have
no root. Not covered: requests in words without these roots, such as synonyms.
"""

from typing import Final

from envs.environment import Environment
from envs.evidence.words import words
from envs.task import TaskDefinition

_ROOT: Final = 4
"""Number of letters of a root. Shorter words have no root."""
_WORDS_OF_ANY_REQUEST: Final = frozenset(
    {
        "able", "about", "actually", "again", "agent", "agents", "also", "anyone", "anything",
        "asked", "asking", "assist", "assistance", "assistant", "because", "been", "before",
        "being", "call", "called", "calling", "came", "come", "contact", "could", "customer",
        "customers", "details", "does", "doing", "done", "ever", "everything", "find", "fine",
        "from", "give", "going", "good", "have", "having", "hear", "hello", "help", "helped",
        "helping", "here", "human", "humans", "information", "into", "issue", "issues", "just",
        "kind", "kindly", "know", "later", "like", "list", "listen", "make", "many", "maybe",
        "more", "much", "must", "need", "needed", "needs", "next", "nothing", "okay", "only",
        "other", "perhaps", "person", "please", "problem", "problems", "question", "questions",
        "ready", "really", "reason", "reasons", "reply", "request", "requests", "right", "said",
        "same", "seem", "should", "some", "somebody", "someone", "something", "soon", "sorry",
        "speak", "speaking", "still", "such", "support", "sure", "take", "talk", "talking",
        "task", "tell", "test", "testing", "than", "thank", "thanks", "that", "them", "then",
        "there", "these", "they", "thing", "things", "think", "this", "those", "time", "today",
        "told", "transfer", "type", "understand", "user", "users", "very", "wait", "waiting",
        "want", "wanted", "wants", "well", "were", "what", "whatever", "when", "where",
        "whether", "which", "while", "will", "wish", "with", "without", "would", "your",
        "yours", "yourself",
    }
)  # fmt: skip
"""Words of at least four letters that tell nothing about a request."""


def list_request_roots(environment: Environment, task: TaskDefinition) -> frozenset[str]:
    """Return the roots of the words in a user's request; empty if the task states none."""
    scenario, script = task.scenario, task.script
    own = environment.user_toolset
    tools = [*environment.toolset.tools(), *(() if own is None else own.tools())]
    names = [name.replace("_", " ") for name in tools]
    opening = "" if script is None else script.opening
    request = scenario.reason_for_call or scenario.task_instructions
    return _list_roots(" ".join((request, opening, *names)))


def has_request(text: str, roots: frozenset[str]) -> bool:
    """Return whether a text has a word that begins with one of the roots."""
    return not roots.isdisjoint(_list_roots(text))


def _list_roots(text: str) -> frozenset[str]:
    return frozenset(
        word[:_ROOT] for word in words(text) - _WORDS_OF_ANY_REQUEST if len(word) >= _ROOT
    )
