"""Figures that are looked up when somebody asks, and what may go wrong then."""

from pathlib import Path

from daemon.core.app import App
from daemon.metrics.families import Family, Sheet
from daemon.metrics.observations import BackgroundCollector
from tests.daemon.metrics.scene import labelled, series, settings_of

FOUND = Family("kintsugi_found", "What was found.")
READABLE = labelled("kintsugi_found_readable")


def test_a_file_that_vanished_is_told_and_the_next_look_is_another_one(
    tmp_path: Path, clean: Path
) -> None:
    file = tmp_path / "figure"

    def read(app: App, sheet: Sheet) -> None:
        sheet.say(FOUND.name, float(file.read_text()))

    settings = settings_of(tmp_path / "home")
    with BackgroundCollector("found", (FOUND,), settings, read, kept_seconds=0.0) as observed:
        assert series(observed.collect())[READABLE] == 0
        file.write_text("7")
        found = series(observed.collect())
        assert (found[READABLE], found[labelled(FOUND.name)]) == (1, 7)
        file.unlink()
        found = series(observed.collect())
        assert (found[READABLE], found[labelled(FOUND.name)]) == (0, 7), "with its age"


def test_what_was_read_just_now_is_not_read_again(tmp_path: Path, clean: Path) -> None:
    looks = []

    def read(app: App, sheet: Sheet) -> None:
        looks.append(1)

    settings = settings_of(tmp_path / "home")
    with BackgroundCollector("found", (FOUND,), settings, read, kept_seconds=3600.0) as observed:
        for _ in range(3):
            assert series(observed.collect())[READABLE] == 1
    assert len(looks) == 1
