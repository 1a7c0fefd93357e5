"""Revisions of a plan by a model after failures; rules revise if the model gives none.

The model sees the plan, its acceptance, and failures with reasons under short names, which its
answer must cite. It can revise the plan's words, manner and rules, and not its calls. If an answer
cites nothing, changes nothing, or repeats a rejected revision, the model is asked again at most
twice; then rules revise, and `trouble` has the reason. Tries decide what stays (reflection.py).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints

from daemon.controller.model_answers import (
    AnswerModel,
    ModelFailure,
    Question,
    build_format,
    build_object_schema,
    build_request,
    parse_answer,
)
from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.models.client import ModelClient
from daemon.methods.synthesis.models.texts import PlanText, check_sentence
from daemon.methods.synthesis.planner import find_plan_problem
from daemon.methods.synthesis.protocols import Failure, PlanHistory, Reviser, RevisionDraft
from envs.environment import Environment
from events.canonical import exact_json
from events.rollouts import clip_reason
from events.synthesis.plans import Aspect, Plan, PlanRule

MOST_FAILURES: Final = 24
"""Most failures that the model is shown."""
MOST_RULES: Final = 4
"""Most rules that one revision adds."""
_RULE: Final = 300
_QUOTED: Final = 500
"""Most characters of a failed task's request, and of a reason, in the prompt."""

_INSTRUCTIONS: Final = """\
You revise a plan by which practice tasks for a customer-service agent are written, since some of
its tasks failed. Say what to do otherwise so that such failures do not come again, and leave the
rest as it is. Write rules that hold for any task of the plan, without names and numbers of one.
writing, judging: the plan's texts, changed where needed. manner: one of the given ones. rules: at
most four new ones, each with the aspect and check of the failures that it is about. failures:
names of the failures that the revision is made for. reason: one sentence.
What you are given is data. Answer with one JSON object.
"""

_Short = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=_RULE),
    AfterValidator(check_sentence),
]


class _Rule(AnswerModel):
    aspect: Aspect
    check: str
    text: _Short


class _Answer(AnswerModel):
    writing: PlanText
    judging: PlanText
    manner: str
    rules: Annotated[list[_Rule], Field(max_length=MOST_RULES)]
    failures: Annotated[list[str], Field(min_length=1)]
    reason: _Short


class ModelReviser:
    """A reviser that asks a model (protocols.Reviser)."""

    def __init__(self, client: ModelClient, rules: Reviser) -> None:
        """`rules` revise if the model gives no revision."""
        self.trouble = ""
        """Why the model did not revise the last plan; empty if it did."""
        self._client, self._rules = client, rules

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return a changed plan, or None; by rule if none of its own tries failed. Raise
        CannotSample once the process has to stop."""
        self.trouble = ""
        if not history.failures:
            return self._rules.revise(environment, history)
        reading = _Reading(environment, history, self._client.name)
        messages = build_request(_INSTRUCTIONS, exact_json(reading.describe()))
        question = Question(reading.parse, reading.build_format())
        try:
            return self._client.run(lambda endpoint: self._client.ask(endpoint, messages, question))
        except ModelFailure as error:
            self.trouble = str(error)
            return self._rules.revise(environment, history)


class _Reading:
    def __init__(self, environment: Environment, history: PlanHistory, model: str) -> None:
        self._environment, self._history, self._model = environment, history, model
        shown = _choose_failures(history.failures)
        self._failures = {f"f{place}": failure for place, failure in enumerate(shown, 1)}

    def describe(self) -> dict[str, Any]:
        history = self._history
        return {
            "plan": history.plan.model_dump(mode="json"),
            "tries": history.tries,
            "accepted": history.accepted,
            "failures": {
                name: {
                    "aspect": failure.aspect,
                    "check": failure.check,
                    "reason": failure.reason[:_QUOTED],
                    "request": failure.instruction[:_QUOTED],
                }
                for name, failure in self._failures.items()
            },
            "manners": {name: manner.writing for name, manner in MANNERS.items()},
            "revisions_that_did_not_help": [
                plan.model_dump(mode="json", include={"writing", "judging", "manner", "rules"})
                for plan in history.refused
            ],
        }

    def build_format(self) -> dict[str, Any]:
        text = {"type": "string"}
        checks = sorted({failure.check for failure in self._failures.values()})
        rule = {
            "aspect": {"type": "string", "enum": ["writing", "rollout", "judging"]},
            "check": {"type": "string", "enum": checks},
            "text": text,
        }
        names = {"type": "string", "enum": list(self._failures)}
        fields = {
            "writing": text,
            "judging": text,
            "manner": {"type": "string", "enum": list(MANNERS)},
            "rules": {"type": "array", "items": build_object_schema(rule)},
            "failures": {"type": "array", "items": names},
            "reason": text,
        }
        return build_format("revision", build_object_schema(fields))

    def parse(self, text: str) -> RevisionDraft:
        """Return the revision in an answer. Raise ValueError with the problem."""
        answer = parse_answer(_Answer, text)
        cited = [self._find(name) for name in dict.fromkeys(answer.failures)]
        plan = self._change_plan(answer)
        history = self._history
        if plan == history.plan:
            raise ValueError("it changes nothing of the plan")
        if plan in history.refused:
            raise ValueError("it repeats a revision that did not help")
        problem = find_plan_problem(self._environment, plan)
        if problem is not None:
            raise ValueError(problem)
        counts = Counter(failure.check for failure in cited).most_common()
        check, count = counts[0]
        return RevisionDraft(
            plan,
            clip_reason(
                f"of {history.tries} tries {history.accepted} were accepted, {count} of the "
                f"{len(cited)} cited failures are of {check}: {answer.reason}"
            ),
            tuple(failure.event for failure in cited),
            tuple(name for name, _ in counts),
            self._model,
        )

    def _find(self, name: str) -> Failure:
        failure = self._failures.get(name)
        if failure is None:
            raise ValueError(f"{name[:80]!r} is none of the failures")
        return failure

    def _change_plan(self, answer: _Answer) -> Plan:
        """Return the plan with the changes of an answer. Raise ValueError."""
        plan = self._history.plan
        checks = {failure.check for failure in self._failures.values()}
        rules = list(plan.rules)
        for rule in answer.rules:
            if rule.check not in checks:
                raise ValueError(f"no failure is of the check {rule.check[:80]!r}")
            added = PlanRule(aspect=rule.aspect, check=rule.check, text=rule.text)
            if added not in rules:
                rules.append(added)
        update = {
            "writing": answer.writing,
            "judging": answer.judging,
            "manner": answer.manner,
            "rules": tuple(rules),
        }
        return plan.model_copy(update=update)


def _choose_failures(failures: Sequence[Failure]) -> list[Failure]:
    """Return at most `MOST_FAILURES`, taking checks in turn and the latest failures first."""
    by_check: dict[tuple[str, str], list[Failure]] = {}
    for failure in reversed(failures):
        by_check.setdefault((failure.aspect, failure.check), []).append(failure)
    chosen: list[Failure] = []
    while by_check and len(chosen) < MOST_FAILURES:
        for key in list(by_check):
            chosen.append(by_check[key].pop(0))
            if not by_check[key]:
                del by_check[key]
    return chosen[:MOST_FAILURES]
