"""docs/serving.md says of states what the code says."""

import re
from pathlib import Path

from events.lifecycle import NEXT, State

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()


def test_the_table_of_states_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert [state for state, _ in rows] == list(State)
    for state, followers in rows:
        named = re.findall(r"`(\w+)`", followers)
        assert named == [one for one in State if one in NEXT[State(state)]], state
