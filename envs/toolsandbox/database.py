"""Generated devices: contacts, messages, reminders and settings, drawn from a seed."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from random import Random
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from envs.toolsandbox.device.state import CONTACT, MESSAGING, REMINDER, SETTING, Row
from envs.toolsandbox.device.world import PLACES

_FIRST: Final = """
    Ada Bruno Carla Dmitri Elena Farid Greta Hugo Ines Jonas Kemal Lucia Mateo Nadia Oscar Priya
    Quentin Rosa Samir Tessa Umar Vera Walter Xenia Yusuf Zoe Anders Bianca Cyrus Dalia
"""
_LAST: Final = """
    Abbott Berg Castillo Dunne Eriksen Fontaine Grimaldi Haddad Ivanov Jansen Kowalski Larsson
    Moreau Novak Okafor Petrov Quinn Rossi Sandoval Tanaka Ueda Vargas Weber Xu Yilmaz Zimmer
    Ashworth Bianchi Cortez Delgado
"""
FIRST_NAMES: Final = tuple(_FIRST.split())
LAST_NAMES: Final = tuple(_LAST.split())
RELATIONSHIPS: Final = ("friend", "sister", "brother", "boss", "colleague", "neighbour", "dentist")
TEXTS: Final = (
    "The keys are under the blue pot",
    "Dinner is at seven on Saturday",
    "The package came while you were out",
    "Bring the red folder to the meeting",
    "My train leaves from platform nine",
    "The plumber can come on Tuesday",
    "We changed the password to the guest network",
    "The rehearsal moved to the small hall",
    "The invoice is still open",
    "The cat ate the whole salmon",
    "The tickets are at the front desk",
    "Your umbrella is at my place",
    "The exam covers chapters two to five",
    "The car is ready at the garage",
    "I booked the corner table",
    "The flight lands at noon",
    "The spare wheel is in the shed",
    "Your parcel needs a signature",
    "The museum closes early on Monday",
    "The choir meets in the old chapel",
    "I left the charger on your desk",
    "The bridge is shut until Friday",
    "The landlord fixed the heating",
    "Your book is due at the library",
    "The bakery has the rye bread again",
    "The bus stops behind the market",
    "The dog slept through the storm",
    "The printer is out of black ink",
    "The picnic moved to the west lawn",
    "The vet can see the rabbit today",
    "The lift is stuck on the third floor",
    "Your jacket hangs in the cloakroom",
    "The soup recipe needs more ginger",
    "The meter is read on Wednesday",
    "The ferry leaves from the north pier",
    "The window seat is yours",
    "The tulips came up overnight",
    "The concert ends before ten",
    "The spare room is painted green",
    "The kettle finally broke",
)
ERRANDS: Final = (
    "water the ferns",
    "renew the passport",
    "call the landlord",
    "buy oat milk",
    "return the library books",
    "pay the electricity bill",
    "pick up the dry cleaning",
    "back up the laptop",
    "order printer paper",
    "book the dentist",
    "feed the neighbour's cat",
    "change the smoke alarm battery",
    "print the boarding pass",
    "sharpen the kitchen knives",
    "sign the lease",
    "send the birthday card",
)

_PEOPLE: Final = 7
_MESSAGES: Final = 9
_REMINDERS: Final = 5
_SOON: Final = 14
"""Largest number of days from today to a reminder, in both directions."""


class Device:
    """The rows of a device's tables, and its time."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(f"toolsandbox device {seed}")
        self.now = self._draw_time()
        self.people = self._draw_people()
        self.rows: dict[str, list[Row]] = {
            CONTACT: self.people,
            MESSAGING: self._draw_messages(),
            REMINDER: self._draw_reminders(),
            SETTING: [self._draw_setting(seed)],
        }

    @property
    def owner(self) -> Row:
        """The contact that stands for the user."""
        return next(row for row in self.people if row["is_self"])

    @property
    def others(self) -> list[Row]:
        """All contacts other than the user's own."""
        return [row for row in self.people if not row["is_self"]]

    def _draw_time(self) -> float:
        first = datetime(2025, 1, 10, 9, tzinfo=UTC)
        moment = first + timedelta(days=self.chance.randrange(700), hours=self.chance.randrange(9))
        return (moment + timedelta(minutes=self.chance.randrange(60))).timestamp()

    def _make_id(self) -> str:
        return str(uuid5(NAMESPACE_URL, str(self.chance.getrandbits(64))))

    def _draw_people(self) -> list[Row]:
        names: dict[str, str] = {}
        firsts: set[str] = set()
        while len(names) <= _PEOPLE:
            name = f"{self.chance.choice(FIRST_NAMES)} {self.chance.choice(LAST_NAMES)}"
            number = draw_phone_number(self.chance)
            # A search confuses names that share a part, and a number has only one owner.
            parts = set(name.split())
            if not parts & firsts and number not in names.values():
                firsts |= parts
                names[name] = number
        return [
            {
                "person_id": self._make_id(),
                "name": name,
                "phone_number": number,
                "relationship": self.chance.choice(RELATIONSHIPS) if place else "self",
                "is_self": not place,
            }
            for place, (name, number) in enumerate(names.items())
        ]

    def _draw_messages(self) -> list[Row]:
        """Return messages, oldest first, with at least one sent and one received by the user."""
        own = self.people[0]
        moment = self.now
        rows: list[Row] = []
        for place, text in enumerate(self.chance.sample(TEXTS, _MESSAGES)):
            moment -= self.chance.randrange(3_600, 172_800)
            other = self.chance.choice(self.people[1:])
            is_sent = place == 0 if place < 2 else self.chance.random() < 0.5
            sender, recipient = (own, other) if is_sent else (other, own)
            rows.append(self._message(sender, recipient, text, moment))
        return rows[::-1]

    def _message(self, sender: Row, recipient: Row, text: str, moment: float) -> Row:
        return {
            "message_id": self._make_id(),
            "sender_person_id": sender["person_id"],
            "sender_phone_number": sender["phone_number"],
            "recipient_person_id": recipient["person_id"],
            "recipient_phone_number": recipient["phone_number"],
            "content": text,
            "creation_timestamp": moment,
        }

    def _draw_reminders(self) -> list[Row]:
        """Return reminders at different times, at least one of them in the future."""
        days = self.chance.sample([d for d in range(-_SOON, _SOON) if d], _REMINDERS)
        if max(days) < 0:
            days[0] = self.chance.randrange(1, _SOON)
        today = datetime.fromtimestamp(self.now, UTC).date()
        rows = []
        for errand, day in zip(self.chance.sample(ERRANDS, _REMINDERS), days, strict=True):
            at = datetime.combine(today, datetime.min.time(), UTC)
            at += timedelta(days=day, hours=self.chance.randrange(8, 20))
            created = min(at.timestamp(), self.now) - self.chance.randrange(3_600, 500_000)
            rows.append(
                {
                    "reminder_id": self._make_id(),
                    "content": errand,
                    "creation_timestamp": created,
                    "reminder_timestamp": at.timestamp(),
                    "latitude": None,
                    "longitude": None,
                }
            )
        return rows

    def _draw_setting(self, seed: int) -> Row:
        place = self.chance.choice(PLACES)
        return {
            "device_id": str(uuid5(NAMESPACE_URL, f"toolsandbox device {seed}")),
            "cellular": True,
            "wifi": True,
            "location_service": True,
            "low_battery_mode": False,
            "latitude": place.latitude,
            "longitude": place.longitude,
        }


def draw_phone_number(chance: Random) -> str:
    """Return a random US number that nobody has: 555-01xx is reserved for fiction."""
    area = chance.choice((206, 212, 312, 408, 415, 503, 617, 720, 802, 907))
    return f"+1{area}55501{chance.randrange(100):02}"


@lru_cache(maxsize=256)
def build_device(seed: int) -> Device:
    """Return the device for this seed. Callers share it and must not change its rows."""
    return Device(seed)


def switch(rows: dict[str, list[Row]], switches: dict[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of a device with these values in its settings."""
    return {**rows, SETTING: [{**rows[SETTING][0], **switches}]}
