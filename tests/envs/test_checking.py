"""An environment that is broken in one way is caught, and the sentence says which way."""

from pathlib import Path
from typing import Any

import pytest

from envs import skeleton
from envs.cheating.trial import Win
from envs.checking import Check, check
from envs.footprint import Sample
from envs.registry import open_environment

SKELETON = Path(skeleton.__file__).read_text()

Edit = tuple[str, str]

pytestmark = pytest.mark.processes
LONG = pytest.mark.long


def method(text: str) -> Edit:
    """The edit that adds a method to the environment."""
    return "\n    def policy(", f"{text.rstrip()}\n\n    def policy("


def lines(*code: str) -> str:
    return "\n".join(code)


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    """Check the skeleton after some edits of its text, each of which must apply."""

    def run(*edits: Edit, **sample: Any) -> Check:
        text = SKELETON
        for old, new in edits:
            assert old in text, old
            text = text.replace(old, new)
        file = tmp_path / "broken.py"
        file.write_text(text)
        return check(Sample(environment=str(file), **({"tasks": 12} | sample)))

    return run


UNRULED: Edit = ("rules=Rules(sources=((source,),) if outputs else ())", "rules=None")
"""The edit that lets an answer count wherever it comes from."""


def the_problem(found: Check) -> str:
    (problem,) = found.problems
    return problem


def test_the_skeleton_is_right(checked: Any) -> None:
    found = checked(tasks=None)
    assert found.problems == ()
    assert found.deterministic
    assert found.judged
    assert (found.overall.tasks, found.overall.oracle, found.overall.null) == (32, 1.0, 0.0)
    assert found.overall.random <= 0.3
    assert list(found.capabilities) == ["lend", "tell"]
    assert found.capabilities["tell"].tasks == 16


def test_shop_is_right() -> None:
    found = check(Sample(environment="shop", tasks=22))
    assert found.problems == ()
    assert len(found.capabilities) == len(open_environment("shop").capabilities)


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("retail", 6),
        ("airline", 6),
        ("telecom", 4),
        *(pytest.param(name, 60, marks=LONG) for name in ("retail", "airline", "telecom")),
    ],
)
def test_the_customer_service_environments_are_right(name: str, tasks: int) -> None:
    """A few tasks are of as many kinds, and cheaters play the kinds of the sample alone."""
    assert check(Sample(environment=name, tasks=tasks)).problems == ()


def test_a_digest_tells_two_versions_of_a_split_apart(checked: Any) -> None:
    first, again = checked(), checked()
    other = checked(("Please lend me", "I would like to have"))
    assert first.digest == again.digest != other.digest


def test_seed_and_number_of_tasks_choose_the_tasks(checked: Any) -> None:
    assert checked(tasks=3).overall.tasks == 3
    assert checked(tasks=4, seed=0).digest != checked(tasks=4, seed=100).digest


LOOKUP = """
    def task(self, task_id: str) -> TaskDefinition:
        _, capability, seed = task_id.split("/")
        task = self.generate(capability, int(seed))
        return task.model_copy(update={"scenario": Scenario(reason_for_call="Hello.")})"""
REFUSAL = """        if title not in self.database["books"]:
            raise ToolError(f"there is no book {title!r}")
"""
CHANCE: Edit = ("{chance.randrange(1_000, 10_000)}", "{__import__('time').time_ns()}")
CAUGHT: dict[str, tuple[Edit, str]] = {
    "global chance": (CHANCE, "lend/0: generated twice, it is not the same task"),
    "a clock": (
        (
            'Database({"books": library(task.seed)})',
            'Database({"books": library(task.seed), "now": {"t": __import__("time").time_ns()}})',
        ),
        "pristine made another state the second time",
    ),
    "a change in place": (
        ('self.database.edit("books", title)', 'self.database["books"][title]'),
        "its first state is another one after it was played",
    ),
    "gold without effect": (
        ('        self.database.edit("books", title)["reader"] = reader\n', ""),
        "its gold actions write (lend_book), but the state stays as it was",
    ),
    "no end": (
        ('ends="request is complete"', "patience=150"),
        "the oracle gets 0: the episode ended with max_steps",
    ),
    "an id twice": (
        ("id=self.task_id(capability, seed)", "id=self.task_id(capability, seed // 2)"),
        "skeleton/lend/0: 2 tasks have this id",
    ),
    "an id of another": (
        ("id=self.task_id(capability, seed)", "id=f'{capability}-{seed}'"),
        "it says that it is 'lend-0' of 'skeleton'",
    ),
    "another task by id": (
        method(LOOKUP),
        "task(id) gives another definition than its split",
    ),
    "a tool that raises": ((REFUSAL, ""), "a tool raised: find_book: KeyError: "),
    "a seed that raises": (
        ('Random(f"{capability} {seed}")', 'Random(f"{capability} {seed} {1 // (seed - 150)}")'),
        "skeleton/lend/150: generate raises ZeroDivisionError: integer division or modulo by zero",
    ),
    "scenarios that repeat": (
        ("randrange(1_000, 10_000)", "randrange(3)"),
        "of 200 scenarios are distinct, 190 should be",
    ),
}


