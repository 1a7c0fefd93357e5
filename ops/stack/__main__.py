"""The whole loop on a real stack of this machine: Kafka, PostgreSQL, vLLM, a process per role.

    python -m ops.stack [--home FOLDER] [--fresh] [--seed N] [--small] [--keep]

Starts one broker, one PostgreSQL, one vLLM (CPU build) over the reference policy, and then
`kintsugi consume`, `ship`, `gateway`, `schedule` and `work`, all by the one kintsugi.toml of the
folder. The demo's customers talk to the gateway until the first cycle has ended. Then the answering
policies are proven, and the log is folded again into fresh tables, which must be equal. At the end
everything is stopped in reverse order, also after an interrupt or a failure. The same command
continues a stopped home. Needs what `make components learner` installs. Exit code 0 when an adapter
was promoted, 3 when the cycle had another outcome, 1 on a failure.
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from consumers.reads.explanation import explain
from daemon.cli.explain import tree
from daemon.config.settings import Settings
from daemon.core.app import App
from events.errors import KintsugiError
from ops.command_line import build_parser
from ops.demo import view
from ops.demo.children import Children, end_jobs
from ops.demo.ending import is_rebuild_equal, short
from ops.demo.follow import Clock, follow
from ops.demo.place import ALIAS, SEEDS, SIZES, Place, make
from ops.demo.watch import look
from ops.stack.proof import RouteProof, proof
from ops.stack.services import ROLES, Addresses, Services

SERVICES: Final = Path(__file__).with_name("services.toml")
PROMOTED, FAILED, OTHERWISE, INTERRUPTED = 0, 1, 3, 130
_LOOK_SECONDS: Final = 0.5


def main() -> int:
    """Run the command line."""
    options = _parser().parse_args()
    # On SIGTERM, stop everything that was started, as on an interrupt.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else view.WIDTH)
    size = replace(SIZES["least" if options.small else "whole"], seed=options.seed)
    try:
        place = make(options.home, size, fresh=options.fresh, services=SERVICES)
        return run(place, console, keep=options.keep)
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def run(place: Place, console: Console, *, keep: bool) -> int:
    """Start everything, follow the first cycle to its end, report, stop; return the exit code."""
    at = Addresses.of(place)
    console.print(f"starting Kafka ({at.kafka}), PostgreSQL, vLLM ({at.engine})", markup=False)
    with Services(place), _open_place(place) as app:
        console.print(f"in a browser: {place.page(app.settings.gateway.port)}", soft_wrap=True)
        clock = Clock(place)
        with Children(place, ROLES) as children:
            follow(app, place, console, clock, children)
            tell(app, console, proof(app, place))
            equal = is_rebuild_equal(place)
            words = "equal, row for row" if equal else "NOT EQUAL"
            console.print(f"\nThe tables, folded again from Kafka: {words}.")
            if keep:
                _keep(app, place, console, children)
        cycle = look(app).cycle
    assert cycle is not None, "it was followed to its end"
    if not equal:
        return FAILED
    return PROMOTED if cycle.outcome == "promoted" else OTHERWISE


@contextmanager
def _open_place(place: Place) -> Iterator[App]:
    settings: Settings = place.settings()
    try:
        with App(settings) as app:
            app.settle()
            yield app
    finally:
        end_jobs(settings)


def tell(app: App, console: Console, answered: RouteProof) -> None:
    """Print the results of the cycle and the policies that answer."""
    seen = look(app)
    if seen.adapter is not None:
        with app.reading() as connection:
            console.print("\n[bold]Why this adapter[/bold]")
            console.print(tree(short(explain(connection, seen.adapter.adapter))))
    console.print("\n[bold]Customers[/bold]")
    for tally in seen.live:
        console.print(
            f"  {tally.policy}: {tally.rate:.1%} of {tally.judged:,} served well", markup=False
        )
    console.print("\n[bold]Who answers[/bold]")
    for name, count in answered.calls.items():
        console.print(f"  {name}: {count} of {sum(answered.calls.values())} new sessions")
    for name, result in answered.proofs.items():
        console.print(
            f"  {name} on vLLM: {result.distance:.6f} nats from what its files come to, "
            f"{result.from_base:.3f} from its base",
            soft_wrap=True,
        )


def _keep(app: App, place: Place, console: Console, children: Children) -> None:
    for line in (
        f"\nIt runs until you stop it (Ctrl-C). Customers' key: {place.home}/customers.key",
        f"  http://127.0.0.1:{app.settings.gateway.port}/v1 answers, model {ALIAS}",
        f"  KINTSUGI_CONFIG={place.config} KINTSUGI_HOME={place.home} .venv/bin/kintsugi status",
    ):
        console.print(line, soft_wrap=True)
    while True:
        children.look_after()
        time.sleep(_LOOK_SECONDS)


def _parser() -> argparse.ArgumentParser:
    parser = build_parser(__doc__)
    parser.add_argument("--home", type=Path, default=Path(".local/stack"), metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument(
        "--seed", type=int, choices=range(SEEDS), default=0, metavar="N", help="other customers"
    )
    parser.add_argument("--small", action="store_true", help="too little to learn from, but fast")
    parser.add_argument("--keep", action="store_true", help="go on until an interrupt")
    return parser


if __name__ == "__main__":
    sys.exit(main())
