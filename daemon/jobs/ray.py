"""Training runs as jobs of a Ray cluster, over its HTTP Jobs API (docs/adr/0031).

The daemon does not import Ray, and every request has a deadline. An attempt is a job of the cluster
whose name follows from home, job and number. The cluster refuses a second one of that name, so an
attempt that is submitted twice runs once.

The cluster tells whether an attempt runs; its output is in the job's folder (attempts.py). So the
cluster's machines must see the home under the same path, and have `kintsugi[train]` installed.

An attempt that waits for its CPUs and GPUs has not begun, so its minutes and silence do not count
yet. An attempt that a restarted cluster forgot is over; one without a trace is submitted again. Not
covered: a change of the setting while a job is open.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import httpx2
from pydantic import ConfigDict, TypeAdapter, ValidationError

from daemon.jobs.attempts import SHELL, JobFolder, stop_path
from daemon.jobs.local import GRACE_SECONDS
from daemon.jobs.runner import Absent, Job, JobStartError, RunnerUnavailable, State
from events import private
from events.canonical import sha256
from events.messages import StrictModel

if TYPE_CHECKING:
    from daemon.config.settings import Ray

_SHELL: Final = f'exec >"$1.out" 2>"$1.err"; {SHELL}'
_STOP_WAIT: Final = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's variable for the seconds between SIGTERM and SIGKILL."""
_HOME: Final = "kintsugi"
"""Metadata key with the home of a cluster job."""
_ASK_SECONDS: Final = 10.0
_SUBMIT_SECONDS: Final = 60.0
"""Longer, because the first job of a cluster starts processes there."""
_HOME_DIGITS: Final = 12
_NOT_FOUND: Final = 404


