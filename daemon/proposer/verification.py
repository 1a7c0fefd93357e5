"""Ten checks, and those of methods (methods.py), that a written task must pass before training.

    V1   schema          the definition is complete, and its id gives the same definition
    V2   gold            the gold actions repeat without an error and have their effects
    V3   provenance      a write's values were said, or can be looked up from something said
    V4   leak            the request names no tool and no id that a user cannot know
    V5   outputs         required words come from a tool's answer or the policy
    V6   policy          a perfect agent breaks no rule, and finds the user before it writes
    V7   solvable        the scripted oracle wins the whole episode
    V9   novelty         no task of the buffer has nearly its words and its first state
    V10  contamination   no evaluation uses it
    V11  ...             a method's checks of its own tasks
    V8   informative     the current policy neither always wins nor, as a rule, always loses

The first failure ends the checks. Each check depends on the task alone, except V8, which plays
rollouts and needs a sampler. An error that the environment raises fails the check, so that a bad
task ends no cycle. Not covered: whether a person finds the request sensible. Source:
docs/proposing.md (after SENTINEL, arXiv 2606.12908).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from daemon.proposer.candidate import (
    FIRST_HELD_OUT,
    CandidateFacts,
    CannotSample,
    CheckFailure,
    PriorTask,
)
from daemon.proposer.methods import METHOD_CHECKS, find_test_source
from envs.environment import UnknownTask
from envs.episode import PrefixMismatch, check_prefix
from envs.evidence.names import list_plain_words
from envs.evidence.spelling import find_name, has_id
from envs.evidence.task_facts import (
    find_gold_failure,
    find_gold_gap,
    find_unknown_output,
    find_unknown_value,
)
from envs.evidence.words import collect_user_text, leaves, words
from envs.grading import grade
from envs.patterns.search import REMEDY
from envs.task import GENERATED, TaskDefinition, has_nul, is_content_id, is_seed
from events.learning import Check, Verified
from events.messages import executed_calls

SAMPLES: Final = 8
"""Number of rollouts that check V8 plays with the current policy."""
SAME_WORDS: Final = 0.7
"""Least likeness (Jaccard index of word trigrams) of two requests that count as the same."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a candidate's checks: the notes of passed checks, and the first failed check."""

    passed: tuple[Verified, ...]
    failed: Check | None = None
    reason: str = ""


def verify(examined: CandidateFacts) -> Verdict:
    """Run all checks in order, up to the first that fails. Raise CannotSample."""
    passed: list[Verified] = []
    for check, function in CHECKS.items():
        if check == "informative" and examined.sampler is None:
            continue
        try:
            note = function(examined)
        except CheckFailure as failure:
            return Verdict(tuple(passed), check, str(failure)[:1000])
        except CannotSample:
            raise
        except Exception as error:  # an environment's own code may raise anything
            raised = f"the environment raised {type(error).__name__}: {error}"
            return Verdict(tuple(passed), check, raised[:1000])
        if note is not None:
            passed.append(Verified(check=check, note=note))
    return Verdict(tuple(passed))


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise CheckFailure(reason)


def schema(examined: CandidateFacts) -> str:
    """Check V1: the id gives the same task, and gates can draw its kind. Raise CheckFailure."""
    task, environment = examined.task, examined.environment
    if not task.scenario.reason_for_call.strip():
        raise CheckFailure("the user has no reason to call")
    if task.environment != environment.name:
        raise CheckFailure(f"it is a task of {task.environment!r}, not of {environment.name!r}")
    if examined.candidate.source is None and task.capability not in environment.capabilities:
        kinds = ", ".join(environment.capabilities)
        remedy = (
            f"name the nearest of {kinds}" if kinds else f"{environment.name} generates no tasks"
        )
        raise CheckFailure(
            f"no gate can draw tasks of the capability {task.capability!r}; {remedy}"
        )
    if task.capability in environment.constant:
        raise CheckFailure(
            f"nothing is trained on the kind {task.capability}: its right outcome is the same "
            "whatever the state is; give it a twin whose outcome is another"
        )
    if TaskDefinition.model_validate_json(task.model_dump_json()) != task:
        raise CheckFailure("the definition does not survive being stored")
    fault = task.script.find_fault() if task.script is not None else None
    _refuse(fault and f"{fault}; {REMEDY}")
    if is_content_id(task.id) and has_nul(task.dump_body()):
        raise CheckFailure("a text of it has the character NUL, which cannot be stored; remove it")
    try:
        again = environment.task(task.id)
    except UnknownTask as error:
        raise CheckFailure(f"its id gives no task: {error}") from error
    if again.digest() != task.digest():
        raise CheckFailure("its id gives another task")
    try:
        check_prefix(environment, task)
    except PrefixMismatch as error:
        raise CheckFailure(str(error)) from error
    return ""


