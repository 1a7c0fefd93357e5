"""The environment `skeleton`: a library that lends books.

Make it yours, and prove after each change that it is still right:

    kintsugi env check skeleton.py
"""

from random import Random
from typing import Any

from envs.database import Database
from envs.environment import Environment
from envs.task import Answer, Criteria, Rules, Scenario, Script, Source, TaskDefinition
from envs.tools import ToolError, Toolset, read, write
from events.messages import Action

TITLES = ("Dune", "Emma", "Faust", "Ivanhoe", "Nostromo", "Persuasion", "Rebecca", "Walden")


def library(seed: int) -> dict[str, Any]:
    """Return the books; every second one is lent. All chance comes from the seed."""
    chance = Random(f"library {seed}")
    return {
        title: {"reader": "R1" if place % 2 else None, "shelf": chance.randrange(1_000, 10_000)}
        for place, title in enumerate(chance.sample(TITLES, len(TITLES)))
    }


class SkeletonTools(Toolset):
    """The agent's tools; it is told only their types and docstrings."""

    @read
    def find_book(self, title: str) -> Any:
        """Look up who has a book (null: it is here) and on which shelf it belongs."""
        if title not in self.database["books"]:
            raise ToolError(f"there is no book {title!r}")
        return self.database["books"][title]

    @write
    def lend_book(self, title: str, reader: str) -> str:
        """Lend a book that is here."""
        if self.find_book(title)["reader"]:
            raise ToolError(f"{title} is lent out")
        self.database.edit("books", title)["reader"] = reader
        return "lent"


class Skeleton(Environment):
    """Readers who want to borrow a book, or to know where it belongs."""

    name = "skeleton"
    toolset = SkeletonTools
    capabilities = {
        "lend": "lends a book that is here",
        "tell": "says on which shelf a book belongs, and lends nothing",
    }

    def policy(self, task: TaskDefinition) -> str:
        """Return the rules, as the agent is told them."""
        return (
            "You serve the readers of a library. Look a book up first. Before you lend it, ask "
            "the reader to confirm. At the end say: Your request is complete."
        )

    def pristine(self, task: TaskDefinition) -> Database:
        """Return the state in which a task begins: tables of records."""
        return Database({"books": library(task.seed)})

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """Return the wish of a reader, and the calls and words of a perfect agent."""
        chance, books = Random(f"{capability} {seed}"), library(seed)
        reader = f"R{chance.randrange(1_000, 10_000)}"
        lent = capability == "tell"
        title = chance.choice([t for t in books if bool(books[t]["reader"]) == lent])
        gold, outputs = [Action(name="find_book", arguments={"title": title})], []
        # The agent must say it after a call about this book whose answer has its shelf.
        source = Source(identity={"title": title}, fields=("shelf",))
        if lent:
            wish = f"On which shelf does {title} belong?"
            outputs.append(str(books[title]["shelf"]))
        else:
            wish = f"Please lend me {title}."
            gold.append(Action(name="lend_book", arguments={"title": title, "reader": reader}))
        opening = f"I am reader {reader}. {wish}"
        yes = Answer(asks="confirm", says="Yes, please.")
        return TaskDefinition(
            id=self.task_id(capability, seed),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=Scenario(reason_for_call=opening),
            script=Script(opening=opening, answers=(yes,), ends="request is complete"),
            criteria=Criteria(
                gold_actions=tuple(gold),
                outputs=tuple(outputs),
                rules=Rules(sources=((source,),) if outputs else ()),
            ),
        )
