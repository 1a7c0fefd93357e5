"""What a rejected candidate learnt may be where the next job begins."""

from dataclasses import replace
from typing import Any

import pytest

from consumers import database
from consumers.reads import learning, succession
from consumers.tables import create
from daemon.cycle.parent import MOST_TRIES, describe_parent, find_rejected_parent, is_harmless
from events.envelope import derive_id
from events.gate import Check, GateReport, TargetReport
from events.serving import AdapterProduced, GateDecided
from tests.consumers.cycling import Leading, cycle_id, diagnosed, over, requested, started
from tests.consumers.deciding import evaluated, moved, staged
