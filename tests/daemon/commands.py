"""Running the command line, and small files for it to import."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from daemon.__main__ import main

Json = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document of stdout; a second one, or talk, fails here."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(**variables: str) -> dict[str, str]:
    """Ours without any setting, and with these."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KINTSUGI_")}
    return {**clean, **variables}


def spawn(
    arguments: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Result:
    """A process of its own, with `folder` as its working directory."""
    done = subprocess.run(
        [sys.executable, "-m", "daemon", *arguments],
        cwd=folder,
        env=environment(**(variables or {})),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def start(
    arguments: Sequence[str], variables: Mapping[str, str] | None = None, **options: Any
) -> "subprocess.Popen[str]":
    """Start a process of its own and leave it running; `options` are those of Popen."""
    command = [sys.executable, "-m", "daemon", *arguments]
    return subprocess.Popen(command, env=environment(**(variables or {})), text=True, **options)


def run_here(arguments: Sequence[str], variables: Mapping[str, str]) -> Result:
    """In this process, which is much faster, with these settings and no others."""
    out, err = StringIO(), StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        for name in set(os.environ) - set(environment()):
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        code = main(arguments)
    return Result(code, out.getvalue(), err.getvalue())


def succeed(arguments: Sequence[object], variables: Mapping[str, str]) -> Result:
    """Run a command in this process, which must end with exit code 0."""
    result = run_here([str(argument) for argument in arguments], variables)
    assert result.code == 0, f"{arguments}: {result.err}"
    return result


def call(name: str, arguments: Json, id: str = "c1") -> Json:
    """An assistant message that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    tool_call = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call]}


def answer(content: str, id: str = "c1") -> Json:
    """The tool's answer."""
    return {"role": "tool", "tool_call_id": id, "content": content}


def failed_rollout(task: str = "t1", trial: int = 0, size: int = 1) -> Json:
    """The agent cancels another order than it should: it fails."""
    return {
        "task_id": task,
        "trial": trial,
        "reward": 0.0,
        "model": "small",
        "write_tools": ["cancel_order"],
        "gold_actions": [{"name": "cancel_order", "arguments": {"order_id": "#1"}}],
        "messages": [
            {"role": "system", "content": "Be kind." * size},
            {"role": "user", "content": "Cancel my order, please."},
            call("cancel_order", {"order_id": "#2"}),
            answer("cancelled"),
            {"role": "assistant", "content": "Done."},
        ],
    }


def passed_rollout(task: str = "t1", trial: int = 1) -> Json:
    """The agent does what it should."""
    rollout = failed_rollout(task, trial)
    rollout["reward"] = 1.0
    rollout["messages"][2] = call("cancel_order", {"order_id": "#1"})
    return rollout


def unjudged_rollout(text: str = "Hello?") -> Json:
    """A conversation that nobody judged, on no known task."""
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Hi"}]}


def tau_bench_run() -> Json:
    """A run as tau-bench v1 records it: the agent answers without calling anything."""
    actions = [{"name": "cancel_reservation", "kwargs": {"reservation_id": "R1"}}]
    return {
        "task_id": 7,
        "reward": 0.0,
        "info": {
            "task": {
                "user_id": "ada_1",
                "instruction": "You want to cancel R1.",
                "actions": actions,
                "outputs": [],
            },
            "source": "user",
            "user_cost": 0.1,
            "reward_info": {
                "reward": 0.0,
                "info": {"r_actions": 0.0, "gt_data_hash": "x"},
                "actions": actions,
            },
        },
        "traj": [
            {"role": "system", "content": "# Airline Agent Policy\n\nBe kind."},
            {"role": "user", "content": "Cancel R1, please."},
            {"role": "assistant", "content": "I am sorry, I cannot do that."},
            {"role": "user", "content": "Fine. ###STOP###"},
        ],
        "trial": 2,
    }


def write_lines(path: Path, *records: Any) -> Path:
    """A file of JSON Lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_examples(path: Path) -> Path:
    """Two failures of one kind, two passes, and one that nobody judged."""
    return write_lines(
        path,
        failed_rollout("t1", 0),
        failed_rollout("t2", 0),
        passed_rollout("t1", 1),
        passed_rollout("t3", 0),
        unjudged_rollout(),
    )
