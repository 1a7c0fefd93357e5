"""What a longer history costs whoever asks the tables with every tick, and a status page.

    python -m ops.bench.history [--rollouts 20000]

Method. Rollouts of the mix of mix.py are folded into two homes on SQLite, all of them and a tenth,
and a round is closed over each. Then each question is asked ASKED times of both, in turn, and the
cheapest answer counts, in processor time: `ms` of all rollouts, and `all_over_tenth`, 1 where a
longer history costs nothing more and 10 where all of it is read.

    agents       which agents there are and on which base (role `schedule`, every tick)
    newest       the time of their newest rollouts (role `schedule`, every scrape)
    scheduling   what the scheduler decides on; here no cycle has read anything, so all is unread
    situation    `kintsugi status` and the status page
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from consumers import agents
from consumers.scheduling import scheduling
from daemon.app import App
from daemon.settings import Settings
from daemon.situation import situation
from events.envelope import utc_now
from ops.bench.mix import PERIOD, event

ASKED: Final = 5
_APPENDED: Final = 2_000


def home(folder: Path, rollouts: int) -> App:
    """A home whose tables hold so many rollouts, counted by one round."""
    app = App(Settings.model_validate({"home": folder, "log": {"durability": "process"}}))
    place = PERIOD.index("rollout")
    for start in range(0, rollouts, _APPENDED):
        numbers = range(start, min(start + _APPENDED, rollouts))
        app.append([event(number * len(PERIOD) + place).entry for number in numbers])
    app.diagnose("diagnose")
    return app


def questions(app: App) -> dict[str, Callable[[], object]]:
    """Each of a view of its own, as who asks has it."""

    def present() -> object:
        with app.reading() as connection:
            return agents.present(connection)

    def newest() -> object:
        with app.reading() as connection:
            return agents.newest_rollouts(connection)

    with app.reading() as connection:
        (pair,) = agents.present(connection)

    def numbers() -> object:
        with app.reading() as connection:
            return scheduling(connection, *pair, utc_now())

    return {
        "agents": present,
        "newest": newest,
        "scheduling": numbers,
        "situation": lambda: situation(app),
    }


def measure(folder: Path, rollouts: int) -> dict[str, Any]:
    """The benchmark as one document."""
    with ExitStack() as opened:
        tenth, whole = (
            questions(opened.enter_context(home(folder / str(count), count)))
            for count in (rollouts // 10, rollouts)
        )
        found = {name: _cheapest(tenth[name], whole[name]) for name in whole}
    return {
        "benchmark": "history",
        "rollouts": rollouts,
        "ms": {name: round(1000 * more, 2) for name, (_, more) in found.items()},
        "all_over_tenth": {name: round(more / less, 2) for name, (less, more) in found.items()},
    }


def _cheapest(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    taken = [(_taken(one), _taken(other)) for _ in range(ASKED)]
    return min(less for less, _ in taken), min(more for _, more in taken)


def _taken(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return time.process_time() - began


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder:
        print(json.dumps(measure(Path(folder), options.rollouts), indent=2))


if __name__ == "__main__":
    main()
