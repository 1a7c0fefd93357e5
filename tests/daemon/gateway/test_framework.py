"""An agent framework that was told another base URL, and to have no strict tools, with real tools
and a model that knows how to use them: what it did is in the log, token by token."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from envs.grading import grade, replay
from envs.shop.environment import Shop
from events.messages import Message, executed_calls
from ops.isolated import interpreter, ours
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.gateway.conftest import Front, Fronted

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
FRAMEWORK = "pydantic-ai-slim==2.68.0"
AGENT = str(Path(__file__).with_name("framework_agent.py"))
TASK = "shop/followup/3"
"""Three turns, and one of the kinds of task that the reference policy does."""


@pytest.fixture(scope="module")
def reference() -> Iterator[Live]:
    """The embedded engine with the reference policy."""
    with listening(Policy.load(CHECKPOINT, "reference"), Chat(CHECKPOINT)) as found:
        yield found


def run(*arguments: str) -> str:
    """What a program prints that has the framework, and of ours no more than the environments."""
    python = interpreter(FRAMEWORK, *ours("google-re2", "openai", "pydantic"))
    done = subprocess.run(
        [python, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def whole(front: Fronted) -> list[Message]:
    """The conversation of a session of which each call goes on from the one before."""
    said: list[Message] = []
    for started, ended in zip(front.started(), front.ended(), strict=True):
        assert started.content is not None
        assert ended.content is not None
        assert len(said) == started.parent_messages
        said += [*started.content.messages, *ended.content.messages]
    return said


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_conversation_of_an_agent_framework_is_recorded_token_by_token(
    reference: Live, front_over: Front, stream: bool
) -> None:
    front = front_over(reference.url)
    flags = ["--stream"] if stream else []
    done = json.loads(run(AGENT, f"{front.url}/v1", TASK, *flags))

    started, ended = front.started(), front.ended()
    assert [call.stream for call in started] == [stream] * len(started)
    assert len({call.session for call in started}) == 1
    assert [call.attribution for call in started] == ["none", *["prefix"] * (len(started) - 1)]
    assert [call.parent for call in started] == [None, *(call.call for call in started[:-1])]
    assert started[0].content is not None
    assert len(started[0].content.tools) == len(Shop().toolset.tools())
    assert all(call.parent_tools for call in started[1:])

    shop, said = Shop(), whole(front)
    task = shop.task(TASK)
    calls = executed_calls(said)
    assert sum(message.role == "user" for message in said) == done["turns"] == 3
    assert replay(shop, task, calls).digest() == done["state"]
    assert grade(shop, task, said[1:], "user_stop").success is True

    assert [(one.outcome, one.trainable) for one in ended] == [("completed", True)] * len(ended)
    before: list[float] = []
    for one in ended:
        arrays = front.arrays(one.call)
        assert len(arrays["token_ids"]) == len(arrays["logprobs"]) == one.completion_tokens
        # What the model read begins with what it had read and written before.
        assert arrays["prompt_token_ids"][: len(before)] == before
        before = arrays["prompt_token_ids"] + arrays["token_ids"]


def test_the_agent_of_the_document_runs(reference: Live, front_over: Front, tmp_path: Path) -> None:
    front = front_over(reference.url)
    text = (ROOT / "docs" / "gateway.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    address = "http://127.0.0.1:8080"
    assert snippet.count(address) == 1
    program = tmp_path / "agent.py"
    program.write_text(snippet.replace(address, front.url))
    assert run(str(program)).strip()
    assert {call.session for call in front.started()} == {"support-4711"}
    assert all(one.trainable for one in front.ended())
