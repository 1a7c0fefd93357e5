"""Runs open jobs and brings their adapters into the home (role `work`).

`advance` reads the open jobs from the tables and each job's state from the runner. It starts or
stops an attempt, or records the job's end. Guarantee: `JobEnded` and a trained job's
`AdapterProduced` are appended together, once, because their ids follow from the job. The adapter's
files are in the home before, and the job's rollouts are recorded before (recording.py). A task
whose body is missing is rejected, and the job goes on with its other tasks (task_bodies.py). When a
person is erased, a job with that person's key is stopped, and its next attempt begins anew without
the person's tasks. While the model that plays the users is away, no attempt begins or is counted
(user_endpoints.py).
"""

import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumers.folds.erasures import read_erasure_keys
from consumers.reads import learning, serving
from consumers.reads.learning import JobRow
from daemon.adapters.adoption import BadName, HomeAdapter, NoFingerprint, adopt
from daemon.adapters.compatibility import BadBase
from daemon.adapters.directory import AdapterWriteError, BadAdapter
from daemon.core.decision_log import DecisionRefusal, Decisions
from daemon.core.isolation import Breaks
from daemon.core.span_contexts import Contexts
from daemon.jobs.own_successes import NotShown, read_file
from daemon.jobs.recording import record_rollouts, record_rounds
from daemon.jobs.runner import (
    LEARNT,
    OUT,
    Absent,
    Active,
    Again,
    Exit,
    Job,
    JobRunner,
    JobStartError,
    Over,
    Result,
    RunnerUnavailable,
    verdict,
)
from daemon.jobs.task_bodies import collect_bodies, collect_keys, reject_missing
from daemon.jobs.user_endpoints import wait_for_users
from daemon.solver.journal import (
    DEFINITIONS,
    SUCCESSES,
    BadJournal,
    parse_definitions,
    read_definitions,
    write_definitions,
)
from daemon.solver.kind import ShownRollouts
from daemon.solver.kinds import KINDS, UnknownKind, find_kind
from daemon.solver.rounds.record import ROUNDS
from daemon.solver.spec import NothingPlayable, drop_tasks, list_tasks
from envs.environment import UnknownTask
from envs.registry import EnvironmentBroken, UnknownEnvironment, check_place
from events.learning import Decision, JobEnded, JobOutcome
from events.privacy.sealing import Key
from events.rollouts import clip_reason
from events.serving import AdapterProduced

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

_ERASED: Final = "a person was erased of whose sessions it practises tasks; it begins anew without"
_OTHER_KEYS: Final = (
    "the keys of the persons whose tasks it practised are not those of its last attempt (a person "
    "was erased, or the key store changed), and rounds that it closed follow from these tasks, so "
    "it cannot begin anew; the next cycle asks for another job"
)


def advance(
    app: "App",
    runner: JobRunner,
    cancelled: Mapping[str, str] | None = None,
    breaks: Breaks | None = None,
) -> list[str]:
    """Advance every open job; return sentences about what happened. `cancelled`: job -> reason.
    With `breaks`, an error of one job does not stop the others. Raises LogError,
    DatabaseUnavailable."""
    with app.reading() as connection:
        jobs = learning.open_jobs(connection)
    # Jobs for adapters that answer no clients come after the jobs that a cycle waits for.
    jobs.sort(key=_answers_no_client)
    called_off = cancelled or {}
    notes: list[str] = []
    for job in jobs:
        look = _Look(app, runner, job, called_off.get(job.job))
        if breaks is None:
            look.tell(notes)
        else:
            breaks.attempt("jobs", partial(look.tell, notes), f"job {job.job}")
        if look.away:
            break  # the runner would say the same about the other jobs
    return notes


def _answers_no_client(job: JobRow) -> bool:
    kind = KINDS.get(job.teaches or "agent")
    return kind is not None and kind.role != "agent"


