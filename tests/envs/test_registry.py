"""Environments are found by name, by entry point and by path; what cannot be used says why."""

import sys
from pathlib import Path
from typing import Any

import pytest

from envs import skeleton
from envs.registry import (
    EnvironmentBroken,
    UnknownEnvironment,
    environments,
    locate,
    open_environment,
    open_from_event,
    open_place,
)

SKELETON = Path(skeleton.__file__).read_text()


def write_environment(file: Path, name: str = "library", extra: str = "") -> Path:
    """An environment of this name in a file of its own."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SKELETON.replace('name = "skeleton"', f'name = "{name}"') + extra)
    return file


def second_environment(name: str) -> str:
    return f'\n\nclass Second(Skeleton):\n    """Another one."""\n\n    name = "{name}"\n'


def install(folder: Path, name: str, reference: str, code: str) -> None:
    """A real distribution, as an installer leaves it: metadata beside a module."""
    info = folder / "lending_bots-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lending-bots\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[kintsugi.environments]\n{name} = {reference}\n")
    (info / "RECORD").write_text("")
    (folder / "lending_bots.py").write_text(code)


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on the search path, in which a distribution can be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "lending_bots", raising=False)
    return folder


def sources(paths: list[Path]) -> dict[str, str]:
    return {found.name: found.source for found in environments(paths)}


@pytest.mark.parametrize("name", ["shop", "retail", "airline", "telecom"])
def test_a_built_in_environment_is_opened_by_its_name(name: str, tmp_path: Path) -> None:
    environment = open_environment(name, benchmarks=tmp_path)
    assert environment.name == name
    assert environment.benchmarks == tmp_path


def test_a_file_is_opened_by_its_path_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = write_environment(tmp_path / "bots" / "mine.py")
    assert open_place(str(file)).name == "library"
    assert [path.name for path in file.parent.iterdir()] == ["mine.py"]


def test_a_path_may_be_relative_and_needs_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_environment(tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    assert open_place("mine.py").name == open_place("./mine.py").name == "library"


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    file = write_environment(tmp_path / "mine.py", "before")
    before = open_place(str(file))
    write_environment(file, "afters")
    assert (before.name, open_place(str(file)).name) == ("before", "afters")


def test_files_and_folders_of_the_settings_are_found_by_name(tmp_path: Path) -> None:
    single = write_environment(tmp_path / "one.py", "one")
    folder = write_environment(tmp_path / "more" / "two.py", "two").parent
    (folder / "_draft.py").write_text("this is no Python")
    (folder / "notes.txt").write_text("neither")
    found = sources([single, folder])
    assert found["one"] == str(single)
    assert found["two"] == str(folder / "two.py")
    assert open_environment("two", paths=[single, folder]).name == "two"


def test_a_file_may_define_several_environments(tmp_path: Path) -> None:
    file = write_environment(tmp_path / "both.py", "first", second_environment("second"))
    assert {"first", "second"} <= set(sources([file]))
    assert open_environment("second", paths=[file]).name == "second"
    with pytest.raises(UnknownEnvironment, match=r"several environments: first, second; .*:first"):
        open_place(str(file))
    assert open_place(f"{file}:second").name == "second"
    with pytest.raises(UnknownEnvironment, match="defines no environment 'third'"):
        open_place(f"{file}:third")


def test_what_another_process_opens_needs_no_settings(tmp_path: Path) -> None:
    file = write_environment(tmp_path / "mine.py", "mine", second_environment("other"))
    assert locate("shop", [file]) == "shop"
    for name in ("mine", "other"):
        found = locate(name, [tmp_path])
        assert found == f"{file}:{name}"
        assert open_place(found).name == name
        assert locate(found) == found
    with pytest.raises(UnknownEnvironment, match="mine"):
        locate("mine")


def test_an_imported_environment_is_not_the_files_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from envs.skeleton import Skeleton\n\n\nclass Mine(Skeleton):\n    name = 'mine'\n"
    )
    assert "skeleton" not in sources([file])
    assert open_place(str(file)).name == "mine"


def test_an_unfinished_base_class_may_stand_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from envs.environment import Environment\nfrom envs.skeleton import Skeleton\n\n\n"
        "class Base(Environment):\n    greeting = 'Welcome.'\n\n\n"
        "class Mine(Base, Skeleton):\n    name = 'mine'\n"
    )
    assert open_place(str(file)).greeting == "Welcome."


def test_an_entry_point_is_found_by_its_name(distribution: Path) -> None:
    install(distribution, "skeleton", "lending_bots:Skeleton", SKELETON)
    assert sources([])["skeleton"] == "lending-bots 1.2"
    environment = open_environment("skeleton")
    assert type(environment).__module__ == "lending_bots"
    assert next(environment.tasks()).environment == "skeleton"


@pytest.mark.parametrize(
    ("name", "reference", "code", "said"),
    [
        ("skeleton", "lending_bots:Skeleton", "import no_such_thing", "No module named"),
        ("skeleton", "lending_bots:Other", SKELETON, "has no attribute 'Other'"),
        ("skeleton", "lending_bots:TITLES", SKELETON, "is no subclass of Environment"),
        ("another", "lending_bots:Skeleton", SKELETON, "is called 'skeleton'; give both the same"),
        (
            "skeleton",
            "lending_bots:Skeleton",
            SKELETON.replace("def policy", "def police"),
            "lacks the method policy",
        ),
    ],
)
def test_an_entry_point_that_cannot_be_used_names_its_distribution(
    distribution: Path, name: str, reference: str, code: str, said: str
) -> None:
    install(distribution, name, reference, code)
    with pytest.raises(EnvironmentBroken, match=said) as raised:
        open_environment(name)
    assert f"entry point '{name}' of lending-bots 1.2" in str(raised.value)
    assert open_environment("shop").name == "shop", "it stands in nobody else's way"


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    file = write_environment(tmp_path / "mine.py")
    with pytest.raises(
        UnknownEnvironment, match=r"no environment 'libary'; did you mean library\?"
    ):
        open_environment("libary", paths=[file])
    with pytest.raises(
        UnknownEnvironment,
        match=r"only shop, retail, airline, telecom, bfcl, toolsandbox; .* \./zzz\.py",
    ):
        open_environment("zzz")


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.py", tmp_path / "gone"):
        with pytest.raises(UnknownEnvironment, match=f"{path} is no file and no folder"):
            environments([path])
    with pytest.raises(UnknownEnvironment, match="has no Python file"):
        environments([tmp_path])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: "),
        ("x = 1\ndef broken(:\n", 2, "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(4)\n", 2, "SystemExit: 4"),
        ("\n\nimport no_such_module\n", 3, "ModuleNotFoundError: No module named"),
    ],
)
def test_a_file_that_fails_to_import_is_named_with_line_and_exception(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(EnvironmentBroken) as raised:
        open_place(str(file))
    assert str(raised.value).startswith(f"{file}, line {line}: {said}")


def test_two_environments_of_one_name_name_both_sources(tmp_path: Path) -> None:
    one = write_environment(tmp_path / "one.py", "same")
    two = write_environment(tmp_path / "two.py", "same")
    with pytest.raises(EnvironmentBroken, match=f"called 'same': {one} and {two}"):
        environments([one, two])
    with pytest.raises(EnvironmentBroken, match=f"called 'shop': built-in and {one}"):
        environments([write_environment(one, "shop")])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('    name = "skeleton"\n', "", "lacks a name, as `name"),
        ("    toolset = SkeletonTools\n", "", "lacks its tools, as `toolset"),
        ("def pristine", "def primeval", "lacks the method pristine"),
        ("    capabilities = {", "    kinds = {", "lacks kinds of task, as `capabilities"),
        ('name = "skeleton"', 'name = "My Bots/1"', "is called 'My Bots/1'; use small letters"),
        ("toolset = SkeletonTools", "toolset = dict", "is no subclass of Toolset"),
        ("title: str) -> Any", "title) -> Any", "parameter title of tool find_book has no type"),
        ("title: str) -> Any", 'title: "Nothing") -> Any', "name 'Nothing' is not defined"),
    ],
)
def test_an_incomplete_class_says_what_is_missing(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    file = tmp_path / "mine.py"
    assert old in SKELETON
    file.write_text(SKELETON.replace(old, new))
    with pytest.raises(EnvironmentBroken, match="class Skeleton") as raised:
        open_place(str(file))
    assert said in str(raised.value)


def marked(folder: Path, name: str) -> tuple[Path, Path]:
    """A file that leaves a mark when it is run, and the mark."""
    mark = folder / f"{name} ran"
    return write_environment(
        folder / f"{name}.py", name, f"open({str(mark)!r}, 'w').close()\n"
    ), mark


def test_what_is_no_name_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, mark = marked(tmp_path, "mine")
    monkeypatch.chdir(tmp_path)
    for said in (
        str(file), f"{file}:mine", str(tmp_path), "mine.py", "./mine.py", "..", "", "~/mine.py",
        "file:mine", "Shop", "shop\n", "a" * 10_000, f"file://{file}", ".\\mine.py",
    ):  # fmt: skip
        with pytest.raises(UnknownEnvironment, match="is no environment's name") as refused:
            open_environment(said)
        assert len(str(refused.value)) < 400
    assert not mark.exists()


@pytest.mark.parametrize("name", ["_tool.py", "notes.txt"])
def test_an_event_opens_only_what_is_looked_at_in_a_folder(tmp_path: Path, name: str) -> None:
    file, mark = marked(tmp_path / "ours", "mine")
    hidden = file.rename(file.parent / name)
    for place in (f"{hidden}", f"{hidden}:mine"):
        with pytest.raises(UnknownEnvironment, match=r"environments\.paths"):
            open_from_event(place, paths=[hidden.parent])
    assert not mark.exists()


def test_an_event_opens_files_of_the_settings_and_no_other(tmp_path: Path) -> None:
    (file, _), (other, mark) = (
        marked(tmp_path / "ours", "mine"),
        marked(tmp_path / "theirs", "evil"),
    )
    link = tmp_path / "ours" / "link.py"
    link.symlink_to(other)
    own: dict[str, Any] = {"paths": [file.parent / "mine.py"]}
    assert open_from_event("shop", **own).name == open_from_event("shop").name == "shop"
    for place in (str(file), f"{file}:mine", f"{file.parent}/../ours/mine.py:mine", "mine"):
        assert open_from_event(place, **own).name == "mine"
    assert open_from_event(f"{file}:mine", places=[str(file)]).name == "mine"
    for place in (str(other), f"{other}:evil", str(other.parent), str(link), "../theirs/evil.py"):
        known_ones: tuple[dict[str, Any], ...] = (
            own, {"paths": [file.parent]}, {"places": ["shop", f"{file}:mine"]},
        )  # fmt: skip
        for known in known_ones:
            with pytest.raises(UnknownEnvironment, match=r"environments\.paths"):
                open_from_event(place, **known)
    assert not mark.exists()
