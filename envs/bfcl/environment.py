"""The environment bfcl: the multi-turn cases of the Berkeley Function-Calling Leaderboard.

The operator's folder has the cases, one split per category, and the distribution bfcl-eval the
tools; only playing a task needs them. The user says the case's messages one by one, each when the
agent answers without a call, and then hangs up. More than 20 messages with calls in one turn end
the case.

Success is strict: `TURNS`, BFCL's official verdict, and `ABSTENTION`, the check that BFCL leaves
out, must both be 1. Both are recorded with every rollout. No kind is constant: the next turn brings
what was missing, so a refusal wins only together with the calls.

The splits `base-fc` and so on are the same cases in BFCL's FC mode (models that call natively):
without a system prompt, and with BFCL's own sentence where held-out functions come.

Not covered: a message with neither text nor call, or with an unreadable call, ends a turn in BFCL;
here the first ends the episode, and tools answer the second. BFCL's sentence on Python in each
function's description, and its prompt for models without native calls, are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

from envs.agents import CLOSING, Agent
from envs.bfcl.cases import MORE_TOOLS, SPLITS, Case, find_splits, load, load_functions
from envs.bfcl.classes import read_official_sentence, require
from envs.bfcl.tools import BfclTools, initial_state
from envs.bfcl.verdict import mistakes, needless
from envs.catalog import ToolCatalog, infer_catalog
from envs.database import Database
from envs.environment import Environment, Limits, UnknownTask
from envs.task import GENERATED, Answer, Basis, Criteria, Scenario, Script, TaskDefinition
from envs.users import STOP
from events.messages import Action, Message, ToolCall
from events.rollouts import ToolRoles

POLICY: Final = (
    "You do what the user asks with the tools you are given. Where no tool fits, or a value that a "
    "tool needs is not known, call nothing and say what is missing."
)
BASIS: Final[tuple[Basis, ...]] = ("TURNS", "ABSTENTION")

NATIVE: Final = "fc"
"""Suffix of a task that is played as in BFCL's FC (native function calling) mode."""
NATIVE_SPLITS: Final = tuple(f"{split}-{NATIVE}" for split in SPLITS)

_UNLIMITED: Final = 1_000_000


class Bfcl(Environment):
    """Tools for files, mathematics, messages, posts, tickets, stocks, travel and a car."""

    name: ClassVar[str] = "bfcl"
    toolset: ClassVar[type[BfclTools]] = BfclTools
    capabilities: ClassVar[Mapping[str, str]] = {}
    limits: ClassVar[Limits] = Limits(_UNLIMITED, max_errors=_UNLIMITED, max_rounds=20)

    def cases(self, split: str) -> Mapping[str, Case]:
        """Return number -> case for one split of BFCL. Raise NoBenchmark or InvalidBenchmark."""
        if split not in self._loaded:
            cases = load(self.benchmarks, [split])[split]
            self._loaded[split] = {case.number: case for case in cases}
        return self._loaded[split]

    @cached_property
    def _loaded(self) -> dict[str, Mapping[str, Case]]:
        return {}

    def case(self, task_id: str) -> Case:
        """Return the case of a task. Raise UnknownTask, or its subclass NoBenchmark."""
        match task_id.split("/"):
            case [self.name, split, number] | [self.name, split, number, "fc"] if split in SPLITS:
                if number in self.cases(split):
                    return self.cases(split)[number]
        raise UnknownTask(
            f"environment bfcl has no task {task_id!r}; ids are bfcl/SPLIT/NUMBER, or "
            f"bfcl/SPLIT/NUMBER/{NATIVE}, with a split of {', '.join(SPLITS)}"
        )

    @property
    def splits(self) -> Mapping[str, int]:
        """Sizes of BFCL's splits that the operator's folder has; each also in FC mode."""
        there = () if self.benchmarks is None else find_splits(self.benchmarks)
        sizes = {split: len(self.cases(split)) for split in there}
        return sizes | {f"{split}-{NATIVE}": size for split, size in sizes.items()}

    def tasks(self, split: str = GENERATED) -> Iterator[TaskDefinition]:
        """Return a split's tasks in file order. Raise UnknownTask or NoBenchmark; for a split in FC
        mode also NoBfclClasses."""
        if split not in (*SPLITS, *NATIVE_SPLITS):
            raise UnknownTask(
                f"environment bfcl has no split {split!r} and generates no tasks; it has "
                f"{', '.join((*SPLITS, *NATIVE_SPLITS))}, from the operator's folder"
            )
        cases = self.cases(split.removesuffix(f"-{NATIVE}")).values()
        return (_definition(case, native=split in NATIVE_SPLITS) for case in cases)

    def task(self, task_id: str) -> TaskDefinition:
        """Return the task with this id. Raise UnknownTask or its subclass NoBenchmark; for a task
        in FC mode also NoBfclClasses."""
        return _definition(self.case(task_id), native=_is_native(task_id))

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """Raise UnknownTask, because this environment only has BFCL's own cases."""
        raise UnknownTask(f"environment bfcl generates no tasks, of no capability {capability!r}")

    def pristine(self, task: TaskDefinition) -> Database:
        """Return the initial state of the case's objects. Raise NoBfclClasses."""
        require()
        return initial_state(self.case(task.id))

    def policy(self, task: TaskDefinition) -> str:
        """Return our policy of two sentences, or an empty text in FC mode."""
        return "" if _is_native(task.id) else POLICY

    def schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return all functions of the case's classes, without those that the case excludes."""
        return [dict(schema) for schema in self.case(task.id).schemas]

    def select_schemas(
        self, task: TaskDefinition, messages: Sequence[Message]
    ) -> list[dict[str, Any]]:
        """Return the functions that the agent sees now; held-out ones come in their turn."""
        return self.case(task.id).select_schemas(_turn(messages))

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return an agent that makes the gold calls of each turn."""
        return BfclOracle(self.case(task.id))

    def judge(
        self, basis: Basis, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[str, ...] | None:
        """Return the agent's faults: for `TURNS` by BFCL's official verdict, for `ABSTENTION` the
        calls in turns that ask for none. Return None for another basis."""
        case = self.case(task.id)
        if basis == "TURNS":
            return tuple(mistakes(case, messages, lambda: self.toolset(self.reset(task))))
        if basis == "ABSTENTION":
            return tuple(needless(case, messages))
        return None

    @property
    def catalog(self) -> ToolCatalog:
        """The tool catalog, guessed from the functions' names, as for imported results of BFCL."""
        return self._catalog

    @cached_property
    def _catalog(self) -> ToolCatalog:
        classes = load_functions(self.benchmarks).values()
        functions = [schema["function"] for schemas in classes for schema in schemas]
        arguments = {
            name for function in functions for name in function["parameters"]["properties"]
        }
        return infer_catalog({function["name"] for function in functions}, argument_names=arguments)

    @property
    def recorded_tool_roles(self) -> ToolRoles | None:
        """None, because diagnosis guesses the tools' roles by the same rules."""
        return None

    @property
    def writes(self) -> frozenset[str]:
        """The writing tools of the catalog."""
        return self.catalog.writes


