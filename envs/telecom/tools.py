"""The thirteen tools of a telecom agent, with tau2-bench's names, arguments and answers.

Guarantee: outputs, errors, their order and the resulting state are the original's. One exception:
a draft bill's id follows from the customer, while the original draws it. No tool enforces the
policy (policy.py). Each call of either party synchronises company and phone (phone.py).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from envs.database import Record
from envs.tau2.toolset import TRANSFERRED, Tau2Conventions
from envs.telecom.phone import (
    awaiting_payment,
    find_customer,
    find_owned_line,
    find_record,
    synchronize,
)
from envs.tools import ToolResult, generic, read, write
from events.canonical import sha256

TODAY: Final = "2025-02-25"
CYCLE_END: Final = "2025-02-28"
ACTIVE: Final = "Active"
SUSPENDED: Final = "Suspended"

_NEXT_BILL: Final = {
    "period_start": "2025-03-01",
    "period_end": "2025-03-31",
    "issue_date": "2025-03-01",
    "total_due": 0.0,
    "due_date": "2025-03-15",
}

PhoneNumber = Annotated[str, Field(description="A phone number, such as '555-402-1187'.")]
CustomerId = Annotated[str, Field(description="The customer's id, such as 'C2041'.")]
LineId = Annotated[str, Field(description="The id of one of the customer's lines, as 'L3107'.")]
BillId = Annotated[str, Field(description="The id of one of the customer's bills, as 'B4410'.")]


class TelecomToolset(Tau2Conventions):
    """Base of both parties' tools. It synchronises company and phone after each successful call."""

    def _run(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        result = super()._run(name, arguments)
        if result.error:
            return result
        try:
            synchronize(self.database)
        except ValueError as error:
            return ToolResult(f"Error: {error}", error=True)
        return result


class TelecomTools(TelecomToolset):
    """The agent's tools, over the company's customers, lines, bills and plans."""

    @read
    def get_customer_by_phone(self, phone_number: PhoneNumber) -> Record:
        """Find the customer who has this number, as a contact or as one of their lines."""
        return find_customer(self.database, phone_number)

    @read
    def get_customer_by_id(self, customer_id: CustomerId) -> Record:
        """Look up a customer."""
        return find_record(self.database, "customers", customer_id, "Customer")

    @read
    def get_customer_by_name(
        self,
        full_name: Annotated[str, Field(description="First and last name.")],
        dob: Annotated[str, Field(description="Date of birth, as YYYY-MM-DD.")],
    ) -> list[Record]:
        """Find customers by name and date of birth."""
        return [
            customer
            for customer in self.database["customers"].values()
            if customer["full_name"].lower() == full_name.lower()
            and customer["date_of_birth"] == dob
        ]

    @read
    def get_details_by_id(
        self,
        id: Annotated[
            str,
            Field(description="Id of a customer (C), line (L), device (D), bill (B), plan (P)."),
        ],
    ) -> Record:
        """Look up anything by its id."""
        for letter, (table, kind) in _KINDS.items():
            if id.startswith(letter):
                return find_record(self.database, table, id, kind)
        raise ValueError(f"Unknown ID format or type: {id}")

    @write
    def suspend_line(
        self,
        customer_id: CustomerId,
        line_id: LineId,
        reason: Annotated[str, Field(description="Why it is suspended.")],
    ) -> Record:
        """Suspend an active line, for six months at most."""
        if self._find_line(customer_id, line_id)["status"] != ACTIVE:
            raise ValueError("Line must be active to suspend")
        line = self.database.edit("lines", line_id)
        line["status"] = SUSPENDED
        line["suspension_start_date"] = TODAY
        message = "Line suspended successfully. $5/month holding fee will apply."
        return {"message": message, "line": line}

    @write
    def resume_line(self, customer_id: CustomerId, line_id: LineId) -> Record:
        """Make a suspended line, or one that waits for its activation, active."""
        if self._find_line(customer_id, line_id)["status"] not in (SUSPENDED, "Pending Activation"):
            raise ValueError("Line must be suspended to resume")
        line = self.database.edit("lines", line_id)
        line["status"] = ACTIVE
        line["suspension_start_date"] = None
        return {"message": "Line resumed successfully", "line": line}

    @read
    def get_bills_for_customer(
        self,
        customer_id: CustomerId,
        limit: Annotated[int, Field(description="How many bills, at most.")] = 12,
    ) -> list[Record]:
        """List a customer's bills, the newest first."""
        customer = self.get_customer_by_id(customer_id)
        bills = [find_record(self.database, "bills", key, "Bill") for key in customer["bill_ids"]]
        return sorted(bills, key=lambda bill: str(bill["issue_date"]), reverse=True)[:limit]

    @write
    def send_payment_request(self, customer_id: CustomerId, bill_id: BillId) -> str:
        """Ask the customer to pay a bill. Whether it is due is not checked; only one bill of a
        customer can wait for its payment."""
        customer = self.get_customer_by_id(customer_id)
        if awaiting_payment(self.database, customer):
            raise ValueError("A bill is already awaiting payment for this customer")
        if bill_id not in customer["bill_ids"]:
            raise ValueError(f"Bill {bill_id} not found for customer {customer_id}")
        find_record(self.database, "bills", bill_id, "Bill")
        self.database.edit("bills", bill_id)["status"] = "Awaiting Payment"
        return f"Payment request sent to the customer for bill {bill_id}"

    @read
    def get_data_usage(self, customer_id: CustomerId, line_id: LineId) -> Record:
        """Tell what a line has used in this billing cycle, its limit, and what was refuelled."""
        line = self._find_line(customer_id, line_id)
        plan = find_record(self.database, "plans", line["plan_id"], "Plan")
        # The original shows the numbers of such plain data as strings.
        return {
            "line_id": line_id,
            "data_used_gb": str(line["data_used_gb"]),
            "data_limit_gb": str(plan["data_limit_gb"]),
            "data_refueling_gb": str(line["data_refueling_gb"]),
            "cycle_end_date": CYCLE_END,
        }

    @write
    def enable_roaming(self, customer_id: CustomerId, line_id: LineId) -> str:
        """Allow a line to be used abroad."""
        if self._find_line(customer_id, line_id)["roaming_enabled"]:
            return "Roaming was already enabled"
        self.database.edit("lines", line_id)["roaming_enabled"] = True
        return "Roaming enabled successfully"

    @write
    def disable_roaming(self, customer_id: CustomerId, line_id: LineId) -> str:
        """Allow a line to be used at home only."""
        if not self._find_line(customer_id, line_id)["roaming_enabled"]:
            return "Roaming was already disabled"
        self.database.edit("lines", line_id)["roaming_enabled"] = False
        return "Roaming disabled successfully"

    @generic
    def transfer_to_human_agents(
        self, summary: Annotated[str, Field(description="What the user wants and what was done.")]
    ) -> str:
        """Hand the user over to a person.

        Only when the user asks for one, or when neither the policy nor the tools allow to help.
        """
        return TRANSFERRED

    @write
    def refuel_data(
        self,
        customer_id: CustomerId,
        line_id: LineId,
        gb_amount: Annotated[float, Field(description="How much data, in GB.")],
    ) -> Record:
        """Add data to a line; the price goes on the customer's next bill."""
        line = self._find_line(customer_id, line_id)
        if gb_amount <= 0:
            raise ValueError("Refuel amount must be positive")
        price = find_record(self.database, "plans", line["plan_id"], "Plan")[
            "data_refueling_price_per_gb"
        ]
        charge = gb_amount * price
        line = self.database.edit("lines", line_id)
        line["data_refueling_gb"] += gb_amount
        self._charge(customer_id, charge, f"Data refueling: {gb_amount} GB at ${price}/GB")
        return {
            "message": f"Successfully added {gb_amount} GB of data for line {line_id} "
            f"for ${charge:.2f}",
            "new_data_refueling_gb": str(line["data_refueling_gb"]),
            "charge": str(charge),
        }

    def _find_line(self, customer_id: str, line_id: str) -> Record:
        return find_owned_line(self.database, customer_id, line_id)

    def _charge(self, customer_id: str, amount: float, description: str) -> None:
        """Add a charge to the customer's draft bill for the next month, which may be new."""
        bill = self.database.edit("bills", self._find_draft(customer_id))
        item = {
            "description": description,
            "amount": float(amount),
            "date": TODAY,
            "item_type": "Credit" if amount < 0 else "Charge",
        }
        bill["line_items"].append(item)
        bill["total_due"] += amount

    def _find_draft(self, customer_id: str) -> str:
        for bill_id in self.get_customer_by_id(customer_id)["bill_ids"]:
            if find_record(self.database, "bills", bill_id, "Bill")["status"] == "Draft":
                return str(bill_id)
        bill_id = f"B{sha256(f'next bill of {customer_id}')[:8]}"
        bill = {"bill_id": bill_id, "customer_id": customer_id, **_NEXT_BILL}
        bill |= {"line_items": [], "status": "Draft"}
        self.database.put("bills", bill_id, bill)
        self.database.edit("customers", customer_id)["bill_ids"].append(bill_id)
        return bill_id


_KINDS: Final = {
    "L": ("lines", "Line"),
    "D": ("devices", "Device"),
    "B": ("bills", "Bill"),
    "C": ("customers", "Customer"),
    "P": ("plans", "Plan"),
}
"""First letter of an id -> the table, and the name of its kind of record."""
