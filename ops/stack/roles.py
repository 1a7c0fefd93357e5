"""The roles of a place, each a process of its own.

with Children(place, ROLES): ...
"""

from typing import Final

from ops.demo.children import CROWD, Programs

ROLES: Final[Programs] = {
    "consume": ("daemon", "consume"),
    "ship": ("daemon", "ship"),
    "gateway": ("daemon", "gateway"),
    "schedule": ("daemon", "schedule"),
    "work": ("daemon", "work"),
    "crowd": CROWD,
}
"""The last ends first: the gateway before the shipper that copies what it recorded."""
