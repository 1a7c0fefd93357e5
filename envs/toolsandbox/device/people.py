"""Tools for contacts and messages."""

from typing import Any

from envs.tools import ToolError, read, write
from envs.toolsandbox.device.arguments import OMITTED, Timestamp, check_phone_number
from envs.toolsandbox.device.search import TEXTS, Criterion, find_rows
from envs.toolsandbox.device.settings import SettingTools
from envs.toolsandbox.device.state import (
    CONTACT,
    MESSAGING,
    append_row,
    find_keys,
    make_id,
    read_rows,
    read_time,
)


class PeopleTools(SettingTools):
    """Tools for contacts and text messages. Sending a message needs the cellular service."""

    @write
    def add_contact(
        self, name: str, phone_number: str, relationship: str | None = None, is_self: bool = False
    ) -> str:
        """Add a person and return the new person_id; equal entries are allowed."""
        check_phone_number(phone_number)
        if is_self and find_keys(self.database, CONTACT, "is_self", True):
            raise ToolError("the user has an entry already; there can be no second one")
        person_id = make_id(self.database, CONTACT)
        row = {
            "person_id": person_id,
            "name": name,
            "phone_number": phone_number,
            "relationship": relationship,
            "is_self": is_self,
        }
        append_row(self.database, CONTACT, row)
        return person_id

    @write
    def modify_contact(
        self,
        person_id: str,
        name: str = OMITTED,
        phone_number: str = OMITTED,
        relationship: str = OMITTED,
        is_self: bool = OMITTED,
    ) -> None:
        """Change what is given of a person's entry."""
        check_phone_number(phone_number)
        own = find_keys(self.database, CONTACT, "is_self", True)
        if is_self and own and self.database[CONTACT][own[0]]["person_id"] != person_id:
            raise ToolError("the user has an entry already; there can be no second one")
        given = {
            "name": name,
            "phone_number": phone_number,
            "relationship": relationship,
            "is_self": is_self,
        }
        self.replace_row(CONTACT, "person_id", person_id, given)

    @write
    def remove_contact(self, person_id: str) -> None:
        """Remove a person."""
        self.remove_rows(CONTACT, "person_id", person_id)

    @read
    def search_contacts(
        self,
        person_id: str = OMITTED,
        name: str = OMITTED,
        phone_number: str = OMITTED,
        relationship: str = OMITTED,
        is_self: bool = OMITTED,
    ) -> list[dict[str, Any]]:
        """Find people who fit everything that is given: id, number and is_self exactly, name and
        relationship nearly."""
        check_phone_number(phone_number)
        criteria = (
            Criterion("person_id", person_id),
            Criterion("name", name, "alike"),
            Criterion("phone_number", phone_number),
            Criterion("relationship", relationship, "alike"),
            Criterion("is_self", is_self),
        )
        return find_rows(read_rows(self.database, CONTACT), criteria)

    @read
    def search_messages(
        self,
        message_id: str = OMITTED,
        sender_person_id: str = OMITTED,
        sender_phone_number: str = OMITTED,
        recipient_person_id: str = OMITTED,
        recipient_phone_number: str = OMITTED,
        content: str = OMITTED,
        creation_timestamp_lowerbound: Timestamp = OMITTED,
        creation_timestamp_upperbound: Timestamp = OMITTED,
    ) -> list[dict[str, Any]]:
        """Find messages that fit everything that is given: content nearly, times as bounds, all
        else exactly."""
        check_phone_number(sender_phone_number)
        check_phone_number(recipient_phone_number)
        criteria = (
            Criterion("message_id", message_id),
            Criterion("sender_person_id", sender_person_id),
            Criterion("sender_phone_number", sender_phone_number),
            Criterion("recipient_person_id", recipient_person_id),
            Criterion("recipient_phone_number", recipient_phone_number),
            Criterion("content", content, "alike", TEXTS),
            Criterion("creation_timestamp", creation_timestamp_lowerbound, "from"),
            Criterion("creation_timestamp", creation_timestamp_upperbound, "to"),
        )
        return find_rows(read_rows(self.database, MESSAGING), criteria)

    @write
    def send_message_with_phone_number(self, phone_number: str, content: str) -> str:
        """Send a text message and return its message_id; needs the cellular service."""
        check_phone_number(phone_number)
        self.require("cellular")
        own = [row for row in read_rows(self.database, CONTACT) if row["is_self"]]
        if len(own) != 1:
            raise ToolError(f"the contacts have {len(own)} entries of the user; one is needed")
        known = find_keys(self.database, CONTACT, "phone_number", phone_number)
        recipient = self.database[CONTACT][known[0]]["person_id"] if known else None
        message_id = make_id(self.database, MESSAGING)
        row = {
            "message_id": message_id,
            "sender_person_id": own[0]["person_id"],
            "sender_phone_number": own[0]["phone_number"],
            "recipient_person_id": recipient,
            "recipient_phone_number": phone_number,
            "content": content,
            "creation_timestamp": read_time(self.database),
        }
        append_row(self.database, MESSAGING, row)
        return message_id

    def replace_row(
        self, table: str, column: str, row_id: str, given: dict[str, Any], **also: Any
    ) -> None:
        """Change the values in `given` that are not None, and `also`, in the row with this id; it
        becomes the last row. Raise ToolError if none is given or not exactly one row has the id."""
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            raise ToolError(f"nothing to change is given; give one of {', '.join(given)}")
        keys = find_keys(self.database, table, column, row_id)
        if len(keys) != 1:
            raise ToolError(f"{len(keys)} entries have the {column} {row_id[:60]!r}; one must")
        row = {**self.database[table][keys[0]], **changes, **also}
        append_row(self.database, table, row)
        self.database.remove(table, keys[0])

    def remove_rows(self, table: str, column: str, row_id: str) -> None:
        """Remove every row with this id. Raise ToolError if there is none."""
        keys = find_keys(self.database, table, column, row_id)
        if not keys:
            raise ToolError(f"no entry has the {column} {row_id[:60]!r}")
        for key in keys:
            self.database.remove(table, key)