class _Look:
    def __init__(self, app: "App", runner: JobRunner, job: JobRow, cancelled: str | None) -> None:
        self._app = app
        self._runner = runner
        self._job = job
        self._cancelled = cancelled
        self._settings = app.settings.jobs
        self.away = False
        """Whether the runner could not read the state of jobs."""

    def tell(self, notes: list[str]) -> None:
        try:
            for event in self.advance():
                notes.append(event)
        except RunnerUnavailable as error:
            self.away = True
            notes.append(str(error))

    def advance(self) -> Iterator[str]:
        try:
            yield from self._advance()
        except (JobStartError, AdapterWriteError, DecisionRefusal, UnknownKind) as error:
            yield str(error)

    def _advance(self) -> Iterator[str]:
        match self._runner.state(self._job.job):
            case Absent():
                if self._cancelled is not None:
                    yield self._end("cancelled", self._cancelled, Exit(0, 0, 0.0, None))
                else:
                    yield from self._start(1, "", Exit(0, 0, 0.0, None))
            case Active() as running:
                reason = self._stop(running)
                if reason is not None:
                    self._runner.cancel(self._job.job, reason)
                    yield f"job {self._job.job} is told to stop: {reason}"
                yield from self._record_rounds()
            case Exit() as ended:
                yield from self._after(ended)

    def _foreign(self) -> str | None:
        """Return why an environment of the job may not be run by the settings, or None."""
        settings = self._app.settings
        try:
            for place in self._job.spec.environments:
                check_place(
                    place,
                    paths=settings.environments.paths,
                    places=settings.environment_places,
                )
        except UnknownEnvironment as error:
            return str(error)
        return None

    def _start(self, attempt: int, why: str, ended: Exit) -> Iterator[str]:
        """Start an attempt, or end the job if it cannot be played here. Raises UnknownKind."""
        find_kind(self._job.spec)
        if (reason := self._foreign()) is not None:
            yield self._end("failed", reason, ended)
            return
        if self._runner.hands_keys:
            # Jobs on other machines may reach endpoints that this machine cannot.
            users = (pool.user for pool in self._job.spec.pools)
            wait_for_users(f"job {self._job.job}", users)
        try:
            # Later attempts use the files of the first attempt.
            files = (yield from self._make_files()) if attempt == 1 else {}
            keys = yield from self._collect_keys(files)
        except (NotShown, NothingPlayable) as error:
            yield self._end("failed", str(error), ended)
            return
        if self._has_other_keys(ended, keys):
            if self._has_rounds():
                yield self._end("failed", _OTHER_KEYS, ended)
                return
            self._discard_learnt()
        with self._app.reading() as connection:
            span = Contexts(connection, self._app.log).job(self._job.job)
        if self._runner.start(Job(self._job.job, self._job.spec, span.header, files, keys)):
            yield f"job {self._job.job} was started, attempt {attempt}{why}"

    def _make_files(self) -> Generator[str, None, dict[str, bytes]]:
        """Return input files; reject tasks without a body. Raises NotShown, NothingPlayable."""
        spec = self._job.spec
        files: dict[str, bytes] = {}
        names = [name for pool in spec.pools for name in pool.successes]
        tasks = list_tasks(spec)
        if names:
            read_shown = find_kind(spec).read_shown or _read_own_successes
            with self._app.reading() as connection:
                shown = read_shown(self._app, connection, names)
            files[shown.name] = shown.content
            tasks += shown.tasks
        bodies = collect_bodies(self._app, tasks, sealed=self._runner.hands_keys)
        yield from reject_missing(self._app, self._job, bodies.missing)
        if bodies.withheld:
            yield (
                f"job {self._job.job} goes on without {len(bodies.withheld)} tasks made of "
                "persons' sessions: keys are handed to jobs of this machine alone (jobs.runner)"
            )
        yield from self._report_locked(bodies.locked)
        playable = drop_tasks(spec, {*bodies.missing, *bodies.withheld, *bodies.locked})
        kept = {pool.name for pool in playable.pools}
        for pool in spec.pools:
            if pool.name not in kept:
                yield f"job {self._job.job} goes on without pool {pool.name}: no task of it is left"
        if bodies.found:
            files[DEFINITIONS] = write_definitions(bodies.found)
        return files

    def _collect_keys(self, files: Mapping[str, bytes]) -> Generator[str, None, tuple[Key, ...]]:
        """Return the keys of the tasks in `files`, else in those of the first attempt. Tasks of
        erased persons are rejected."""
        content = files.get(DEFINITIONS)
        try:
            bodies = (
                read_definitions(self._runner.folder(self._job.job) / OUT)
                if content is None
                else parse_definitions(content)
            )
        except OSError as error:
            raise JobStartError(
                f"job {self._job.job} was not started, for {error.filename}: {error.strerror}; it "
                "is tried again"
            ) from error
        keys = collect_keys(self._app, bodies)
        yield from reject_missing(self._app, self._job, keys.erased)
        yield from self._report_locked(keys.locked)
        return keys.found

    def _report_locked(self, locked: Mapping[str, str]) -> Iterator[str]:
        if locked:
            yield (
                f"job {self._job.job} goes on without {len(locked)} tasks made of persons' "
                f"sessions, and a later job may have them: {next(iter(locked.values()))}"
            )

    def _has_key_of_erased(self, attempt: Active | Exit) -> bool:
        if not attempt.keyids:
            return False
        with self._app.reading() as connection:
            return not read_erasure_keys(connection).isdisjoint(attempt.keyids)

    @staticmethod
    def _has_other_keys(ended: Exit, keys: tuple[Key, ...]) -> bool:
        """Return whether the next attempt has other keys than the last one, and so other tasks."""
        return ended.attempts > 0 and {key.id for key in keys} != set(ended.keyids)

    def _has_rounds(self) -> bool:
        """Return whether the job has closed a round; then it cannot begin anew with other tasks."""
        folder = self._runner.folder(self._job.job) / OUT / ROUNDS
        return folder.is_dir() and any(folder.iterdir())

    def _discard_learnt(self) -> None:
        """Remove the last attempt's results, so that the next one does not continue from them."""
        for name in LEARNT:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._runner.folder(self._job.job) / OUT / name)

    def _stop(self, running: Active) -> str | None:
        if self._cancelled is not None:
            return self._cancelled
        if self._has_key_of_erased(running):
            return _ERASED
        if running.seconds >= self._job.minutes * 60:
            return self._too_long
        if running.silent >= self._settings.heartbeat_seconds:
            return f"it said nothing for {running.silent:.0f} seconds"
        return None

    @property
    def _too_long(self) -> str:
        return f"it ran for its {self._job.minutes:g} minutes; raise jobs.minutes, or train less"

    def _after(self, ended: Exit) -> Iterator[str]:
        conclusion = verdict(ended, self._settings.attempts)
        yield from self._record_rounds()
        if self._cancelled is not None:
            yield self._end("cancelled", self._cancelled, ended)
        elif isinstance(conclusion, Again) and ended.seconds >= self._job.minutes * 60:
            yield self._end("failed", self._too_long, ended)
        elif isinstance(conclusion, Again):
            yield from self._start(ended.attempts + 1, f", for {conclusion.reason}", ended)
        elif conclusion.outcome == "trained" and self._has_key_of_erased(ended):
            yield from self._start(ended.attempts + 1, f", for {_ERASED}", ended)
        else:
            yield from self._record()
            yield self._over(conclusion, ended)

    def _record(self) -> Iterator[str]:
        """Record the job's rollouts before its end. The job ends even if this fails."""
        try:
            count = record_rollouts(self._app, self._job, self._runner.folder(self._job.job))
        except (BadJournal, EnvironmentBroken, OSError, UnknownEnvironment, UnknownTask) as error:
            yield f"rollouts of job {self._job.job} were not recorded: {error}"
        else:
            if count:
                yield f"{count} rollouts of job {self._job.job} were recorded"

    def _record_rounds(self) -> Iterator[str]:
        """Record the rounds that the job has closed and that the tables lack."""
        job = self._job.job
        try:
            count = record_rounds(self._app, self._job, self._runner.folder(job))
        except (BadJournal, OSError) as error:
            yield f"rounds of job {job} were not recorded: {error}"
        else:
            if count:
                rounds = "round" if count == 1 else "rounds"
                yield f"recorded {count} {rounds} of job {job}"

    def _over(self, conclusion: Over, ended: Exit) -> str:
        if conclusion.outcome in ("competence_gap", "failed"):
            return self._end(conclusion.outcome, conclusion.reason, ended)
        assert ended.result is not None, "a trained job says what it left"
        try:
            adopted = self._adopt(ended.result)
        except (BadAdapter, BadBase, BadName, NoFingerprint) as error:
            return self._end("failed", str(error), ended)
        if other := self._same(adopted):
            reason = f"it trained the adapter {adopted.name} that {other} has left before"
            return self._end("failed", reason, ended)
        return self._end("trained", conclusion.reason, ended, adopted)

    def _adopt(self, result: Result) -> HomeAdapter:
        """Bring the job's adapter into the home. Raises BadAdapter if the job reported another."""
        job = self._job
        role = find_kind(job.spec).role
        of = job.capability if role == "agent" else role
        kind = job.alias if of is None else f"{job.alias}-{of}"
        checkpoint, store = Path(job.spec.checkpoint), self._app.settings.adapters
        # Only the name of its path counts: the home may have been moved since.
        folder = self._runner.folder(job.job) / OUT / Path(result.adapter or "").name
        if result.adapter is None or not folder.is_dir():
            raise BadAdapter(f"{folder} is no folder, and the job says that its adapter is there")
        adopted = adopt(folder, store, checkpoint, kind=kind)
        if adopted.sha256 != result.sha256:
            raise BadAdapter(
                f"{folder} holds weights {adopted.sha256[:12]}, and the job says that it left "
                f"{str(result.sha256)[:12]}: somebody changed them"
            )
        return adopted

    def _same(self, adopted: HomeAdapter) -> str | None:
        with self._app.reading() as connection:
            known = serving.adapter_row(connection, adopted.name)
        if known is None or known.job == self._job.job:
            return None
        return "an operator" if known.job is None else f"job {known.job}"

    def _end(
        self, outcome: JobOutcome, reason: str, ended: Exit, adopted: HomeAdapter | None = None
    ) -> str:
        job, result, paths = self._job, ended.result, self._app.settings.adapter_paths
        decisions: dict[str, Decision] = {
            "job-ended": JobEnded(
                job=job.job,
                outcome=outcome,
                reason=clip_reason(reason),
                adapter=None if adopted is None else paths.record(adopted.folder),
                sha256=None if adopted is None else adopted.sha256,
                steps=0 if result is None else result.steps,
                rollouts=0 if result is None else result.rollouts,
                seconds=ended.seconds,
                attempts=ended.attempts,
            )
        }
        if adopted is not None:
            decisions["produced"] = AdapterProduced(
                adapter=adopted.name, alias=job.alias, base=job.base, sha256=adopted.sha256,
                path=paths.record(adopted.folder), capability=job.capability, job=job.job,
                origin="job", role=find_kind(job.spec).role,
            )  # fmt: skip
        Decisions(self._app).take_all(decisions, job.event, origin=job.job)
        because = f": {reason}" if reason else ""
        return f"job {job.job} ended, {outcome}{because}"


def _read_own_successes(
    app: "App", connection: "Connection", rollouts: Sequence[str]
) -> ShownRollouts:
    return ShownRollouts(SUCCESSES, read_file(app, connection, rollouts))
