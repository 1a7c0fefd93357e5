"""The list of models with the public aliases in it (an engine's answer -> the gateway's). Pure.

An alias stands behind what the engine lists, on the card of its base: `id` is the alias, `root` and
`parent` the base. Which adapter answers it changes without notice and is not said here.
"""

import json
from collections.abc import Mapping

from producers.gateway.http.wire import Json, encode_json


def with_aliases(listed: bytes, aliases: Mapping[str, str | None]) -> bytes:
    """An engine's list with `aliases`: alias -> name of its base, None where no route says.

    What is no list of models, or one without a base, stays as it is; so do names that it has.
    """
    try:
        document = json.loads(listed)
        cards = document["data"]
        bases = {card["id"]: card for card in cards if not card.get("parent")}
        taken = {card["id"] for card in cards}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return listed
    added = [
        _card(alias, bases.get(base) or next(iter(bases.values())))
        for alias, base in aliases.items()
        if alias not in taken and bases
    ]
    return encode_json({**document, "data": [*cards, *added]}) if added else listed


def _card(alias: str, base: Json) -> Json:
    return {**base, "id": alias, "root": base["id"], "parent": base["id"]}
