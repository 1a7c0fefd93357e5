"""The shape of the house: what is installed, who imports whom, and what a fold may see."""

import ast
import builtins
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("events", "envs", "producers", "consumers", "migrations", "daemon")
MODULES = sorted(
    path
    for package in (*OURS, "ops", "tests")
    for path in (ROOT / package).rglob("*.py")
    if "__pycache__" not in path.parts
)
GPU_STACK = ("torch", "transformers", "peft", "vllm")


def modules_of(package: str) -> list[str]:
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in MODULES
        if path.relative_to(ROOT).parts[0] == package
    ]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_other_distribution_owns_our_packages() -> None:
    owners = packages_distributions()
    foreign = {name: set(owners.get(name, [])) - {"kintsugi"} for name in (*OURS, "ops")}
    assert not any(foreign.values()), (
        f"{foreign}: these packages overwrite ours; install kintsugi in an environment of its own"
    )


def test_the_light_install_needs_no_gpu_stack() -> None:
    # Alembic's env.py and the migrations run only inside Alembic; __main__ modules run at import.
    learner = (
        "daemon.solver",
        "daemon.engine",
        "daemon.methods.lessons.reference",
        "daemon.methods.skills.engine_router",
        "daemon.methods.skills.routing",
        "daemon.methods.synthesis.user_training",
    )
    skipped = ("migrations.env", *learner)
    names = [
        name
        for package in OURS
        for name in modules_of(package)
        if not name.startswith(skipped) and not name.startswith("migrations.versions.")
        if not name.endswith("__main__")
    ]
    program = (
        "import importlib, sys, warnings\n"
        # kafka-python reads its schemas with a deprecated function.
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        f"for name in {GPU_STACK!r}: sys.modules[name] = None\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


ROOMS = "The rooms of the daemon need only those below them"
METHODS = "Methods do not know each other"


def test_imports_run_one_way_and_only_the_learner_may_import_torch() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "planted", "contract"),
    [
        ("daemon/core/health.py", "from daemon.serving import fleet", ROOMS),
        ("daemon/evaluation/gate/decision.py", "from daemon.cycle import leader", ROOMS),
        ("daemon/solver/base.py", "def late() -> None:\n    from daemon.jobs import local", ROOMS),
        ("daemon/cycle/cost.py", "from daemon.methods.skills import choice", ROOMS),
        ("daemon/methods/lessons/writer.py", "from daemon.methods.skills import choice", METHODS),
    ],
)
def test_an_import_that_a_contract_forbids_breaks_it(
    tmp_path: Path, module: str, planted: str, contract: str
) -> None:
    for package in OURS:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / module).open("a") as file:
        file.write(f"\n\n{planted}\n")
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    name = module.removesuffix(".py").replace("/", ".")
    assert f"{contract} BROKEN" in done.stdout
    assert f"- {name} -> " in done.stdout


SQLALCHEMY_IN_DAEMON = {"Connection", "Engine", "Row", "engine.make_url"}
"""What the daemon may import of SQLAlchemy beside its errors: nothing that builds a query."""