def gold(examined: CandidateFacts) -> str:
    """Check V2: the gold actions work, and a rephrased task keeps them. Raise CheckFailure."""
    task, source, environment = examined.task, examined.candidate.source, examined.environment
    _refuse(find_gold_gap(examined))
    if (
        source is not None
        and examined.candidate.mode == "inherit"
        and (
            task.criteria != source.criteria
            or environment.state_key(task) != environment.state_key(source)
        )
    ):
        raise CheckFailure(f"it does not keep criteria and first state of {source.id}")
    _refuse(find_gold_failure(examined))
    return ""


def provenance(examined: CandidateFacts) -> str:
    """Check V3: the user or a look-up gives each value of the gold writes. Raise CheckFailure."""
    _refuse(find_unknown_value(examined))
    return ""


def leak(examined: CandidateFacts) -> str:
    """Check V4: the user names no tool, unless its name is one plain word, and no internal id in
    any spelling. Raise CheckFailure."""
    task, environment = examined.task, examined.environment
    source = examined.candidate.source
    text, before = collect_user_text(task), "" if source is None else collect_user_text(source)
    new_words = words(text) - words(before)
    own_tools = environment.user_toolset
    tools = {*environment.toolset.tools(), *(own_tools.tools() if own_tools else ())}
    if find_name(new_words, tools) is not None:
        tool = find_name(new_words, tools, list_plain_words(environment, task))
        if tool is not None:
            raise CheckFailure(f"the user names the tool {tool}")
    for action in task.criteria.gold_actions or ():
        for name in sorted(environment.internal & action.arguments.keys()):
            for value in leaves(action.arguments[name]):
                own = str(value)
                is_told = own.lower() in new_words
                if is_told or (has_id(text, own) and not has_id(before, own)):
                    raise CheckFailure(f"the user knows {value!r}, an internal {name}")
    return ""


def outputs(examined: CandidateFacts) -> str:
    """Check V5: required words come from a tool's answer or the policy. An output with a comma
    fails, since graded texts have no commas. Raise CheckFailure."""
    _refuse(find_unknown_output(examined))
    return ""


def policy(examined: CandidateFacts) -> str:
    """Check V6: a perfect agent keeps the policy and finds the user first. Raise CheckFailure."""
    messages = examined.oracle.messages
    broken = examined.environment.violations(examined.task, messages)
    if broken:
        raise CheckFailure(f"the perfect agent breaks the policy: {broken[0]}")
    catalog = examined.environment.catalog
    for item in executed_calls(messages):
        if not catalog.authenticating:
            break
        if item.call.name in catalog.authenticating and not item.failed:
            break
        if item.sampled and item.call.name in catalog.writes:
            raise CheckFailure(f"{item.call.name} comes before the user was found")
    return ""


def solvable(examined: CandidateFacts) -> str:
    """Check V7: the scripted oracle wins the episode. Raise CheckFailure."""
    episode, task = examined.oracle, examined.task
    verdict = grade(examined.environment, task, episode.messages, episode.termination)
    if verdict.open_parts:
        raise CheckFailure(f"only a judge can tell {', '.join(verdict.open_parts)}")
    if not verdict.success:
        why = verdict.irregular or next(
            iter((*verdict.missing, *verdict.violations)), "the state is not as expected"
        )
        raise CheckFailure(f"the scripted oracle loses: {why}")
    return "scripted oracle"


