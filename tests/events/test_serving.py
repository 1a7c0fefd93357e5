"""What a decision about adapters and routes may say."""

import pytest
from pydantic import ValidationError

from events.serving import AdapterStaged, RouteChanged, RouteShare


def route(*shares: tuple[str | None, float], shadow: str | None = None) -> RouteChanged:
    parts = tuple(RouteShare(adapter=name, share=share) for name, share in shares)
    return RouteChanged(alias="agent", base="base", shares=parts, shadow=shadow, why="operator")


def test_shares_that_sum_to_one_are_a_route() -> None:
    assert len(route(("a", 0.1), ("b", 0.2), (None, 0.7)).shares) == 3


@pytest.mark.parametrize(
    ("shares", "shadow", "says"),
    [
        ([], None, "at least 1 item"),
        ([("a", 0.5)], None, "the shares sum to 0.5, not to 1"),
        ([("a", 0.5), ("b", 0.6)], None, "the shares sum to 1.1"),
        ([("a", 0.5), ("a", 0.5)], None, "somebody has two shares: a, a"),
        ([(None, 0.5), (None, 0.5)], None, "somebody has two shares"),
        ([("a", 0.0), ("b", 1.0)], None, "greater than 0"),
        ([("a", 1.0)], "a", "a has a share and is the shadow as well"),
    ],
)
def test_anything_else_is_none(
    shares: list[tuple[str | None, float]], shadow: str | None, says: str
) -> None:
    with pytest.raises(ValidationError, match=says):
        route(*shares, shadow=shadow)


def test_the_base_alone_has_no_shadow_by_having_no_name() -> None:
    assert route((None, 1.0)).shadow is None


def test_an_adapter_is_staged_somewhere() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        AdapterStaged(adapter="a", replicas=(), distance=0.0, from_base=1.0)