def sql_in(tree: ast.Module) -> Iterator[str]:
    """Where a module builds a query or talks to a driver, as `line: what`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (
                f"{node.lineno}: {name}" for name in names if name.split(".")[0] == "sqlalchemy"
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sqlalchemy":
            inside = (node.module or "").removeprefix("sqlalchemy").removeprefix(".")
            names = [f"{inside}.{alias.name}".removeprefix(".") for alias in node.names]
            yield from (
                f"{node.lineno}: {name}"
                for name in names
                if name not in SQLALCHEMY_IN_DAEMON and not name.startswith("exc.")
            )
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("table", "execute", "scalars", "exec_driver_sql")
        ):
            yield f"{node.lineno}: .{node.func.attr}()"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("from sqlalchemy import select", "1: select"),
        ("def late() -> None:\n    from sqlalchemy import text", "2: text"),
        ("from sqlalchemy.sql import ColumnElement", "1: sql.ColumnElement"),
        ("import sqlalchemy as sa", "1: sqlalchemy"),
        ("columns = Rollout.table().c", "1: .table()"),
        ("connection.execute(query)", "1: .execute()"),
    ],
)
def test_a_query_is_seen_wherever_it_is_built(code: str, what: str) -> None:
    assert list(sql_in(ast.parse(code))) == [what]


def test_the_daemon_leaves_queries_to_the_consumers() -> None:
    modules = [path for path in MODULES if ROOT / "daemon" in path.parents]
    assert modules
    queries = [
        f"{name_of(path)}:{query}"
        for path in modules
        for query in sql_in(ast.parse(path.read_text()))
    ]
    assert not queries, f"these queries belong into consumers/reads: {', '.join(queries)}"


@pytest.mark.parametrize("package", OURS)
def test_the_init_of_a_package_is_a_docstring_and_nothing_else(package: str) -> None:
    # Another distribution's __init__ may replace ours (python-daemon has a `daemon`): then nothing
    # may be lost.
    for path in (ROOT / package).rglob("__init__.py"):
        body = ast.parse(path.read_text()).body
        assert len(body) == 1, f"{name_of(path)} holds code"
        assert isinstance(body[0], ast.Expr), f"{name_of(path)} holds code"


def test_every_module_says_what_it_is() -> None:
    assert MODULES
    silent = [
        name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent, f"these modules have no docstring: {', '.join(silent)}"


FORBIDDEN = {
    "asyncio", "datetime", "glob", "http", "httpx2", "io", "kafka", "locale", "os", "pathlib",
    "platform", "random", "secrets", "shutil", "signal", "socket", "ssl", "subprocess", "sys",
    "tempfile", "threading", "time", "urllib", "uuid", "uuid_utils",
}  # fmt: skip
"""Clock, chance, files, environment, network: what would make a second fold differ."""

IMPURE_NAMES = {"utc_now", "new_id", "now_ms", "open", "input", "id", "hash"}
"""Of our own modules and the builtins. `hash` of text differs from process to process."""

FOLD_ENTRY = ("consumers.folds.rollouts", "consumers.preparation")


def test_the_names_that_no_fold_may_call_exist() -> None:
    """A function of ours that gets another name must get it here as well."""
    ours = IMPURE_NAMES - set(dir(builtins))
    sources = [(ROOT / "events" / f"{name}.py").read_text() for name in ("envelope", "log")]
    assert {
        name for name in ours if not any(f"def {name}(" in source for source in sources)
    } == set()


def imports(path: Path) -> Iterator[str]:
    """Modules that a module imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def fold_modules() -> list[Path]:
    """Every module of consumers and envs that the folds reach, however deep."""
    found: dict[str, Path] = {}
    waiting = list(FOLD_ENTRY)
    while waiting:
        name = waiting.pop()
        path = ROOT / f"{name.replace('.', '/')}.py"
        if name in found or not path.is_file():
            continue
        found[name] = path
        waiting += [
            other for other in imports(path) if other.split(".")[0] in ("consumers", "envs")
        ]
    return sorted(found.values())


def test_the_folds_reach_the_modules_that_label_and_count() -> None:
    names = {name_of(path) for path in fold_modules()}
    diagnosis = {"rounds", "detectors", "priority", "matching"}
    expected = {"batch", "folds/rollouts", *(f"diagnosis/{name}" for name in diagnosis)}
    assert {f"consumers/{name}.py" for name in expected} <= names


@pytest.mark.parametrize("path", fold_modules(), ids=name_of)
def test_a_fold_sees_no_clock_no_chance_and_nothing_outside_its_event(path: Path) -> None:
    foreign = {name.split(".")[0] for name in imports(path)} & FORBIDDEN
    assert not foreign, f"{name_of(path)} imports {', '.join(sorted(foreign))}"
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    impure = called & IMPURE_NAMES
    assert not impure, f"{name_of(path)} calls {', '.join(sorted(impure))}"


def test_the_wheel_holds_the_packages_and_what_migrations_need(tmp_path: Path) -> None:
    # hatchling is in the dev group, so this needs no network, which an isolated build would.
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("kintsugi-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for package in OURS:
        assert f"{package}/__init__.py" in names
    assert "migrations/script.py.mako" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "ops/"))]


def test_the_pins_name_no_index() -> None:
    # Whoever installs decides where from: a mirror, a proxy, a folder.
    pins = (ROOT / "constraints.txt").read_text()
    assert "://" not in pins
    assert "--" not in pins
    assert not (ROOT / "uv.lock").exists(), "uv.lock records the index it was made with"
