"""The simulation of customers who say the same."""

from ops.bench.alike import simulate


def test_nobody_is_mixed_and_who_is_unlike_is_whole() -> None:
    alike = simulate(200, at_once=10, openings=3, stop=0.3, chance=0.0)
    unlike = simulate(200, at_once=10, openings=3, stop=0.3, chance=1.0)
    assert (alike["mixed"], unlike["mixed"]) == (0, 0)
    assert (unlike["split"], unlike["whole"]) == (0.0, 1.0)
    assert alike["split"] > 0
