"""The rules once more, read off the policy and not off the generator: what a call breaks.

broken(state, user_id, call, told)    one word for each rule that a call breaks in a state
"""

from collections.abc import Iterator
from typing import Any

from envs.database import Database
from events.messages import Action

ALLOWANCE = {
    ("regular", "basic_economy"): 0,
    ("regular", "economy"): 1,
    ("regular", "business"): 2,
    ("silver", "basic_economy"): 1,
    ("silver", "economy"): 2,
    ("silver", "business"): 3,
    ("gold", "basic_economy"): 2,
    ("gold", "economy"): 3,
    ("gold", "business"): 4,
}


class Rules:
    """The rules over the state before a call, and what the user said."""

    def __init__(self, state: Database, user_id: str, told: str) -> None:
        self.state = state
        self.user = state["users"][user_id]
        self.told = told
        self.changed: list[Any] = []
        """Reservations that earlier calls changed or cancelled."""

    def broken(self, call: Action) -> list[str]:
        """One word for each broken rule."""
        check = getattr(self, f"_{call.name}", None)
        return [] if check is None else list(check(**call.arguments))

    def _own(self, reservation_id: str) -> Any:
        assert reservation_id in self.user["reservations"]
        self.changed.append(reservation_id)
        return self.state["reservations"][reservation_id]

    def _statuses(self, reservation: Any) -> set[str]:
        return {
            self.state["flights"][one["flight_number"]]["dates"][one["date"]]["status"]
            for one in reservation["flights"]
        }

    def _bags(self, cabin: str, people: int, total: int, paid: int) -> Iterator[str]:
        if paid != max(0, total - people * ALLOWANCE[self.user["membership"], cabin]):
            yield "allowance"

    def _book_reservation(self, **given: Any) -> Iterator[str]:
        methods = [self.user["payment_methods"][p["payment_id"]] for p in given["payment_methods"]]
        sources = [method["source"] for method in methods]
        people = len(given["passengers"])
        if people > 5:
            yield "passengers"
        if sources.count("certificate") > 1 or sources.count("credit_card") > 1:
            yield "payments"
        if (given["insurance"] == "yes") == ("without travel insurance" in self.told):
            yield "insurance"
        bags = given["total_baggages"], given["nonfree_baggages"]
        yield from self._bags(given["cabin"], people, *bags)

    def _cancel_reservation(self, reservation_id: str) -> Iterator[str]:
        reservation = self._own(reservation_id)
        statuses = self._statuses(reservation)
        ill = "fallen ill" in self.told and reservation["insurance"] == "yes"
        recent = reservation["created_at"] >= "2024-05-14T15:00:00"
        business = reservation["cabin"] == "business"
        if statuses & {"landed", "flying"}:
            yield "flown"
        if not (recent or business or ill or "cancelled" in statuses):
            yield "cancellation"

    def _update_reservation_flights(
        self, reservation_id: str, cabin: str, flights: list[Any], payment_id: str
    ) -> Iterator[str]:
        reservation = self._own(reservation_id)
        before = [(one["flight_number"], one["date"]) for one in reservation["flights"]]
        after = [(one["flight_number"], one["date"]) for one in flights]
        ends = [
            (self.state["flights"][number]["origin"], self.state["flights"][number]["destination"])
            for number, _ in after
        ]
        if before != after and "basic_economy" in (cabin, reservation["cabin"]):
            yield "basic economy"
        if cabin != reservation["cabin"] and self._statuses(reservation) & {"landed", "flying"}:
            yield "flown"
        if [(one["origin"], one["destination"]) for one in reservation["flights"]] != ends:
            yield "journey"
        if [day for _, day in after] != sorted({day for _, day in after}):
            yield "order"
        if self.user["payment_methods"][payment_id]["source"] == "certificate":
            yield "payment"

    def _update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> Iterator[str]:
        reservation = self._own(reservation_id)
        if total_baggages < reservation["total_baggages"]:
            yield "fewer bags"
        people = len(reservation["passengers"])
        yield from self._bags(reservation["cabin"], people, total_baggages, nonfree_baggages)

    def _update_reservation_passengers(
        self, reservation_id: str, passengers: list[Any]
    ) -> Iterator[str]:
        if len(self._own(reservation_id)["passengers"]) != len(passengers):
            yield "passengers"

    def _send_certificate(self, user_id: str, amount: int) -> Iterator[str]:
        named = [own for own in self.user["reservations"] if own in self.told]
        reservation = self.state["reservations"][named[0]]
        insured = reservation["insurance"] == "yes" or reservation["cabin"] == "business"
        if "compensation" not in self.told or user_id != self.user["user_id"]:
            yield "unasked"
        if self.user["membership"] == "regular" and not insured:
            yield "compensation"
        each = 50 if "delayed" in self.told else 100
        if amount != each * len(reservation["passengers"]):
            yield "amount"
        if each == 50 and named[0] not in self.changed:
            yield "unchanged"
