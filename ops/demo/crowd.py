"""The customers: concurrent clients of the gateway, until they are stopped.

    python -m ops.demo.crowd HOME [--at-once N]

Each plays a task of the home's mixture, with user and tools simulated here. The session names its
task, for which its API key has the right, and ends when the customer leaves. Customers wait while
the gateway is away. No task is played twice: the home's file `customers` counts them. The file
`pace` sets the customers per minute at any time.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import httpx2

from daemon.config.settings import load
from envs.endpoint import AnswerFailure, Usage, request_seed, wire
from envs.environment import Environment
from envs.episode import Termination
from envs.evaluation import Setup, make_environment_user, play
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.files import replace_file
from events.messages import Message
from ops.demo.mixture import MIX
from ops.demo.place import ALIAS, Place
from producers.conversation import parse_messages

FIRST_TASK: Final = 1 << 26
"""Task seed of the first customer; seeds of training and held-out tasks are disjoint from it."""
AT_ONCE: Final = 6
PER_MINUTE: Final = 300.0
PACE: Final = "pace"
PER_SEED: Final = 1_000_000

_MAX_TOKENS: Final = 64
_PATIENCE_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.3


class Agent:
    """The agent in one session: it is asked through the gateway."""

    remarks: Sequence[str] = ()
    usage = Usage()

    def __init__(
        self, client: httpx2.AsyncClient, environment: Environment, task: TaskDefinition, seed: int
    ) -> None:
        self.session = f"customer-{task.id.rpartition('/')[2]}"
        self._client = client
        self._tools = [dict(schema) for schema in environment.schemas(task)]
        self._headers = {"x-kintsugi-session": self.session, "x-kintsugi-task": task.id}
        self._seed = seed

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return the agent's next message. Raise AnswerFailure."""
        body = {
            "model": ALIAS, "messages": [wire(item) for item in messages], "tools": self._tools,
            "max_tokens": _MAX_TOKENS, "temperature": 1.0,
            "seed": request_seed(self._seed, len(messages)),
        }  # fmt: skip
        answer = await post(self._client, "/chat/completions", body, self._headers)
        if not answer.is_success:
            raise AnswerFailure(Termination.AGENT_ERROR, f"{answer.status_code}: {answer.text}")
        (message,) = parse_messages([answer.json()["choices"][0]["message"]])
        return message

    async def leave(self) -> None:
        """End the session."""
        await post(self._client, f"/sessions/{self.session}/end", None, {})


async def post(
    client: httpx2.AsyncClient, path: str, body: object, headers: dict[str, str]
) -> httpx2.Response:
    """Post until the status is below 500. Raise AnswerFailure after a time limit."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            answer = await client.post(path, json=body, headers=headers)
        except httpx2.TransportError as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            if answer.status_code < 500:
                return answer
            reason = f"{answer.status_code}: {answer.text}"
        if time.monotonic() >= deadline:
            raise AnswerFailure(Termination.INFRASTRUCTURE_ERROR, reason)
        await asyncio.sleep(_PAUSE_SECONDS)


class Queue:
    """The next customers' tasks from the mixture, at the home's pace. No task comes twice."""

    def __init__(
        self,
        environment: Environment,
        home: Path,
        seed: int = 0,
        mix: Mapping[str, float] = MIX,
    ) -> None:
        self._counter = counter = home / "customers"
        self._pace = home / PACE
        self._number = int(counter.read_text()) if counter.exists() else 0
        tasks = environment.mixture(mix, seed, FIRST_TASK + seed * PER_SEED)
        self._tasks = islice(tasks, self._number, None)
        self._next = time.monotonic()

    async def next(self) -> TaskDefinition:
        """Wait for the next customer's time and return the task."""
        task, self._number = next(self._tasks), self._number + 1
        write(self._counter, str(self._number))
        now = time.monotonic()
        per_minute = float(self._pace.read_text()) if self._pace.exists() else PER_MINUTE
        self._next = max(self._next + 60 / per_minute, now)
        await asyncio.sleep(self._next - now)
        return task


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    replace_file(path, text.encode())


Hears = Callable[[httpx2.Response], Awaitable[None]]


async def serve(place: Place, port: int, at_once: int, *hears: Hears) -> None:
    """Run customers against the gateway at `port` until cancelled."""
    shop = Shop()
    queue = Queue(shop, place.home, place.size.seed, place.mix)
    client = httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}/v1", trust_env=False, timeout=60,
        headers={"authorization": f"Bearer {place.key}"}, event_hooks={"response": list(hears)},
    )  # fmt: skip
    async with client, asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(_customers(shop, client, queue))


async def _customers(shop: Shop, client: httpx2.AsyncClient, queue: Queue) -> None:
    while True:
        task = await queue.next()
        agents: list[Agent] = []

        def agent(task: TaskDefinition, seed: int, agents: list[Agent] = agents) -> Agent:
            agents.append(Agent(client, shop, task, seed))
            return agents[0]

        await play(Setup(shop, agent, make_environment_user(shop)), task, 0)
        try:
            await agents[0].leave()
        except AnswerFailure as failure:
            # The session then ends after its idle time.
            print(f"{agents[0].session} was not ended: {failure}", file=sys.stderr)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m ops.demo.crowd")
    parser.add_argument("home", type=Path)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    options = parser.parse_args()
    place = Place(options.home.absolute())
    os.environ.update(place.variables)

    async def serve_until_signal() -> None:
        own = asyncio.current_task()
        assert own is not None, "it runs in one"
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, own.cancel)
        try:
            await serve(place, load().gateway.port, options.at_once)
        except asyncio.CancelledError:
            return

    asyncio.run(serve_until_signal())
    return 0


if __name__ == "__main__":
    sys.exit(main())
