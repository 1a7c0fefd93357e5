"""A job over tasks that are made of a person's session: it opens them, and writes nothing of them
in the open."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.solver import journal
from daemon.solver.job import Job, run
from daemon.solver.journal import DEFINITIONS, write_definitions
from daemon.solver.sampling.seals import KEYS, BadSeal, Seals, take_keys, write_keys
from daemon.solver.spec import digest
from envs.sealed_body import open_body, salt_task, seal_body, write_sealed
from envs.task import BadDefinition, TaskDefinition, write_body
from events.jobs import JobSpec
from events.privacy.sealing import Key, new_secret
from tests.daemon.gateway.test_erasing import showing
from tests.daemon.solver import letters
from tests.daemon.solver.forked import run_forked
from tests.daemon.solver.test_content_job import SAMPLER, bodies, tasks

ROSA: Final = Key("rosa-key", "rosa", new_secret())
OTHER: Final = Key("other-key", "other", new_secret())
SEALED: Final = tuple(salt_task(task, ROSA) for task in tasks(200, 2))
OPEN: Final = tuple(tasks(0, 6))
PERSONA: Final = "You are number 20"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


def spec(base: Path, **changes: Any) -> JobSpec:
    pools = [{"name": "target", "tasks": [task.id for task in (*SEALED, *OPEN)]}]
    return JobSpec.model_validate(
        letters.spec(base, **{"pools": pools, "sampler": SAMPLER, **changes})
    )


def stand_for(task: TaskDefinition, key: Key = ROSA) -> str:
    return write_sealed(task.environment, seal_body(task, key))


def lay(folder: Path) -> Path:
    """The directory of a job as the role `work` makes it."""
    folder.mkdir()
    texts = bodies(*OPEN) | {task.id: stand_for(task) for task in SEALED}
    (folder / DEFINITIONS).write_bytes(write_definitions(texts))
    return folder


def stored(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines()[1:]
    return [rollout for line in lines for rollout in json.loads(line)]


def test_a_body_is_opened_by_its_key_alone() -> None:
    (task, another) = SEALED
    text = stand_for(task)
    opened = open_body(task.id, text, {ROSA.id: ROSA}.get)
    assert opened == write_body(task.dump_body())
    assert open_body(task.id, text, lambda _: None) is None
    assert open_body(task.id, opened, lambda _: None) == opened, "one that is not sealed"
    wrong = Key(ROSA.id, "rosa", new_secret())
    for name, find in ((task.id, {ROSA.id: wrong}.get), (another.id, {ROSA.id: ROSA}.get)):
        with pytest.raises(BadDefinition, match="cannot be opened"):
            open_body(name, text, find)
    changed = task.model_copy(update={"capability": "other"})
    with pytest.raises(BadDefinition, match="is no body of it") as caught:
        open_body(task.id, stand_for(changed), {ROSA.id: ROSA}.get)
    assert "number" not in str(caught.value)


def test_the_same_task_of_another_person_has_another_id() -> None:
    (task, _) = SEALED
    assert salt_task(task, ROSA) == task
    assert salt_task(task, OTHER).id != task.id


def test_keys_are_taken_out_of_the_variables() -> None:
    variables = {"PATH": "/bin", **write_keys([ROSA])}
    keys = take_keys(variables)
    assert {name: key.secret for name, key in keys.items()} == {ROSA.id: ROSA.secret}
    assert "rosa" not in {key.person for key in keys.values()}
    assert variables == {"PATH": "/bin"}
    assert (write_keys([]), take_keys(variables)) == ({}, {})
    for text in ("[]", "{", '{"a": 1}', '{"a": "?"}'):
        with pytest.raises(BadSeal, match=KEYS):
            take_keys({KEYS: text})


def test_a_job_practises_a_sealed_task_and_writes_nothing_of_it(base: Path, tmp_path: Path) -> None:
    job = spec(base)
    keys = {ROSA.id: ROSA}
    out = lay(tmp_path / "sealed")
    whole = run(job, out, keys=keys)
    assert whole.outcome == "trained", whole.reason
    played = stored(out)
    sealed = {task.id for task in SEALED}
    assert sealed & {rollout["task"] for rollout in played}
    for rollout in played:
        assert ("sealed" in rollout, not rollout["turns"]) == (rollout["task"] in sealed,) * 2
    assert showing(out, f"{PERSONA}0", f"{PERSONA}1") == []
    assert whole.rollouts == len(played)

    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / DEFINITIONS).write_bytes(write_definitions(bodies(*OPEN, *SEALED)))
    assert run(job, plain).sha256 == whole.sha256, "the same as if nothing were sealed"

    begun = lay(tmp_path / "begun")
    with Job(job, begun, keys=keys) as first:
        next(iter(first))
    assert run(job, begun, keys=keys).sha256 == whole.sha256, "it goes on from the journal"


def test_a_job_whose_key_is_gone_begins_anew_without_the_task(base: Path, tmp_path: Path) -> None:
    job = spec(base)
    out = lay(tmp_path / "out")
    with Job(job, out, keys={ROSA.id: ROSA}) as first:
        while not {task.id for task in SEALED} & {rollout["task"] for rollout in stored(out)}:
            next(iter(first))
    outcome = run(job, out)
    assert outcome.outcome == "trained", outcome.reason
    assert {rollout["task"] for rollout in stored(out)} <= {task.id for task in OPEN}
    assert run(job, out) == outcome
    batches, _ = journal.read(out / "rollouts.jsonl", digest(job))
    assert sum(map(len, batches)) == outcome.rollouts


def test_a_rollout_that_was_moved_or_changed_is_refused(base: Path, tmp_path: Path) -> None:
    job, keys = spec(base), {ROSA.id: ROSA}
    out = lay(tmp_path / "out")
    assert run(job, out, keys=keys).outcome == "trained"
    batches, _ = journal.read(out / "rollouts.jsonl", digest(job))
    sealed = next(rollout for batch in batches for rollout in batch if rollout.sealed)
    seals = Seals({task.id: stand_for(task) for task in SEALED}, keys)
    (opened,) = seals.open([sealed])
    assert opened.turns
    assert opened.sealed is None
    for changed in (
        replace(sealed, rollout="another"),
        replace(sealed, sealed="AAAA"),
        replace(sealed, task=OPEN[0].id),
    ):
        with pytest.raises(BadSeal):
            seals.open([changed])


@pytest.mark.processes
def test_a_job_of_its_own_process_takes_the_keys_from_memory(base: Path, tmp_path: Path) -> None:
    job = spec(base, sampler={**SAMPLER, "rollouts": 32})
    out = lay(tmp_path / "out")
    (tmp_path / "job.json").write_text(job.model_dump_json())
    command = ["job.json", "--out", str(out)]
    done = run_forked(command, folder=tmp_path, variables=write_keys([ROSA]))
    assert done.code == 0, done.complaint
    assert any("sealed" in rollout for rollout in stored(out))
    assert KEYS not in os.environ
