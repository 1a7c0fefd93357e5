"""The environment `cheap`: each kind of its tasks is won by one cheat, and by no work."""

from typing import Any, ClassVar, Final

from envs.database import Database
from envs.environment import Environment
from envs.task import Answer, Basis, Criteria, Rules, Scenario, Script, Source, TaskDefinition
from envs.tools import ToolError, Toolset, generic, read, write
from events.messages import Action

NOTES: Final = 30
"""Notes of a state."""


class CheapTools(Toolset):
    """A desk at which nothing is checked twice."""

    @read
    def get_note(self, note_id: str) -> Any:
        """Look up a note."""
        if note_id not in self.database["notes"]:
            raise ToolError(f"no note {note_id!r}")
        return self.database["notes"][note_id]

    @read
    def list_prices(self) -> Any:
        """List what the notes cost, in cents."""
        notes = self.database["notes"]
        return [{"note_id": key, "cents": note["cents"]} for key, note in notes.items()]

    @write
    def set_loud(self, note_id: str, loud: bool) -> str:
        """Change whether a note is read out."""
        self.get_note(note_id)
        self.database.edit("notes", note_id)["loud"] = loud
        return "set"

    @write
    def remove_note(self, note_id: str) -> str:
        """Remove a note."""
        self.get_note(note_id)
        self.database.remove("notes", note_id)
        return "removed"

    @generic
    def transfer_to_person(self, summary: str) -> str:
        """Hand over."""
        return "transferred"


class Cheap(Environment):
    """Notes that are read out, changed, removed, or handed over."""

    name: ClassVar[str] = "cheap"
    toolset = CheapTools
    capabilities: ClassVar[dict[str, str]] = {
        "number": "says a number below 3000",
        "amount": "says an amount with cents",
        "title": "says a title that many states have",
        "one_of_many": "says one of thirty words, which no state has",
        "usual": "says one of two words",
        "listed": "says a price that stands in a list",
        "closing": "says what every answer contains",
        "hand_over": "hands over, in any words",
        "argument": "removes any note, whether it works or not",
        "loud": "has a note read out that is read out",
        "removed": "removes the same note in every task",
        "honest": "removes the note that the user names",
    }

    def policy(self, task: TaskDefinition) -> str:
        """One sentence."""
        return "Do what the user wants."

    def pristine(self, task: TaskDefinition) -> Database:
        """Notes with titles that other states have too."""
        notes = {f"n{number}": _note(task.seed + number) for number in range(NOTES)}
        return Database({"notes": notes})

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """The task of this seed."""
        opening = f"Something about note n{seed % NOTES}."
        return TaskDefinition(
            id=self.task_id(capability, seed),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=Scenario(reason_for_call=opening),
            script=Script(
                opening=opening,
                answers=(Answer(asks="confirm", says="Yes."),),
                ends="request is complete",
            ),
            criteria=_write_criteria(capability, seed),
        )


def _note(number: int) -> dict[str, Any]:
    title = f"title {number % NOTES}"
    return {"title": title, "loud": number % 2 == 0, "cents": _price(number)}


def _price(number: int) -> int:
    return 5_000 + 31 * number


def _write_criteria(capability: str, seed: int) -> Criteria:
    note = f"n{seed % NOTES}"
    gold: tuple[Action, ...]
    look = Action(name="get_note", arguments={"note_id": note})
    outputs = {
        "number": str(1_000 + 7 * seed),
        "amount": f"{10 + seed * 0.37:.2f}",
        "title": f"title {seed % NOTES}",
        "one_of_many": f"word{seed * 7 % 30:02}",
        "usual": "rarely" if seed % 3 else "often",
        "closing": "complete",
    }
    if capability == "listed":
        source = Source(identity={"note_id": note}, fields=("cents",))
        return Criteria(
            gold_actions=(Action(name="list_prices", arguments={}),),
            outputs=(str(_price(seed + seed % NOTES)),),
            rules=Rules(sources=((source,),)),
        )
    if capability in outputs:
        return Criteria(gold_actions=(look,), outputs=(outputs[capability],))
    tool, arguments, basis = _CHANGES[capability]
    named = {"note_id": note, **arguments} if tool != "transfer_to_person" else arguments
    if "DB" in basis:
        gold = (look, Action(name=tool, arguments=named))
    else:
        gold = (Action(name=tool, arguments=named, compare=()),)
    return Criteria(gold_actions=gold, reward_basis=basis)


_CHANGES: Final[dict[str, tuple[str, dict[str, Any], tuple[Basis, ...]]]] = {
    "hand_over": ("transfer_to_person", {"summary": "A reader."}, ("ACTION",)),
    "argument": ("remove_note", {}, ("ACTION",)),
    "loud": ("set_loud", {"loud": True}, ("ACTION", "DB")),
    "removed": ("remove_note", {"note_id": "n1"}, ("DB",)),
    "honest": ("remove_note", {}, ("DB",)),
}
"""Kind -> its gold write, and what is judged. The note of `loud` is read out already."""
