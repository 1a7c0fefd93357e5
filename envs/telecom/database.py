"""Telecom states: their canonical form, their hashes, and a generator of our own. A generated
state has twelve customers with lines, bills and plans, and a phone. `company_digest` and
`user_digest` are tau2-bench's two hashes of a state.

Guarantee: a generated state is canonical and depends only on its seed (in one version of this
file). None of its ids is one of tau2-bench's: they have five digits instead of four.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from random import Random
from typing import Any, Final

from pydantic import BaseModel

from envs.database import Database, Record, Tables
from envs.telecom import records
from envs.telecom.phone import DEVICE, PHONE, SURROUNDINGS, VPN, VPN_DEFAULT

COMPANY: Final[Mapping[str, tuple[type[BaseModel], str]]] = {
    "plans": (records.Plan, "plan_id"),
    "customers": (records.Customer, "customer_id"),
    "lines": (records.Line, "line_id"),
    "bills": (records.Bill, "bill_id"),
    "devices": (records.Device, "device_id"),
}
"""Table of the company -> model of its records, and the field that is the key."""

CUSTOMERS: Final = 12
_KEPT: Final = 64
"""Number of generated states that stay in memory, of some 30 kB each."""


def canonical(company: Mapping[str, Any], phone: Mapping[str, Any]) -> Tables:
    """Return a state's tables from the data of its two files. For another shape raise KeyError,
    TypeError, ValueError (pydantic's included) or AttributeError."""
    unknown = sorted(company.keys() - COMPANY.keys())
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no table")
    tables: Tables = {}
    for name, (shape, key) in COMPANY.items():
        rows = [_dump(shape.model_validate(row)) for row in company.get(name, ())]
        tables[name] = {row[key]: row for row in rows}
        if len(tables[name]) != len(rows):
            raise ValueError(f"two records of {name} have one {key}")
    tables[PHONE] = {
        DEVICE: _dump(records.Phone.model_validate(phone.get("device", {}))),
        SURROUNDINGS: _dump(records.Surroundings.model_validate(phone.get("surroundings", {}))),
    }
    tables[VPN] = {
        VPN_DEFAULT: {
            "server_address": "192.168.1.1",
            "protocol": "OpenVPN",
            "server_performance": "excellent",
        }
    }
    return tables


def _dump(record: BaseModel) -> Record:
    """Return the record as JSON. Dates become Python's own text of them, as in the original."""
    return json.loads(json.dumps(record.model_dump(), default=str))


def company_digest(database: Database) -> str:
    """Return the original's hash of the company's records."""
    return _hash({name: list(database[name].values()) for name in COMPANY})


def user_digest(database: Database) -> str:
    """Return the original's hash of the user's phone and surroundings."""
    return _hash({name: database[PHONE][name] for name in (DEVICE, SURROUNDINGS)})


def _hash(tables: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=_KEPT)
def build_database(seed: int) -> Database:
    """Return the generated pristine state for this seed. Callers share it, so fork it first."""
    return Database(_Generator(Random(f"telecom database {seed}")).tables())


_PLANS: Final = (
    ("Pocket", 4.0, 25.0, 6.0),
    ("Everyday", 12.0, 45.0, 4.0),
    ("Roomy", 30.0, 60.0, 2.5),
    ("Household", 60.0, 95.0, 1.5),
)
"""Name, GB per month, dollars per month, dollars for each further GB."""

_MODELS: Final = ("Pebble 4", "Pebble 4 Max", "Tern S", "Tern Mini", "Quill 12", "Orbit Lite")
_FIRST_NAMES: Final = (
    "Amara", "Benno", "Carla", "Dmitri", "Elin", "Farid", "Gwen", "Henrik", "Imani", "Joris",
    "Katya", "Lorenz", "Maeve", "Noor", "Odile", "Pavel", "Rosa", "Stellan", "Tariq", "Ulla",
)  # fmt: skip
_LAST_NAMES: Final = (
    "Aldous", "Brandt", "Castell", "Drummond", "Eastman", "Fontaine", "Garrick", "Hollis",
    "Ingram", "Jessup", "Kendrick", "Larkin", "Marlowe", "Norwood", "Okafor", "Prescott",
)  # fmt: skip
_STREETS: Final = ("Copper Lane", "Harbour Rise", "Juniper Way", "Mill Terrace", "Orchard Close")
_PLACES: Final = (
    ("Bend", "OR", "977"),
    ("Dover", "DE", "199"),
    ("Ithaca", "NY", "148"),
    ("Laredo", "TX", "780"),
    ("Salina", "KS", "674"),
)
"""City, state, and first digits of its zip codes."""

_AREAS: Final = ("217", "319", "423", "541", "715", "828")


class _Generator:
    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.taken: set[str] = set()
        self.company: dict[str, list[Record]] = {name: [] for name in COMPANY}

    def tables(self) -> Tables:
        """Generate all tables: plans first, then customers, each with lines and bills."""
        self.company["plans"] = [
            {
                "plan_id": self.draw_id("P"),
                "name": name,
                "data_limit_gb": limit,
                "price_per_month": price,
                "data_refueling_price_per_gb": refuel,
            }
            for name, limit, price, refuel in _PLANS
        ]
        for _ in range(CUSTOMERS):
            self.add_customer()
        return canonical(self.company, {})

    def draw_id(self, letter: str) -> str:
        """Return a random id that no other record has."""
        return self.draw(lambda: f"{letter}{self.chance.randrange(10_000, 100_000)}")

    def draw_number(self) -> str:
        """Return a random phone number that no other line has."""
        area = self.chance.choice(_AREAS)
        return self.draw(
            lambda: f"{area}-{self.chance.randrange(200, 1000)}-{self.chance.randrange(10_000):04}"
        )

    def draw(self, make: Any) -> str:
        """Call `make` until it returns a new text, and return this text."""
        while (drawn := str(make())) in self.taken:
            pass
        self.taken.add(drawn)
        return drawn

    def draw_day(self, first: int, last: int) -> str:
        """Return a random date at least `first` and fewer than `last` days after 2024-01-01."""
        return date.fromordinal(738_886 + self.chance.randrange(first, last)).isoformat()

    def add_customer(self) -> None:
        """Add a customer with up to three lines, a paid bill and one that is not due yet."""
        chance = self.chance
        first, last = chance.choice(_FIRST_NAMES), chance.choice(_LAST_NAMES)
        customer_id, place = self.draw_id("C"), chance.choice(_PLACES)
        lines = [self.add_line() for _ in range(chance.randrange(1, 4))]
        self.company["customers"].append(
            {
                "customer_id": customer_id,
                "full_name": f"{first} {last}",
                "date_of_birth": date.fromordinal(chance.randrange(718_000, 730_000)).isoformat(),
                "email": f"{first}.{last}{chance.randrange(100, 1000)}@example.org".lower(),
                "phone_number": lines[0]["phone_number"],
                "address": {
                    "street": f"{chance.randrange(1, 200)} {chance.choice(_STREETS)}",
                    "city": place[0],
                    "state": place[1],
                    "zip_code": f"{place[2]}{chance.randrange(100):02}",
                },
                "account_status": "Active",
                "payment_methods": [self.draw_method()],
                "line_ids": [line["line_id"] for line in lines],
                "bill_ids": [
                    self.add_bill(customer_id, lines, month, status)
                    for month, status in (("01", "Paid"), ("02", "Issued"))
                ],
                "created_at": f"{self.draw_day(0, 300)}T09:30:00",
            }
        )

    def draw_method(self) -> Record:
        """Return a random payment method."""
        chance = self.chance
        return {
            "method_type": chance.choice(("Credit Card", "Debit Card", "PayPal")),
            "account_number_last_4": f"{chance.randrange(10_000):04}",
            "expiration_date": f"{chance.randrange(1, 13):02}/{chance.randrange(2026, 2031)}",
        }

    def add_line(self) -> Record:
        """Add an active line with a phone."""
        chance = self.chance
        device_id = self.draw_id("D")
        plan = chance.choice(self.company["plans"])
        self.company["devices"].append(
            {
                "device_id": device_id,
                "device_type": "phone",
                "model": chance.choice(_MODELS),
                "imei": f"{chance.randrange(10**14, 10**15)}",
                "is_esim_capable": chance.random() < 0.6,
                "activated": True,
                "activation_date": f"{self.draw_day(200, 400)}T12:00:00",
            }
        )
        line = {
            "line_id": self.draw_id("L"),
            "phone_number": self.draw_number(),
            "status": "Active",
            "plan_id": plan["plan_id"],
            "device_id": device_id,
            "data_used_gb": round(plan["data_limit_gb"] * chance.uniform(0.1, 0.9), 1),
            "roaming_enabled": chance.random() < 0.5,
            "contract_end_date": self.draw_day(700, 1200),
            "last_plan_change_date": self.draw_day(100, 400),
        }
        self.company["lines"].append(line)
        return line

    def add_bill(self, customer_id: str, lines: list[Record], month: str, status: str) -> str:
        """Add a bill for the lines in a month, and return its id."""
        prices = {plan["plan_id"]: plan["price_per_month"] for plan in self.company["plans"]}
        bill_id, issued = self.draw_id("B"), f"2025-{month}-03"
        self.company["bills"].append(
            {
                "bill_id": bill_id,
                "customer_id": customer_id,
                "period_start": f"2025-{month}-01",
                "period_end": f"2025-{month}-{31 if month == '01' else 28}",
                "issue_date": issued,
                "total_due": sum(prices[line["plan_id"]] for line in lines),
                "due_date": f"2025-{month}-{17 if month == '01' else 27}",
                "line_items": [
                    {
                        "description": f"Line {line['phone_number']}",
                        "amount": prices[line["plan_id"]],
                        "date": issued,
                        "item_type": "Plan Charge",
                    }
                    for line in lines
                ],
                "status": status,
            }
        )
        return bill_id
