"""What a recorded path of an adapter means in a home that may have been moved."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.adapter_paths import AdapterPaths, locate_for_job
from daemon.config.settings import Serving, Settings

HOME = Path("/var/lib/kintsugi")
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}-[0-9a-f]{8}", fullmatch=True)
FOLDERS = st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, max_size=3).map(
    lambda parts: Path("/", *parts)
)


@given(old=FOLDERS, new=FOLDERS, name=NAMES)
def test_a_path_of_a_home_means_the_same_adapter_wherever_the_home_is(
    old: Path, new: Path, name: str
) -> None:
    before, after = (AdapterPaths(home, home / "adapters") for home in (old, new))
    recorded = before.record(before.store / name)
    assert recorded == f"adapters/{name}"
    assert after.locate(recorded) == new / "adapters" / name
    # As versions before this one recorded it.
    assert after.locate(str(before.store / name)) == new / "adapters" / name


@given(home=FOLDERS, store=FOLDERS, name=NAMES)
def test_a_folder_outside_of_a_home_is_recorded_as_it_is(
    home: Path, store: Path, name: str
) -> None:
    paths = AdapterPaths(home, store)
    folder = store / name
    assert paths.locate(paths.record(folder)) == folder
    assert Path(paths.record(folder)).is_absolute() is not folder.is_relative_to(home)


@pytest.mark.parametrize(
    ("recorded", "folder"),
    [
        ("adapters/a-1", HOME / "adapters/a-1"),
        ("/var/lib/kintsugi/other/a-1", HOME / "other/a-1"),
        ("/old/home/adapters/a-1", "/mnt/models/a-1"),
        ("/old/models/a-1", "/mnt/models/a-1"),
        ("/home/ada/trained/a-1", "/home/ada/trained/a-1"),
        ("adapters/../../../../etc", "/etc"),
        ("adapters/..", HOME),
    ],
)
def test_where_a_path_leads_with_a_folder_of_adapters_elsewhere(
    recorded: str, folder: str | Path
) -> None:
    settings = Settings(home=HOME, serving=Serving(adapters=Path("/mnt/models")))
    assert settings.adapter_paths.locate(recorded) == Path(folder)


def test_a_job_is_told_and_one_that_is_started_by_hand_reads_paths_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert locate_for_job("/old/adapters/a-1") == Path("/old/adapters/a-1")
    paths = AdapterPaths(Path("/a home: of:colons"), Path("/a home: of:colons/adapters"))
    for name, value in paths.variables.items():
        monkeypatch.setenv(name, value)
    assert locate_for_job("adapters/a-1") == paths.store / "a-1"
    assert locate_for_job("/old/adapters/a-1") == paths.store / "a-1"
