"""What a fleet keeps of adapters that come and go."""

import gc
import weakref
from pathlib import Path

from daemon.adapters.adoption import FINGERPRINT
from daemon.adapters.fingerprint import Expectation, Fingerprint
from daemon.serving.fleet import Fleet
from events.lifecycle import State
from tests.daemon.serving.test_desired_state import adapter


def test_of_an_adapter_whose_files_are_gone_nothing_is_kept(tmp_path: Path) -> None:
    """There is one more with every cycle, for as long as the role `work` lives."""
    said = Fingerprint(answers=((((1, -0.5),),),))
    written = Expectation(prompts=((9,),), dtype="float32", base=said, adapter=said)
    (tmp_path / FINGERPRINT).write_text(written.model_dump_json())
    fleet = Fleet([], tmp_path / "calibrations.json")
    candidate, path = adapter("new", State.STAGED), str(tmp_path)
    known = weakref.ref(fleet.read_expectation(adapter("old", State.UNLOADED, path=path)))
    assert fleet.rivals(candidate, [adapter("old", State.UNLOADED, path=path)]) == {"old": written}
    gc.collect()
    assert known() is not None
    assert fleet.rivals(candidate, []) == {}, "a table of routes names none without files"
    gc.collect()
    assert known() is None
