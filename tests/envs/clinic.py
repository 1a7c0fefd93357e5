"""An environment of a user's own: a clinic whose tools have names that no rule can read, and that
declares what they do."""

from typing import Any, ClassVar

from envs.catalog import ToolCatalog
from envs.database import Database
from envs.environment import Environment
from envs.task import Answer, Criteria, Scenario, Script, TaskDefinition
from envs.tools import ToolError, Toolset, generic, read, write
from events.messages import Action


class ClinicTools(Toolset):
    """The desk of a clinic."""

    @read
    def who_rings(self, birthday: str) -> Any:
        """Find the patient by their birthday."""
        if birthday not in self.database["patients"]:
            raise ToolError("nobody was born on that day")
        return self.database["patients"][birthday]

    @write
    def slot_take(self, slot: str, patient: str) -> str:
        """Give a free slot to a patient."""
        if self.database["slots"][slot]["patient"]:
            raise ToolError(f"{slot} is taken")
        self.database.edit("slots", slot)["patient"] = patient
        return "taken"

    @generic
    def ring_doctor(self) -> str:
        """Put the caller through to a doctor."""
        return "ringing"


class Clinic(Environment):
    """Patients who want a slot."""

    name: ClassVar[str] = "clinic"
    toolset = ClinicTools
    capabilities: ClassVar[dict[str, str]] = {"slot": "Give the caller the slot they ask for."}

    @property
    def catalog(self) -> ToolCatalog:
        """What no name says."""
        return ToolCatalog(
            name="clinic",
            writes=frozenset({"slot_take"}),
            reads=frozenset({"who_rings"}),
            generic=frozenset({"ring_doctor"}),
            user_tools=frozenset(),
            authenticating=frozenset({"who_rings"}),
            user_record=frozenset({"who_rings"}),
            transfer=frozenset({"ring_doctor"}),
            record_arguments=("patient",),
            selection_arguments=frozenset({"slot"}),
        )

    def policy(self, task: TaskDefinition) -> str:
        """The rules."""
        return "Find the patient first. At the end say: Your request is complete."

    def pristine(self, task: TaskDefinition) -> Database:
        """One patient, three slots."""
        patients = {"1 May": {"patient": "Rosa"}}
        slots: dict[str, dict[str, Any]] = {slot: {"patient": None} for slot in ("8", "9", "10")}
        return Database({"patients": patients, "slots": slots})

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """Rosa wants one of the slots."""
        slot = ("8", "9", "10")[seed % 3]
        wish = f"I was born on 1 May. Please give me the slot at {slot}."
        gold = (
            Action(name="who_rings", arguments={"birthday": "1 May"}),
            Action(name="slot_take", arguments={"slot": slot, "patient": "Rosa"}),
        )
        return TaskDefinition(
            id=self.task_id(capability, seed),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=Scenario(reason_for_call=wish),
            script=Script(
                opening=wish, answers=(Answer(asks="confirm", says="Yes."),), ends="is complete"
            ),
            criteria=Criteria(gold_actions=gold),
        )
