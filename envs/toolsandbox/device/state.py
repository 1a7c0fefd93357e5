"""The state of the device: four tables of rows, and a clock that stands still.

    SETTING    one row: switches, and where the device is
    CONTACT, MESSAGING, REMINDER    rows in the order in which they came
    DEVICE     the time, the tools that the agent may call, and the number of rows ever added

Table and column names are those of ToolSandbox's scenarios. The key of a row is its number, because
rows may share an id, as some of the original's messages do.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from envs.database import Database, Tables

SETTING: Final = "SETTING"
CONTACT: Final = "CONTACT"
MESSAGING: Final = "MESSAGING"
REMINDER: Final = "REMINDER"
DEVICE: Final = "DEVICE"

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    SETTING: (
        "device_id",
        "cellular",
        "wifi",
        "location_service",
        "low_battery_mode",
        "latitude",
        "longitude",
    ),
    CONTACT: ("person_id", "name", "phone_number", "relationship", "is_self"),
    MESSAGING: (
        "message_id",
        "sender_person_id",
        "sender_phone_number",
        "recipient_person_id",
        "recipient_phone_number",
        "content",
        "creation_timestamp",
    ),
    REMINDER: (
        "reminder_id",
        "content",
        "creation_timestamp",
        "reminder_timestamp",
        "latitude",
        "longitude",
    ),
}
"""Table -> its columns. Results of tools and constraints use these names."""

Row = dict[str, Any]


def build_tables(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], now: float, tools: Iterable[str]
) -> Tables:
    """Return tables for rows. `now` is in POSIX seconds; the agent may call `tools`."""
    tables: Tables = {
        name: {_key(place): dict(row) for place, row in enumerate(rows.get(name, ()))}
        for name in COLUMNS
    }
    tables[DEVICE] = {"clock": {"now": now, "added": 0}, "tools": sorted(tools)}
    return tables


def read_rows(database: Database, table: str) -> list[Row]:
    """Return the rows of a table, in order."""
    records = database[table]
    return [records[key] for key in sorted(records)]


def read_setting(database: Database) -> Row:
    """Return the only row of the settings."""
    row: Row = database[SETTING][_key(0)]
    return row


def edit_setting(database: Database) -> Row:
    """Return the only row of the settings, for changing in place."""
    row: Row = database.edit(SETTING, _key(0))
    return row


def read_time(database: Database) -> float:
    """Return the device's time in POSIX seconds."""
    now: float = database[DEVICE]["clock"]["now"]
    return now


def make_id(database: Database, table: str) -> str:
    """Return a new id for a row. It depends only on the table and the number of ids made before."""
    clock = database.edit(DEVICE, "clock")
    clock["added"] += 1
    return str(uuid5(NAMESPACE_URL, f"{table} {clock['added']}"))


def append_row(database: Database, table: str, row: Row) -> None:
    """Add a row after all others."""
    last = max(database[table], default="")
    database.put(table, _key(int(last) + 1 if last else 0), row)


def find_keys(database: Database, table: str, column: str, value: Any) -> list[str]:
    """Return the keys of the rows that have this value in this column, in order."""
    return sorted(key for key, row in database[table].items() if row[column] == value)


def _key(place: int) -> str:
    return f"{place:06d}"
