"""Adapters that are brought onto replicas while they are on their way out."""

from daemon.core.decision_log import Decisions
from daemon.serving.staging import Staging
from ops.random_adapters import Adapters
from tests.consumers.deciding import decided, evaluated
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA


def test_what_the_gate_rejected_is_promoted_over_it_while_it_is_loaded(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """Making room unloads what nobody uses, and that is the very adapter."""
    home = make_home(1)
    name, decisions = home.push(adapters["v1"]), Decisions(home.app)
    home.publisher.stage(name, ADA)
    decisions.take(evaluated(name), "evaluated", "a test")
    decisions.take(decided(name, "REJECT"), "rejected", "a test")
    assert (home.state(name), home.loaded()) == ("rejected", [[name]])
    home.publisher.promote(name, ADA, share=0.5, override=True)
    assert home.shares() == {name: 0.5, None: 0.5}
    assert home.loaded() == [[name]]
    assert home.tick().unloaded == []


def test_the_same_adapter_makes_room_for_the_same_one_twice(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """A worker that stages again, for the same cause, meets one that came back meanwhile."""
    home = make_home(1, upstream={"max_loras": 4, "max_cpu_loras": 4})
    first, second = home.serve(adapters["v1"]), home.serve(adapters["v2"])
    home.publisher.pin(home.push(adapters["v3"]), ADA)
    home.publisher.stage(home.push(adapters["v2"], name="v2-again"), ADA)
    wanted = home.row(home.push(adapters["v1"], name="v1-again"))
    staging = Staging(home.app, home.fleet, home.clock)
    states = []
    for _ in range(2):
        staging.make_room(wanted, "staged", staging.replicas(wanted), wanted.cause)
        states.append((home.state(first), first in home.loaded()[0]))
        home.publisher.promote(first, ADA, override=True)
        home.publisher.promote(second, ADA, override=True)
        assert (home.state(first), first in home.loaded()[0]) == ("draining", True)
    assert states == [("unloaded", False)] * 2