class BfclOracle:
    """Makes all gold calls of a turn in one message, since some turns have more calls than the
    limit on messages. In a turn that the task's prefix begins, it makes the remaining calls."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the turn's gold calls that are left, or the closing sentence."""
        turn = _turn(messages)
        gold = self.case.turns[turn].gold
        done = _count_done(messages, gold)
        if done == len(gold):
            return Message(role="assistant", content=CLOSING)
        calls = tuple(
            ToolCall(name=action.name, arguments=action.arguments, id=f"call_{turn}_{place}")
            for place, action in enumerate(gold)
        )
        return Message(role="assistant", tool_calls=calls[done:])


def _count_done(messages: Sequence[Message], gold: Sequence[Action]) -> int:
    """Return how many gold calls this turn has, failed ones included."""
    begin = max(place for place, message in enumerate(messages) if message.role == "user")
    done = 0
    for message in messages[begin:]:
        for call in message.tool_calls:
            if done < len(gold):
                same = (call.name, call.arguments) == (gold[done].name, gold[done].arguments)
                done += same or message.sampled is not False
    return done


def _turn(messages: Sequence[Message]) -> int:
    return max(0, sum(message.role == "user" for message in messages) - 1)


def _is_native(task_id: str) -> bool:
    return task_id.endswith(f"/{NATIVE}")


def _definition(case: Case, native: bool) -> TaskDefinition:
    requests = [turn.says for turn in case.turns]
    if native and MORE_TOOLS in requests:
        sentence = read_official_sentence()
        requests = [sentence if says == MORE_TOOLS else says for says in requests]
    opening, *later = requests
    task_id = f"{Bfcl.name}/{case.split}/{case.number}"
    return TaskDefinition(
        id=f"{task_id}/{NATIVE}" if native else task_id,
        environment=Bfcl.name,
        capability=f"multi_turn_{case.split}",
        split=f"{case.split}-{NATIVE}" if native else case.split,
        scenario=Scenario(reason_for_call="\n".join(requests)),
        script=Script(
            opening=opening,
            answers=(
                *(Answer(asks="", says=says, once=True) for says in later),
                Answer(asks="", says=STOP),
            ),
        ),
        criteria=Criteria(
            gold_actions=tuple(action for turn in case.turns for action in turn.gold),
            reward_basis=BASIS,
        ),
    )
