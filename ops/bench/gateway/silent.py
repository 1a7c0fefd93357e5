"""Our gateway with nobody counting, to compare with (the arguments of `kintsugi` -> a gateway).

    python -m ops.bench.gateway.silent gateway --port P --upstream URL

The same program, but for what it tells Prometheus: no method of `Metrics` that a call passes does
anything. For the bench alone; users get no such switch.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from daemon.__main__ import main
from events.rollouts import Outcome
from producers.gateway import server
from producers.gateway.http.wire import Endpoint
from producers.gateway.metrics.registry import Metrics

_NOTHING: Final = nullcontext()


class Silent(Metrics):
    """Metrics that nothing reaches."""

    def in_flight(self) -> AbstractContextManager[None]:
        return _NOTHING

    def first_byte(self, endpoint: Endpoint, seconds: float) -> None: ...

    def ended(
        self, endpoint: Endpoint, outcome: Outcome, recorded: bool, seconds: float
    ) -> None: ...

    def overhead(self, endpoint: Endpoint, seconds: float) -> None: ...

    def unattributed(self) -> None: ...

    def fell_back(self) -> None: ...

    def shadowed(self, asked: bool) -> None: ...

    def follows(self, position: int) -> None: ...

    def appending(self, stream: str, type: str) -> AbstractContextManager[None]:
        return _NOTHING


if __name__ == "__main__":
    setattr(server, "Metrics", Silent)  # noqa: B010 - the module does not offer it
    sys.exit(main())
