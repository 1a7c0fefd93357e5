"""The list of models with the public aliases in it (an engine's answer -> the gateway's). Pure.

An alias stands behind what the engine lists, on the card of its base: `id` is the alias, `root` and
`parent` the base. Which adapter answers it changes without notice and is not said here. Adapters
that clients cannot name are left out.
"""

import json
from collections.abc import Collection, Mapping

from producers.gateway.http.wire import Json, encode_json


def with_aliases(
    listed: bytes, aliases: Mapping[str, str | None], hidden: Collection[str] = ()
) -> bytes:
    """An engine's list with `aliases`: alias -> name of its base, None where no route says; without
    the adapters in `hidden`.

    What is no list of models stays as it is; so do names that it has. One without a base gets no
    alias.
    """
    try:
        document = json.loads(listed)
        cards = [card for card in document["data"] if card["id"].partition("~")[0] not in hidden]
        bases = {card["id"]: card for card in cards if not card.get("parent")}
        taken = {card["id"] for card in cards}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return listed
    added = [
        _card(alias, bases.get(base) or next(iter(bases.values())))
        for alias, base in aliases.items()
        if alias not in taken and bases
    ]
    if not added and len(cards) == len(document["data"]):
        return listed
    return encode_json({**document, "data": [*cards, *added]})


def _card(alias: str, base: Json) -> Json:
    return {**base, "id": alias, "root": base["id"], "parent": base["id"]}
