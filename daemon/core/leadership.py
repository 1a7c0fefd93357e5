"""Leader election: at most one process decides, and decisions of two processes count once.

    leadership = Leadership(app)
    epoch = leadership.lead()     at every tick; None while another one leads
    leadership.holds()            before every act: whether this process still leads
    with leadership.keep_lease():   around an act that takes longer than the lease

Liveness is a lease in the database (leases.py), which ends by itself after its last renewal, so the
others know when to try. The holder stops acting a margin earlier, by its own monotonic clock,
counted from before the request. Safety is the epoch: a process with the lease appends
`LeaderClaimed` with the next epoch, folds to the log's end, and leads only if its claim won. The
fold ignores decisions of every other epoch (cycles.py). So a paused process or a clock that jumped
costs only the act. Not covered: effects outside the log, which the code that makes them reconciles.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers import database, leases
from consumers.reads import learning
from events.codec import encode
from events.envelope import Envelope, derive_id, new_id, utc_now
from events.errors import KintsugiError
from events.learning import LeaderClaimed
from events.log import now_ms

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

LEASE: Final = "schedule"
"""Name of the lease: the role that leads."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of a lease, in seconds."""

    lease: float = 15.0
    """Seconds that a lease lasts after a renewal; then another process may take it."""
    renewal: float = 5.0
    """Seconds between two renewals."""
    margin: float = 5.0
    """Seconds before the lease's end at which its holder stops acting."""


class Leadership:
    """Leadership of one process, which leads or waits to lead."""

    def __init__(
        self,
        app: "App",
        holder: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        timing: LeaseTimes = LeaseTimes(),
    ) -> None:
        """`holder` names this process and must be unique for ever. `clock` is monotonic."""
        self.holder = new_id() if holder is None else holder
        self._app = app
        self._clock = clock
        self._timing = timing
        self._epoch: int | None = None
        self._until = 0.0
        self._renewed = 0.0
        self._renewing = threading.Lock()

    def holds(self) -> bool:
        """Return whether this process may act as the leader now."""
        return self._epoch is not None and self._clock() < self._until

    def lead(self) -> int | None:
        """Renew the lease or try to get it; return the epoch in which this process leads, or None.
        Raises LogError, DatabaseUnavailable."""
        if not self.holds() or self._has_successor():
            self._epoch = None
        elif self._clock() - self._renewed >= self._timing.renewal:
            self._renew()
        if self._epoch is None and self._is_free():
            # Fold before the lease, so that it does not use the lease up.
            self._app.settle()
            if self._take():
                self._epoch = self._claim()
        return self._epoch if self.holds() else None

    def resign(self) -> None:
        """Give the lease back, so that the next leader begins at once."""
        self._epoch = None
        with self._open_transaction() as connection:
            leases.give_back(connection, LEASE, self.holder)

    @contextmanager
    def keep_lease(self) -> Iterator[None]:
        """Inside the block, renew the lease from a thread; a failed renewal lets it run out."""
        done = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _renew_until(self, done: threading.Event) -> None:
        while not done.wait(self._timing.renewal) and self.holds():
            try:
                self._renew()
            except KintsugiError as error:
                log.warning("the lease of the leader was not renewed: %s", error)

    def _renew(self) -> None:
        with self._renewing:
            asked = self._clock()
            with self._open_transaction() as connection:
                ours = leases.renew(connection, LEASE, self.holder, self._timing.lease, self._epoch)
            if ours:
                self._hold_from(asked)
            else:
                log.warning("another process took the lease of the leader; this one waits")
                self._epoch = None

    def _has_successor(self) -> bool:
        with self._app.reading() as connection:
            current = learning.leader(connection)
        return current is None or current.epoch != self._epoch

    def _is_free(self) -> bool:
        with self._app.reading() as connection:
            held = leases.read_lease(connection, LEASE)
        return (
            held is None or held.holder == self.holder or not 0 < held.seconds <= self._timing.lease
        )

    def _take(self) -> bool:
        asked = self._clock()
        with self._open_transaction() as connection:
            taken = leases.take(connection, LEASE, self.holder, self._timing.lease)
        if taken:
            self._hold_from(asked)
        return taken

    def _hold_from(self, asked: float) -> None:
        # Counted from before the request: the lease runs while the request is on its way.
        self._renewed = asked
        self._until = asked + self._timing.lease - self._timing.margin

    def _claim(self) -> int | None:
        """Claim the next epoch and return it; return None if another claim came first."""
        with self._app.reading() as connection:
            current = learning.leader(connection)
        epoch = 1 if current is None else current.epoch + 1
        claim = LeaderClaimed(epoch=epoch, holder=self.holder)
        envelope = Envelope(
            id=derive_id("leader", self.holder, str(epoch)), type=claim.TYPE,
            version=claim.VERSION, subject=claim.key(), time=utc_now(), epoch=epoch,
        )  # fmt: skip
        self._app.append([encode(envelope, claim, now_ms()).entry])
        # Fold to the log's end, to know earlier leaders' decisions before the next decision.
        self._app.settle()
        with self._app.reading() as connection:
            winner = learning.leader(connection)
        if winner is None or (winner.epoch, winner.holder) != (epoch, self.holder):
            log.info("another process claimed epoch %s first; this one waits", epoch)
            return None
        log.info("leads from epoch %s on", epoch)
        return epoch

    @contextmanager
    def _open_transaction(self) -> "Iterator[Connection]":
        from daemon.core.app import explain_errors

        engine = self._app.engine
        with explain_errors(engine), database.write_transaction(engine) as connection:
            yield connection
