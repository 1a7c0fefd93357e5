"""The folder of a reproduction, and the commands of its stages."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from events.errors import KintsugiError
from events.messages import StrictModel
from ops.reproduce.settings import Served

_UNAVAILABLE: Final = 4
_DONE_IN_PART: Final = 3
_LAST_WORDS: Final = 600
_RUN_AGAIN: Final = "remove the file, and the same command runs this stage again"

Document = dict[str, Any]


class StageFailure(KintsugiError):
    """A command of a stage failed; the text is its output."""


class EndpointAway(KintsugiError):
    """An endpoint cannot be reached."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a reproduction."""

    path: Path

    @property
    def settings(self) -> Path:
        """Return the file of the plan."""
        return self.path / "reproduction.json"

    @property
    def configuration(self) -> Path:
        """Return the settings file of the commands, the only one that they use."""
        return self.path / "kintsugi.toml"

    @property
    def training(self) -> Path:
        """Return the home of recorded traffic."""
        return self.path / "training"

    @property
    def evaluation(self) -> Path:
        """Return the home of evaluations, which are never trained on."""
        return self.path / "evaluation"

    @property
    def jobs(self) -> Path:
        """Return the folder of specs and jobs."""
        return self.path / "jobs"

    def job(self, policy: str) -> Path:
        """Return the folder of a job."""
        return self.jobs / policy

    def spec(self, policy: str) -> Path:
        """Return the file of a job's spec."""
        return self.jobs / f"{policy}.json"

    def adapter(self, policy: str) -> Path:
        """Return the folder of a job's adapter."""
        return self.job(policy) / "adapter"

    def result(self, stage: str) -> Path:
        """Return the file of a stage's result."""
        return self.path / "stages" / f"{stage}.json"

    def write(self, stage: str, document: Document) -> None:
        """Write a stage's result atomically."""
        write_whole(self.result(stage), json.dumps(document, indent=1))

    def read(self, stage: str) -> Document:
        """Return a stage's result. Raise StageFailure for a missing or damaged one."""
        path = self.result(stage)
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise StageFailure(f"the stage {stage} has no result; run it first") from None
        except ValueError as error:  # of JSON, or of UTF-8
            raise StageFailure(f"{path} was damaged ({error}); {_RUN_AGAIN}") from None
        if not isinstance(document, dict):
            raise StageFailure(f"{path} was damaged (it holds no object); {_RUN_AGAIN}")
        return document


def write_model(target: Path, model: StrictModel) -> None:
    """Write a model as a JSON file atomically."""
    write_whole(target, model.model_dump_json())


def write_whole(target: Path, text: str) -> None:
    """Write a text file atomically and durably (fsync)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)


def build_agent_options(plan: Served) -> list[str]:
    """Return an evaluation's options for the agent's endpoint, also if it moved."""
    moved = ["--moved-from", plan.first.base_url] if plan.before else []
    return ["--base-url", plan.base_url, *moved]


def build_user_options(plan: Served) -> list[str]:
    """Return an evaluation's options for the user's model; [] for scripted users."""
    if plan.user_model is None:
        return []
    own = [] if plan.user_base_url is None else ["--user-base-url", plan.user_base_url]
    moved = ["--user-moved-from", plan.first.user] if plan.before else []
    return ["--user-model", plan.user_model, *own, *moved]


def build_eval_command(
    plan: Served, folder: Folder, model: str, selection: Sequence[str], trials: int,
    temperature: float, *more: str,
) -> list[str]:  # fmt: skip
    """Return the command that evaluates the policy `model` on the tasks of `selection`."""
    return [
        "kintsugi", "eval", "--env", plan.env, *selection, "--trials", str(trials),
        *build_agent_options(plan), "--model", model, "--base", plan.model,
        "--temperature", f"{temperature:g}", "--max-tokens", str(plan.max_tokens),
        "--seed", str(plan.seed), "--concurrency", str(plan.concurrency), *build_user_options(plan),
        *more, "--home", str(folder.evaluation), "--json",
    ]  # fmt: skip


def run_command(folder: Folder, command: Sequence[str]) -> Document:
    """Run a stage's command; return its JSON object. Raise EndpointAway or StageFailure."""
    module = {"kintsugi": ["daemon"], "python": []}[command[0]]
    arguments = [*module, *(part for part in command[1:] if part != "-m")]
    reading, writing = os.pipe()
    try:
        # The command ends with this process, which holds the other end of its stdin.
        finished = subprocess.run(
            [sys.executable, "-m", "daemon.roles.parent_watch", *arguments],
            env=_environment(folder),
            stdin=reading,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(reading)
        os.close(writing)
    said = " ".join(finished.stderr.split())[-_LAST_WORDS:]
    if finished.returncode == _UNAVAILABLE:
        raise EndpointAway(said)
    if finished.returncode not in (0, _DONE_IN_PART):
        raise StageFailure(
            f"{shlex.join(command)} ended with exit code {finished.returncode}: {said}"
        )
    document = json.loads(finished.stdout.strip().splitlines()[-1])
    assert isinstance(document, dict), "these commands print objects"
    return document


def _environment(folder: Folder) -> Mapping[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("KINTSUGI_")}
    return {**own, "KINTSUGI_CONFIG": str(folder.configuration)}