def informative(examined: CandidateFacts) -> str:
    """Check V8: of the samples one fails, and one passes unless `hard`. Raise CheckFailure."""
    assert examined.sampler is not None, "verify leaves it out without a sampler"
    passes = examined.sampler(examined.task)
    if passes >= SAMPLES:
        raise CheckFailure(f"the current policy passes {passes} of {SAMPLES}")
    if passes == 0 and not examined.hard:
        raise CheckFailure(f"the current policy passes 0 of {SAMPLES}, and enough such are taken")
    return f"{passes} of {SAMPLES}"


def novelty(examined: CandidateFacts) -> str:
    """Check V9: no known task with this prefix asks for the same calls in nearly the same words.
    The failed task counts as known, so rephrasings must differ. Raise CheckFailure."""
    own = PriorTask.of(examined.task)
    source = examined.candidate.source
    for other in (*examined.known, *([] if source is None else [PriorTask.of(source)])):
        if (other.signature, other.prefix) != (own.signature, own.prefix):
            continue
        if likeness(own.request, other.request) >= SAME_WORDS:
            raise CheckFailure("a task asks for the same calls in nearly the same words")
    return ""


def contamination(examined: CandidateFacts) -> str:
    """Check V10: no evaluation uses the task, and it is no benchmark's. A task by content has no
    seed of its own: a task made of another has that task's seed, a planned task the seed of the
    task in whose first state it begins. Raise CheckFailure."""
    task, evaluation, source = examined.task, examined.evaluation, examined.candidate.source
    if task.split != GENERATED or (source is not None and source.split != GENERATED):
        raise CheckFailure(f"{(source or task).id} is a benchmark's")
    if task.signature in evaluation.signatures or task.digest() in evaluation.definitions:
        raise CheckFailure("it is a task that something is evaluated with")
    _refuse(find_test_source(task))
    seed = seed_of(task.source)
    if examined.candidate.mode == "synthesize":
        _check_origin(examined)
    if examined.candidate.mode == "explore" and seed not in evaluation.seeds:
        raise CheckFailure(f"its seed {seed} is none of those kept for written tasks")
    if source is not None and examined.candidate.mode == "inherit" and seed != seed_of(source.id):
        raise CheckFailure(f"its seed {seed} is not that of {source.id}")
    if seed is not None and seed >= FIRST_HELD_OUT and seed not in evaluation.seeds:
        raise CheckFailure(f"its seed {seed} is kept for reports and gates")
    return ""


def _check_origin(examined: CandidateFacts) -> None:
    """Check that a planned task's first state has a seed for written tasks. Raise CheckFailure."""
    drawn = examined.candidate.drawn
    if drawn is None:
        raise CheckFailure("no generated task is named whose first state it begins in")
    seed = seed_of(drawn)
    if seed not in examined.evaluation.seeds:
        raise CheckFailure(
            f"it begins in the state of {drawn}, whose seed is none of those kept for written tasks"
        )
    if examined.environment.task(drawn).seed != examined.task.seed:
        raise CheckFailure(f"it does not begin in the state of {drawn}, as its writer says")


CHECKS: Final[Mapping[Check, Callable[[CandidateFacts], str | None]]] = {
    "schema": schema,
    "gold": gold,
    "provenance": provenance,
    "leak": leak,
    "outputs": outputs,
    "policy": policy,
    "solvable": solvable,
    "novelty": novelty,
    "contamination": contamination,
    **METHOD_CHECKS,
    "informative": informative,
}
"""Checks in order. Each returns a note, None if it does not apply, or raises CheckFailure."""


def seed_of(task_id: str) -> int | None:
    """Return the seed in a generated task's id (the first number in it), or None."""
    return next((int(part) for part in task_id.split("/")[1:] if is_seed(part)), None)


def likeness(first: str, second: str) -> float:
    """Return the Jaccard index of the two texts' word trigrams."""
    ours, theirs = _trigrams(first), _trigrams(second)
    return len(ours & theirs) / max(1, len(ours | theirs))


def _trigrams(text: str) -> set[tuple[str, ...]]:
    """Return a text's runs of three words; a shorter text is a single run."""
    all_words = text.lower().split()
    return {tuple(all_words[place : place + 3]) for place in range(max(1, len(all_words) - 2))}
