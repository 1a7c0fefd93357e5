"""A file of definitions: lines of any length, from a file or a pipe."""

import os
import threading
from io import BytesIO

import pytest

from daemon.proposer.additions import read_definitions
from daemon.proposer.candidate import MOST_BODY

SHORT = b'{"environment": "shop"}'
LONG = b"x" * (3 * MOST_BODY)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n \n", []),
        (SHORT, [("line 1", SHORT)]),
        (b'{\n "a": 1\n}', [("line 1", b'{\n "a": 1\n}')]),
        (b"[\n {},\n {}\n]\n", [("line 1", b"[\n {},\n {}\n]\n")]),
        (SHORT + b"\n\n" + SHORT, [("line 1", SHORT + b"\n"), ("line 3", SHORT)]),
        (LONG + b"\n" + SHORT + b"\n", [("line 1", None), ("line 2", SHORT + b"\n")]),
        (SHORT + b"\n" + LONG, [("line 1", SHORT + b"\n"), ("line 2", None)]),
        (LONG, [("line 1", None)]),
        (b"y" * MOST_BODY + b"\n", [("line 1", None)]),
    ],
    ids=[
        "empty", "blank", "one", "many lines", "a list", "two", "long first", "long last",
        "long", "edge",
    ],
)  # fmt: skip
def test_each_line_is_read_once_whatever_its_length(
    content: bytes, expected: list[tuple[str, bytes | None]]
) -> None:
    assert [(raw.position, raw.text) for raw in read_definitions(BytesIO(content))] == expected


def test_a_pipe_is_read_as_a_file_is() -> None:
    reading, writing = os.pipe()
    lines = [SHORT + b"\n"] * 20_000

    def write() -> None:
        with open(writing, "wb") as file:
            file.writelines(lines)

    thread = threading.Thread(target=write)
    thread.start()
    with open(reading, "rb") as file:
        texts = [raw.text for raw in read_definitions(file)]
    thread.join()
    assert texts == lines
