"""Our gateway without metrics, to compare with (the arguments of `kintsugi` -> a gateway).

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

    def time_first_byte(self, endpoint: Endpoint, seconds: float) -> None: ...

    def count_call(
        self, endpoint: Endpoint, outcome: Outcome, recorded: bool, seconds: float
    ) -> None: ...

    def time_overhead(self, endpoint: Endpoint, seconds: float) -> None: ...

    def count_new_session(self) -> None: ...

    def count_fallback(self) -> None: ...

    def count_shadow(self, asked: bool) -> None: ...

    def confirm_routes(self, position: int) -> None: ...

    def time_append(self, stream: str, type: str) -> AbstractContextManager[None]:
        return _NOTHING


if __name__ == "__main__":
    setattr(server, "Metrics", Silent)  # noqa: B010 - the module does not offer it
    sys.exit(main())
