"""The mixture of the customers' tasks: a JSON object `{kind: share}` of kinds of `shop`.

Shares are positive and sum to 1; they are not scaled, so that a forgotten kind is noticed.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from envs.shop.kinds import KINDS
from events.errors import KintsugiError

TOLERANCE: Final = 1e-6


class BadMixture(KintsugiError):
    """A file is not a mixture."""


def read_mixture(path: Path) -> dict[str, float]:
    """Return kind -> share in the order of the file. Raise BadMixture."""
    try:
        content = json.loads(path.read_bytes(), object_pairs_hook=_build_object)
    except OSError as error:
        raise BadMixture(
            f"{path} cannot be read ({error.strerror}); name a JSON file with --mix"
        ) from None
    except (ValueError, RecursionError) as error:
        raise BadMixture(
            f"{path} is no mixture: {error}; write a JSON object {{kind: share}}"
        ) from None
    return check_mixture(content, str(path))


def check_mixture(content: Any, name: str) -> dict[str, float]:
    """Return the shares in `content`. Errors call it `name`. Raise BadMixture."""
    if not isinstance(content, dict) or not content:
        raise BadMixture(
            f"{name} is no mixture: it is no JSON object with a share; write {{kind: share}}"
        )
    for kind, share in content.items():
        if kind not in KINDS:
            raise BadMixture(
                f"{name} names the kind {kind!r}, which the environment shop does not have; it has "
                f"{', '.join(KINDS)}"
            )
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        # JSON has integers beyond the range of floats.
        if not (is_number and 0 < share <= sys.float_info.max):
            raise BadMixture(
                f"{name} gives {kind} the share {repr(share)[:40]}; give it a number above 0, or "
                "leave the kind out"
            )
    total = sum(content.values())
    if round(abs(total - 1), 9) > TOLERANCE:
        raise BadMixture(
            f"the shares of {name} sum to {total:.6g}; change them so that they sum to 1"
        )
    return {kind: float(share) for kind, share in content.items()}


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands in it twice")
    return content


MIX: Final[Mapping[str, float]] = read_mixture(Path(__file__).with_name("mix.json"))
