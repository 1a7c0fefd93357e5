"""What a panel's router costs a session's first call, beside the same model asked by its name.

    python -m ops.bench.routing [--pairs 200] [--upstream URL --member NAME [--base NAME]]

An engine (embedded, over the reference policy, with one adapter; or the one at URL, which must hold
the adapter NAME) and a gateway as processes of their own, one client. Each pair is two sessions of
two streamed calls, one after the other in an order that changes: one asks for an alias that a panel
answers, whose router is the base and is made to choose the adapter whatever it reads; the other
asks for the adapter by its name, which no router hears of. All go through the gateway.

One line of JSON. `first` and `later` are the two calls of a session: milliseconds from the request
to the first byte of the answer's body, p50 and p99, with the panel (`panel`) and by name (`named`),
`ratio` of each, and `added_ms`, the median of the pairs' own differences. `doubts` counts first
calls that the base answered, whatever the doubt was (the bound is the default).
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx2

from ops.bench.routing.place import (
    ALIAS,
    BASE,
    MEMBER,
    build_routes,
    embedded_engine,
    gateway_process,
)

WARMUP: Final = 10
"""Pairs that are not counted."""
MAX_TOKENS: Final = 8

_SAID: Final = "My order 4711 came broken and I would like to know what became of my refund. "

Json = dict[str, Any]


def time_session(client: httpx2.Client, model: str, session: str) -> tuple[list[float], str]:
    """Return the milliseconds to the first byte of each call of a session, and the answerer of the
    first. Raises HTTPError."""
    times, answerers = [], []
    for turn in range(2):
        body = {
            "model": model, "messages": [{"role": "user", "content": _SAID * (1 + turn)}],
            "max_tokens": MAX_TOKENS, "stream": True,
        }  # fmt: skip
        headers = {"x-kintsugi-session": session}
        began = time.perf_counter()
        with client.stream("POST", "/chat/completions", json=body, headers=headers) as answer:
            answer.raise_for_status()
            chunks = answer.iter_raw()
            next(chunks)
            times.append((time.perf_counter() - began) * 1000)
            for _ in chunks:
                pass
        named = answer.headers["x-kintsugi-adapter"]
        answerers.append(answer.headers.get("x-kintsugi-member", named))
    return times, answerers[0]


def measure(url: str, member: str, pairs: int) -> Json:
    """Return the figures of so many pairs of sessions."""
    times: dict[str, list[list[float]]] = {ALIAS: [], member: []}
    doubts = 0
    with httpx2.Client(base_url=url, timeout=60) as client:
        for pair in range(-WARMUP, pairs):
            for model in (ALIAS, member) if pair % 2 else (member, ALIAS):
                taken, answerer = time_session(client, model, f"{model}-{pair}")
                if pair >= 0:
                    times[model].append(taken)
                    doubts += answerer != member
    figures = {
        name: _compare([row[turn] for row in times[ALIAS]], [row[turn] for row in times[member]])
        for turn, name in enumerate(("first", "later"))
    }
    return {"pairs": pairs, **figures, "doubts": doubts}


def _compare(panel: Sequence[float], named: Sequence[float]) -> Json:
    """Return the percentiles of both in milliseconds, and their ratios."""
    ours, theirs = _percentiles(panel), _percentiles(named)
    differences = [ours - theirs for ours, theirs in zip(panel, named, strict=True)]
    return {
        "panel": ours,
        "named": theirs,
        "ratio": {name: round(ours[name] / theirs[name], 3) for name in ours},
        "added_ms": round(statistics.median(differences), 3),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": len(ordered) // 2, "p99": min(len(ordered) - 1, len(ordered) * 99 // 100)}
    return {name: round(ordered[place], 3) for name, place in at.items()}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--upstream", help="URL of an engine that ends in /v1")
    parser.add_argument("--member", default=MEMBER, help="adapter that it holds")
    parser.add_argument("--base", default=BASE, help="name of its base")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kintsugi-routing-")))
        url = chosen.upstream or stack.enter_context(embedded_engine(folder))
        routes = build_routes(chosen.member, chosen.base)
        gateway = stack.enter_context(gateway_process(folder, url, routes))
        print(json.dumps(measure(gateway, chosen.member, chosen.pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
