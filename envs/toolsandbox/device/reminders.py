"""Tools for reminders."""

from typing import Any

from envs.tools import read, write
from envs.toolsandbox.device.arguments import OMITTED, Latitude, Longitude, Timestamp
from envs.toolsandbox.device.people import PeopleTools
from envs.toolsandbox.device.search import TEXTS, Criterion, find_rows
from envs.toolsandbox.device.state import REMINDER, append_row, make_id, read_rows, read_time


class ReminderTools(PeopleTools):
    """Tools for the user's reminders, which have a time and may have a place."""

    @write
    def add_reminder(
        self,
        content: str,
        reminder_timestamp: Timestamp,
        latitude: Latitude | None = None,
        longitude: Longitude | None = None,
    ) -> str:
        """Add a reminder and return its reminder_id; reminder_timestamp is POSIX seconds."""
        reminder_id = make_id(self.database, REMINDER)
        row = {
            "reminder_id": reminder_id,
            "content": content,
            "creation_timestamp": read_time(self.database),
            "reminder_timestamp": reminder_timestamp,
            "latitude": latitude,
            "longitude": longitude,
        }
        append_row(self.database, REMINDER, row)
        return reminder_id

    @write
    def modify_reminder(
        self,
        reminder_id: str,
        content: str = OMITTED,
        reminder_timestamp: Timestamp = OMITTED,
        latitude: Latitude = OMITTED,
        longitude: Longitude = OMITTED,
    ) -> None:
        """Change what is given of a reminder; it counts as created now."""
        given: dict[str, Any] = {
            "content": content,
            "reminder_timestamp": reminder_timestamp,
            "latitude": latitude,
            "longitude": longitude,
        }
        now = read_time(self.database)
        self.replace_row(REMINDER, "reminder_id", reminder_id, given, creation_timestamp=now)

    @write
    def remove_reminder(self, reminder_id: str) -> None:
        """Remove a reminder."""
        self.remove_rows(REMINDER, "reminder_id", reminder_id)

    @read
    def search_reminder(
        self,
        reminder_id: str = OMITTED,
        content: str = OMITTED,
        creation_timestamp_lowerbound: Timestamp = OMITTED,
        creation_timestamp_upperbound: Timestamp = OMITTED,
        reminder_timestamp_lowerbound: Timestamp = OMITTED,
        reminder_timestamp_upperbound: Timestamp = OMITTED,
        latitude: Latitude = OMITTED,
        longitude: Longitude = OMITTED,
    ) -> list[dict[str, Any]]:
        """Find reminders that fit everything that is given: content nearly, times as bounds, id and
        place exactly."""
        criteria = (
            Criterion("reminder_id", reminder_id),
            Criterion("content", content, "alike", TEXTS),
            Criterion("creation_timestamp", creation_timestamp_lowerbound, "from"),
            Criterion("creation_timestamp", creation_timestamp_upperbound, "to"),
            Criterion("reminder_timestamp", reminder_timestamp_lowerbound, "from"),
            Criterion("reminder_timestamp", reminder_timestamp_upperbound, "to"),
            Criterion("latitude", latitude),
            Criterion("longitude", longitude),
        )
        return find_rows(read_rows(self.database, REMINDER), criteria)