class ClusterJob(StrictModel):
    """A job of the cluster, without the fields that are not used."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    submission_id: str | None = None
    """Id of a job submitted by this API; None for any other job."""
    status: Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
    message: str | None = None
    metadata: dict[str, str] | None = None
    driver_exit_code: int | None = None

    @property
    def open(self) -> bool:
        """Whether the cluster job is waiting or running."""
        return self.status in ("PENDING", "RUNNING")


_LISTED: Final = TypeAdapter(list[ClusterJob])


@dataclass(frozen=True, slots=True)
class Needs:
    """Resources that a job reserves on one machine of the cluster."""

    cpus: float = 1.0
    gpus: float = 0.0


class RayRunner:
    """Runs the jobs below one folder on a Ray cluster."""

    hands_keys = False
    """False: Ray writes a job's variables into its own files, so no keys are passed."""

    def __init__(
        self,
        root: Path,
        cluster: "Cluster",
        *,
        command: Sequence[str],
        needs: Needs = Needs(),
        slots: int = 1,
        grace: float = GRACE_SECONDS,
        mode: int = private.FOLDER,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Run `command` on the cluster with the spec's path, `--out DIR` and the `variables`."""
        self._root = root.absolute()
        self._mode = mode
        self._cluster = cluster
        self._command = tuple(command)
        self._needs = needs
        self._slots = slots
        self._grace = grace
        self._variables = dict(variables)

    def folder(self, job: str) -> Path:
        """Return the folder of a job."""
        return self._root / job

    def check(self) -> None:
        """Ask for the cluster's version. Raises RunnerUnavailable."""
        self._cluster.version()

    def start(self, job: Job) -> bool:
        """Submit an attempt; return False without a slot. Raises JobStartError,
        RunnerUnavailable."""
        folder = JobFolder(self.folder(job.id))
        try:
            return self._start(job, folder)
        except OSError as error:
            where = error.filename or folder.path
            raise JobStartError(
                f"job {job.id} was not started, for {where}: {error.strerror}; it is tried again"
            ) from error

    def state(self, job: str) -> State:
        """Return the state of a job. Raises RunnerUnavailable."""
        folder = JobFolder(self.folder(job))
        attempts = folder.attempts()
        while attempts:
            last = attempts[-1]
            remote = self._cluster.job(self._name(job, len(attempts)))
            if remote is not None and remote.status == "PENDING" and not stop_path(last).exists():
                return folder.read_pending(attempts)
            if remote is not None and remote.status == "RUNNING":
                return folder.read_active(attempts)
            if remote is not None or _began(last):
                return folder.read_exit(attempts, *_read_exit(remote))
            # The process was killed before it submitted the job, or the cluster forgot the job.
            attempts = attempts[:-1]
        return Absent()

    def cancel(self, job: str, reason: str) -> None:
        """Have the cluster send SIGTERM, and SIGKILL after the grace. Raises RunnerUnavailable."""
        folder = JobFolder(self.folder(job))
        attempts = folder.attempts()
        if not attempts:
            return
        name = self._name(job, len(attempts))
        remote = self._cluster.job(name)
        if remote is None or not remote.open:
            return
        folder.stop(attempts[-1], reason)
        self._cluster.stop(name)

    def close(self) -> None:
        """End the connections; jobs go on."""
        self._cluster.close()

    def _start(self, job: Job, folder: JobFolder) -> bool:
        private.make_folder(self._root, self._mode)
        folder.prepare(job)
        attempts = folder.attempts()
        number = len(attempts) + 1
        if attempts:
            last = self._cluster.job(self._name(job.id, len(attempts)))
            if last is not None and last.open:
                return True
            if last is None and not _began(attempts[-1]):
                number = len(attempts)
        if self._open() >= self._slots:
            return False
        self._submit(job, number, folder.begin(number), folder.arguments)
        return True

    def _name(self, job: str, number: int) -> str:
        """Return an attempt's name on the cluster, unique among homes with equal job ids."""
        return f"kintsugi-{self._home}-{job}-{number}"

    @property
    def _home(self) -> str:
        return sha256(str(self._root))[:_HOME_DIGITS]

    def _open(self) -> int:
        ours = {_HOME: self._home}.items()
        return sum(
            job.open and ours <= (job.metadata or {}).items() for job in self._cluster.jobs()
        )

    def _submit(self, job: Job, number: int, name: Path, arguments: Sequence[str]) -> None:
        variables = {
            _STOP_WAIT: str(round(self._grace)), **self._variables, **job.environment
        }  # fmt: skip
        words = ["sh", "-c", _SHELL, "sh", str(name), *self._command, *arguments]
        attempt = self._name(job.id, number)
        refused = self._cluster.submit(
            {
                "entrypoint": f"exec {shlex.join(words)}",
                "submission_id": attempt,
                "metadata": {_HOME: self._home, "job": job.id},
                "entrypoint_num_cpus": self._needs.cpus,
                "entrypoint_num_gpus": self._needs.gpus,
                "runtime_env": {"env_vars": variables},
            }
        )
        if refused is not None and self._cluster.job(attempt) is None:
            raise JobStartError(
                f"job {job.id} was not started, for the Ray cluster refused it: {refused}; it is "
                "tried again"
            )


class Cluster:
    """The Ray Jobs REST API of one cluster. Every method raises RunnerUnavailable."""

    def __init__(
        self, address: str, token: str | None = None, *, patience: float = _ASK_SECONDS
    ) -> None:
        """Connect to the dashboard at `address`."""
        self._address = address.rstrip("/")
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._client = httpx2.Client(headers=headers, timeout=patience, trust_env=False)

    def version(self) -> str:
        """Return the version of Ray."""
        with self._unavailable():
            return str(self._json("GET", "/api/version")["ray_version"])

    def job(self, name: str) -> ClusterJob | None:
        """Return a submitted job; None if there is none of that name."""
        with self._unavailable():
            answer = self._answer("GET", f"/api/jobs/{name}")
            if answer.status_code == _NOT_FOUND:
                return None
            return ClusterJob.model_validate(_document(answer))

    def jobs(self) -> list[ClusterJob]:
        """Return every job that the cluster remembers."""
        with self._unavailable():
            return _LISTED.validate_python(self._json("GET", "/api/jobs/"))

    def submit(self, wanted: dict[str, Any]) -> str | None:
        """Submit a job; return why it was refused (for example, its name exists), or None."""
        with self._unavailable():
            answer = self._answer("POST", "/api/jobs/", json=wanted, timeout=_SUBMIT_SECONDS)
            return None if answer.is_success else _last_line(answer.text)

    def stop(self, name: str) -> None:
        """Request the end of a job; the cluster ends it later."""
        with self._unavailable():
            answer = self._answer("POST", f"/api/jobs/{name}/stop")
            if answer.status_code != _NOT_FOUND:
                _document(answer)

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def _json(self, method: str, path: str) -> Any:
        return _document(self._answer(method, path))

    def _answer(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return self._client.request(method, f"{self._address}{path}", **options)

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        remedy = "start it (ray start --head), set jobs.ray.address, or set jobs.runner to local"
        try:
            yield
        except httpx2.TransportError as error:
            why = str(error) or type(error).__name__
            raise RunnerUnavailable(
                f"the Ray cluster at {self._address} does not answer ({why}); {remedy}"
            ) from error
        except (httpx2.HTTPStatusError, httpx2.InvalidURL) as error:
            raise RunnerUnavailable(
                f"the Ray cluster at {self._address} does not work: {error}; {remedy}"
            ) from error
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise RunnerUnavailable(
                f"what answers at {self._address} is no Ray cluster; {remedy}"
            ) from error


def cluster_of(ray: "Ray") -> Cluster:
    """Return the cluster that the settings name."""
    return Cluster(ray.address, None if ray.token is None else ray.token.get_secret_value())


def _document(answer: httpx2.Response) -> Any:
    answer.raise_for_status()
    return answer.json()


def _began(attempt: Path) -> bool:
    return attempt.with_suffix(".out").exists()


def _read_exit(remote: ClusterJob | None) -> tuple[int | None, str]:
    if remote is None:
        return None, ""
    return remote.driver_exit_code, "" if remote.status == "STOPPED" else _last_line(remote.message)


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines()]
    return next((line for line in reversed(lines) if line.strip(".")), "")