@pytest.mark.parametrize(("edit", "said"), CAUGHT.values(), ids=CAUGHT)
def test_what_is_broken_is_named(checked: Any, edit: Edit, said: str) -> None:
    found = checked(edit, tasks=32)
    assert any(said in problem for problem in found.problems), found.problems


def test_the_order_of_a_set_is_caught_by_a_second_process(checked: Any) -> None:
    found = checked(("chance.sample(TITLES, len(TITLES))", "set(TITLES)"))
    assert not found.deterministic
    # Whether definitions differ, or only first states, hangs on the order that this process sees.
    told = next(line for line in found.problems if "another process sees another" in line)
    assert "sort what comes from a set" in told


def test_an_environment_that_only_one_process_can_import_is_caught(
    checked: Any, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    imported = lines("from random import Random", f"open({str(marker)!r}, 'x').close()")
    found = checked(("from random import Random", imported))
    assert not found.deterministic
    assert "in a second process it cannot be used (exit code 1: " in the_problem(found)
    assert "FileExistsError" in the_problem(found)


def test_state_that_outlives_an_episode_is_caught(checked: Any) -> None:
    counting = lines(
        "        self.looked_up.append(title)",
        "        return {**self.database['books'][title], 'place': len(self.looked_up)}",
    )
    found = checked(
        (
            'types and docstrings."""\n',
            'types and docstrings."""\n\n    looked_up: list[str] = []\n',
        ),
        ('        return self.database["books"][title]', counting),
    )
    assert not found.deterministic
    assert "the same messages of the agent gave another episode (message 2 was" in found.problems[0]
    assert "keep all state in the database" in found.problems[0]


def test_gold_that_a_tool_refuses_is_caught(checked: Any) -> None:
    found = checked(('bool(books[t]["reader"]) == lent', 'bool(books[t]["reader"])'))
    assert found.deterministic
    refused = [one for one in found.problems if "its gold action lend_book is refused" in one]
    assert len(refused) == 1
    assert "is lent out) (and 5 more like it); correct its gold actions" in refused[0]


def test_an_oracle_that_does_something_else_is_caught_with_what_differs(checked: Any) -> None:
    other = """
    def oracle(self, task: TaskDefinition) -> Any:
        from envs.agents import GoldAgent

        changed = task.model_dump()
        for action in changed["criteria"]["gold_actions"]:
            if action["name"] == "lend_book":
                action["arguments"]["reader"] = "R2"
        return GoldAgent(TaskDefinition(**changed), self.writes)"""
    found = checked(method(other))
    assert "the oracle gets 0: books/" in the_problem(found)
    assert "reader is 'R2', not 'R" in the_problem(found)
    assert found.overall.oracle == 0.5
    assert found.capabilities["tell"].oracle == 1.0


def test_tasks_that_only_need_a_refusal_are_caught(checked: Any) -> None:
    found = checked(('outputs.append(str(books[title]["shelf"]))', "pass"))
    assert found.overall.null == 0.5
    assert found.problems[0].startswith(
        "skeleton: an agent that does nothing gets 0.50, above 0.20, and 1.00 of 'tell'; demand"
    )
    assert "an agent that calls tools at random gets" in found.problems[1]


def test_a_kind_whose_output_every_answer_has_is_named_with_the_cheater(checked: Any) -> None:
    found = checked(
        ('outputs.append(str(books[title]["shelf"]))', 'outputs.append("complete")'), UNRULED
    )
    assert found.overall.null == 0.0
    assert found.winnable == {"tell": Win("close", 20, 20)}
    assert found.problems == (
        (
            "skeleton/tell: an agent that says the closing words at once (close) wins 20 of 20 "
            "tasks, 1 at most should be; demand a change, or an output that only a look into the "
            "state can tell"
        ),
    )


def test_a_bank_that_cannot_play_is_a_problem(checked: Any) -> None:
    deaf = """
    def user(self, task: TaskDefinition) -> Any:
        from envs.users import ScriptUser

        class Deaf(ScriptUser):
            def reply(self, messages: Any) -> Any:
                if messages and "2999" in messages[-1].text:
                    raise ValueError("so much")
                return super().reply(messages)

        return Deaf(task)"""
    found = checked(method(deaf))
    assert the_problem(found) == (
        "skeleton/tell: cheaters cannot play it, so nobody knows whether it can be won: it raises "
        "ValueError: so much; whatever an agent says, an episode must come to an end"
    )
    assert found.bank.failures == {"tell": "ValueError: so much"}
    assert found.winnable == {}


def test_a_tool_that_raises_at_a_cheaters_call_is_caught(checked: Any) -> None:
    raising = lines("        if title.endswith(' x'):", "            raise KeyError(title)", "")
    found = checked(
        ("        if self.find_book(title)", f"{raising}        if self.find_book(title)")
    )
    assert "a tool raised: lend_book: KeyError" in the_problem(found)


def test_constant_kinds_are_said_and_not_played(checked: Any) -> None:
    found = checked(
        ('outputs.append(str(books[title]["shelf"]))', 'outputs.append("complete")'),
        UNRULED,
        ('    name = "skeleton"', '    name = "skeleton"\n    constant = frozenset({"tell"})'),
    )
    assert found.problems == ()
    assert found.constant == ("tell",)
    assert list(found.bank.trials) == ["lend"]


def test_a_pattern_that_is_not_searched_in_linear_time_is_caught(checked: Any) -> None:
    found = checked(('asks="confirm"', 'asks="confirm(?! nothing)"'))
    assert len(found.problems) == len(found.capabilities)
    for problem in found.problems:
        assert "the pattern 'confirm(?! nothing)' has a look-around" in problem
        assert "write it without" in problem


def test_what_an_environment_raises_while_it_works_is_a_problem(checked: Any) -> None:
    found = checked(('Database({"books": library(task.seed)})', "Database(library(task.seed)[0])"))
    assert "pristine raises KeyError: 0" in found.problems[0]
    assert found.overall.oracle is None
    nobody = """
    def oracle(self, task: TaskDefinition) -> Any:
        return None"""
    found = checked(method(nobody))
    assert "the episode of the oracle raises AttributeError" in found.problems[0]


def test_a_reward_that_hangs_on_a_judge_is_caught(checked: Any) -> None:
    asks = "outputs=tuple(outputs), nl_assertions=('is kind',), reward_basis=('NL_ASSERTION',),"
    found = checked(("outputs=tuple(outputs),", asks))
    assert "nobody but a judge can tell NL_ASSERTION" in found.problems[0]
    assert (found.overall.oracle, found.overall.null) == (None, None)
    assert found.overall.unjudged == found.overall.tasks == 12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("parameters['required'].append('shelf')", "'shelf' is required and is no property"),
        ("del made[0]['type']", "type: Field required"),
    ],
)
def test_a_schema_that_no_endpoint_would_take_is_caught(
    checked: Any, change: str, said: str
) -> None:
    schemas = f"""
    def schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        from envs.database import copy_json

        made: list[dict[str, Any]] = copy_json(super().schemas(task))
        function = made[0]["function"]
        parameters = function["parameters"]
        {change}
        return made"""
    found = checked(method(schemas), tasks=2)
    assert "the schema of tool 'find" in found.problems[0]
    assert said in found.problems[0]


