"""Our own databases of airline and retail: the original's shapes, none of its records."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import envs.airline.database
import envs.retail.database
from envs.airline.environment import Airline
from envs.database import Database
from envs.retail.environment import Retail
from envs.tau2.environment import Tau2Environment

both = pytest.mark.parametrize("module", [envs.airline.database, envs.retail.database])
both_environments = pytest.mark.parametrize(
    ("environment", "build"),
    [
        (Airline, envs.airline.database.build_database),
        (Retail, envs.retail.database.build_database),
    ],
)
THEIR_IDS = (
    r"HAT\d+|[a-z]+_[a-z]+_\d{4}|[A-Z0-9]{6}|#W\d{7}|\d{10}"
    r"|(gift_card|credit_card|certificate|paypal)_\d{7}"
)

Build = Callable[[int], Database]


def ids(database: Database) -> Iterator[str]:
    """Every id: the keys of records, of payment methods, and of a product's items."""
    for name in database.names:
        for key, record in database[name].items():
            yield key
            yield from record.get("payment_methods", {})
            yield from record.get("variants", {})


def tables(database: Database) -> dict[str, dict[str, Any]]:
    """The tables as a file holds them."""
    return {name: dict(database[name]) for name in database.names}


@both
def test_a_database_is_a_function_of_its_seed(module: ModuleType) -> None:
    build = module.build_database
    assert build(3).digest() == Database(tables(build.__wrapped__(3))).digest()
    assert build(3).digest() != build(4).digest()


@both
def test_a_generated_database_is_canonical(module: ModuleType) -> None:
    database = module.build_database(0)
    assert Database(module.canonical(tables(database))).digest() == database.digest()


@both
def test_ids_have_another_shape_than_the_originals(module: ModuleType) -> None:
    assert not [one for one in ids(module.build_database(0)) if re.fullmatch(THEIR_IDS, one)]


@pytest.mark.benchmarks
@both_environments
def test_no_generated_record_is_one_of_the_originals(
    benchmarks: Path, environment: type[Tau2Environment], build: Build
) -> None:
    real = environment(benchmarks).benchmark.database
    emails = {user["email"] for user in real["users"].values()}
    for seed in range(5):
        database = build(seed)
        assert set(ids(database)).isdisjoint(ids(real))
        assert emails.isdisjoint(one["email"] for one in database["users"].values())
        if "products" in database.names:
            names = {product["name"] for product in real["products"].values()}
            assert names.isdisjoint(one["name"] for one in database["products"].values())


@pytest.mark.benchmarks
@both_environments
def test_records_have_the_originals_fields(
    benchmarks: Path, environment: type[Tau2Environment], build: Build
) -> None:
    real, own = environment(benchmarks).benchmark.database, build(0)
    for name in real.names:
        fields = {tuple(record) for record in real[name].values()}
        assert {tuple(record) for record in own[name].values()} == fields


@pytest.mark.benchmarks
@pytest.mark.parametrize("environment", [Airline, Retail])
def test_no_generated_request_names_a_real_record(
    benchmarks: Path, environment: type[Tau2Environment]
) -> None:
    made = environment(benchmarks)
    real = set(ids(made.benchmark.database))
    for capability in made.capabilities:
        task = made.generate(capability, 0)
        assert real.isdisjoint(re.findall(r"[#\w]+", task.model_dump_json()))
