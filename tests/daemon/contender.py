"""A process that wants to lead, told by its standard input what to do, one command a line.

lead            try once: its epoch, or `None`
holds           whether it believes that it leads
start ALIAS     append a cycle of that agent in the epoch that it last led in, without looking
renewing        hold the lease from a thread until the input ends
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.core.leadership import Leadership, LeaseTimes
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.log import now_ms
from tests.consumers.cycling import started

TIMING = LeaseTimes(lease=1.5, renewal=0.3, margin=0.5)


def start(app: App, alias: str, epoch: int, holder: str) -> None:
    data = started(alias=alias, reason=holder)
    envelope = Envelope(
        id=derive_id(data.cycle, "start"), type=data.TYPE, version=data.VERSION,
        subject=data.key(), epoch=epoch,
    )  # fmt: skip
    app.append([encode(envelope, data, now_ms()).entry])


def main(home: str, holder: str) -> None:
    epoch = 0
    with ExitStack() as stack, App(Settings(home=Path(home))) as app:
        leadership = Leadership(app, holder, timing=TIMING)
        for line in sys.stdin:
            command, *arguments = line.split()
            answer: object = "done"
            if command == "lead":
                answer = tried = leadership.lead()
                epoch = tried or epoch
            elif command == "holds":
                answer = leadership.holds()
            elif command == "renewing":
                stack.enter_context(leadership.keep_lease())
            else:
                start(app, arguments[0], epoch, holder)
            print(answer, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