def test_loaded_tasks_are_reported_and_not_judged(checked: Any) -> None:
    loaded = """
    @property
    def splits(self) -> dict[str, int]:
        return {**super().splits, "theirs": 4}

    def tasks(self, split: str = "generated") -> Any:
        if split != "theirs":
            return super().tasks(split)
        return (self.theirs(seed) for seed in range(4))

    def theirs(self, seed: int) -> TaskDefinition:
        task = self.generate("tell", seed)
        nothing = task.criteria.model_copy(update={"outputs": ()})
        changes = {"id": f"{self.name}/{seed}", "split": "theirs", "criteria": nothing}
        return task.model_copy(update=changes)

    def task(self, task_id: str) -> TaskDefinition:
        return self.theirs(int(task_id.split("/")[1]))"""
    found = checked(method(loaded), split="theirs", tasks=None)
    assert found.problems == ()
    assert not found.judged
    assert (found.overall.tasks, found.overall.oracle, found.overall.null) == (4, 1.0, 1.0)
    assert found.overall.unjudged == 0


@pytest.mark.benchmarks
@pytest.mark.parametrize(
    ("name", "tasks"), [("retail", 74), pytest.param("airline", 30, marks=LONG)]
)
def test_the_figures_of_real_tasks_are_reported(name: str, tasks: int, benchmarks: Path) -> None:
    found = check(Sample(environment=name, benchmarks=benchmarks, split="train"))
    assert found.problems == ()
    assert found.deterministic
    assert found.overall.tasks == tasks
    assert found.overall.oracle == 1.0
