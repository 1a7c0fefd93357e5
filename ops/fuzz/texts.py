"""Time every reader of foreign text on texts that are bad for it, in growing lengths.

    python -m ops.fuzz.texts [--reader NAME ...] [--runs 2]

A reader takes a text that a model, a customer, a tool or a client may have written. Each reader is
timed on each text of `corpus` at 1,000, 2,000 and 20,000 characters; the fastest of several runs
counts. A reader is wrong if its time grows by more than `_MOST_GROWTH` for each doubling of the
length. Times below a floor are too short to compare. Prints one line of JSON with the slowest
readers and what was wrong; exit code 1 if anything was.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import thread_time
from typing import Any, Final

from ops.command_line import build_parser
from ops.fuzz.readers import Reader, list_readers

SIZES: Final = (1_000, 2_000, 20_000)
_MOST_GROWTH: Final = 2.8
"""Largest factor of the time for a doubled length: 2 is linear, 4 quadratic."""
_FLOOR: Final = 0.01
"""Seconds of thread time below which times are not compared."""
_SURE: Final = 4
"""Factor by which runs are repeated before a reader counts as wrong."""
_SLOWEST: Final = 10

PIECES: Final = (
    *(" ", "\n", "\t", " \n", "\u2003", "a", "ab ", "A", "1", "12", "a1", "1a ", "a1a1", "#", "_"),
    *(
        "é",
        "e\u0301",
        "中",
        "’",
        "-",
        "--",
        ".",
        "...",
        "!",
        "?",
        ",",
        ":",
        ";",
        "/",
        "'",
        "@",
        "&",
    ),
    *('"', '\\"', "\\", "\\\\", "\\u0041", "[", "]", "[]", "{", "}", "{}", "[{", "(", "((", "f("),
    *("<", ">", "<a", "</", "<tool_call>", "<tool_call> ", "<tool_call>{", "</tool_call>"),
    *("<reflect>", "<reflect> ", "</reflect>", "<think>", "</think>", "<final>", "```", "```\n"),
    *('{"name":', '{"name": "f", ', '{"name":"f","arguments":{', '"name"', '"parameters":', "[1,"),
    *("zip", "e-mail ", "confirm ", "not ", "n't ", "I can't ", "yes ", "no, ", "please ", "agent"),
    *("agent ", "and ", "exceed", "answer:", "one ", "1,000", "1.", "1.1.", "2024-", "12-", "1-1-"),
    *("a@", "a@b.", "a@b.cc ", "+1", "4111 ", "GB82", "eyJ", "sk-", "-----BEGIN ", "bearer "),
    *("turn off ", "wifi ", "data: x\n\n", "f(a=1)", "f(f(", "1+", "[0]", "x.y."),
)
BEGINNINGS: Final = ("", "<tool_call>", '{"a": "', "I ")


def corpus() -> Iterator[tuple[str, str]]:
    """Yield (beginning, repeated piece) of every text."""
    for piece in dict.fromkeys(PIECES):
        for beginning in BEGINNINGS:
            yield beginning, piece


def write_text(beginning: str, piece: str, size: int) -> str:
    """Return a text of `size` characters: `beginning` and then copies of `piece`."""
    return (beginning + piece * (size // len(piece) + 1))[:size]


def run(
    readers: Mapping[str, Reader],
    texts: Iterable[tuple[str, str]],
    sizes: Sequence[int] = SIZES,
    runs: int = 2,
) -> dict[str, Any]:
    """Time readers on texts and return the result as JSON values."""
    wrong: list[str] = []
    slowest: dict[str, float] = {}
    texts = list(texts)
    for name, read in readers.items():
        for beginning, piece in texts:
            try:
                seconds, fault = _judge(read, beginning, piece, sizes, runs)
            except Exception as error:  # a reader may raise anything, and none should
                seconds, fault = 0.0, f"raises {type(error).__name__}: {error}"
            slowest[name] = max(slowest.get(name, 0.0), seconds)
            if fault is not None:
                wrong.append(f"{name} of {beginning!r} and {piece!r} {fault}"[:300])
                break  # its other texts may take hours
    ranked = sorted(slowest, key=lambda name: -slowest[name])[:_SLOWEST]
    return {
        "readers": len(readers),
        "texts": len(texts),
        "sizes": list(sizes),
        "slowest": {name: round(slowest[name], 4) for name in ranked},
        "wrong": wrong,
    }


def _judge(
    read: Reader, beginning: str, piece: str, sizes: Sequence[int], runs: int
) -> tuple[float, str | None]:
    """Return the seconds for the longest text, and an error if the time grows too fast."""
    before, size_before = math.inf, sizes[0]
    for size in sizes:
        most = before * _MOST_GROWTH ** math.log2(size / size_before)
        seconds = _time(read, beginning, piece, size, runs)
        if seconds > max(most, _FLOOR):
            # Other work may have slowed one measurement: repeat both, with more runs.
            before = _time(read, beginning, piece, size_before, runs * _SURE)
            seconds = min(seconds, _time(read, beginning, piece, size, runs * _SURE))
            most = before * _MOST_GROWTH ** math.log2(size / size_before)
        if seconds > max(most, _FLOOR):
            return seconds, (
                f"takes {before * 1000:.2f} ms for {size_before:,} characters and "
                f"{seconds * 1000:.2f} ms for {size:,}"
            )
        before, size_before = seconds, size
    return before, None


def _time(read: Reader, beginning: str, piece: str, size: int, runs: int) -> float:
    """Return the least seconds of several runs. Each has another text, because readers cache."""
    least = math.inf
    for number in range(runs):
        text = write_text(beginning, piece, size - number)
        start = thread_time()
        read(text)
        least = min(least, thread_time() - start)
    return least


def main() -> int:
    """Run the command line."""
    parser = build_parser(__doc__)
    readers = list_readers()
    parser.add_argument("--reader", action="append", choices=sorted(readers), help="default: all")
    parser.add_argument("--runs", type=int, default=2, help="runs of each text")
    options = parser.parse_args()
    chosen = {name: readers[name] for name in options.reader or readers}
    result = run(chosen, corpus(), runs=options.runs)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
