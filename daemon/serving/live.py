"""What a canary shows in live traffic: judged sessions in, roll back, promote or wait out.

The i-th judged session of the canary is paired with the i-th judged session of the incumbent of the
same slice; D in {-1, 0, 1} is the difference of their verdicts. Two e-processes watch the pairs:

    roll back    D is below 0 on average: reaches 20 for a canary that is not worse with a chance of
                 at most 5 %
    promote      D is above -`margin` on average: the same for one that is worse by the margin

Whichever reaches 20 first decides, and stays decided. Pure; the order is that of the log. Not
covered: who judges (only keys that may), and silence, for which there is `on_silence`.
"""

from collections import deque
from typing import Final, Literal

from consumers.judged import Behaviour
from daemon.serving.gate import EProcess, poisson_95

Arm = Literal["canary", "incumbent"]
Outcome = Literal["roll_back", "promote"]

ENOUGH: Final = 20.0
"""Evidence that decides: 1 / 0.05."""


class LiveGuard:
    """The watch over one canary."""

    def __init__(self, margin: float) -> None:
        """`margin`: how much worse on average a canary may be and still be promoted."""
        self.outcome: Outcome | None = None
        self.pairs = 0
        self._margin = margin
        self._waiting: dict[tuple[str, Arm], deque[bool]] = {}
        self._worse = EProcess()
        self._good = EProcess()

    @property
    def against(self) -> float:
        """Evidence that the canary is worse."""
        return self._worse.value

    @property
    def towards(self) -> float:
        """Evidence that it is not worse by the margin."""
        return self._good.value

    def judged(self, arm: Arm, slice: str, success: bool) -> Outcome | None:
        """Take the verdict of a session; what is decided by now."""
        other: Arm = "incumbent" if arm == "canary" else "canary"
        partners = self._waiting.setdefault((slice, other), deque())
        if not partners:
            self._waiting.setdefault((slice, arm), deque()).append(success)
            return self.outcome
        partner = partners.popleft()
        canary, incumbent = (success, partner) if arm == "canary" else (partner, success)
        self._add(int(canary) - int(incumbent))
        return self.outcome

    def _add(self, difference: int) -> None:
        if self.outcome is not None:
            return
        self.pairs += 1
        self._worse.add(-difference)
        self._good.add(difference + self._margin)
        if self.against >= ENOUGH:
            self.outcome = "roll_back"
        elif self.towards >= ENOUGH:
            self.outcome = "promote"


def on_silence(canary: Behaviour, incumbent: Behaviour) -> Literal["roll_back", "inconclusive"]:
    """What to do with a canary that too few sessions were judged of.

    Roll back where one of its counts is above the 95 % quantile of a Poisson variable with the
    incumbent's rate. Silence never promotes.
    """
    if not (canary.sessions and incumbent.sessions):
        return "inconclusive"
    share = canary.sessions / incumbent.sessions
    for name in ("tool_errors", "loops", "format_errors"):
        if getattr(canary, name) > poisson_95(getattr(incumbent, name) * share):
            return "roll_back"
    return "inconclusive"
