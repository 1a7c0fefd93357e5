"""The driver of bad texts runs every reader, and reports one that takes more than linear time."""

import re

from ops.fuzz.readers import Reader, list_readers
from ops.fuzz.texts import corpus, run, write_text


def test_every_reader_reads_bad_texts() -> None:
    readers = list_readers()
    result = run(readers, [*corpus()][::40], sizes=(40, 80), runs=1)
    assert (result["readers"], result["sizes"]) == (len(readers), [40, 80])
    assert [fault for fault in result["wrong"] if "raises" in fault] == []


def test_a_reader_of_cubic_time_is_reported() -> None:
    cubic = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
    readers: dict[str, Reader] = {"planted": cubic.search, "linear": str.split}
    result = run(readers, [("", "a"), ("<tool_call>", " ")], sizes=(300, 600), runs=1)
    (fault,) = result["wrong"]
    assert fault.startswith("planted of '<tool_call>' and ' ' takes")
    assert next(iter(result["slowest"])) == "planted"


def test_a_reader_that_raises_is_reported() -> None:
    def read(text: str) -> int:
        return int(text)

    (fault,) = run({"number": read}, [("", "1"), ("", "a")], sizes=(3, 6))["wrong"]
    assert fault.startswith("number of '' and 'a' raises ValueError")


def test_a_text_has_its_size_and_begins_as_it_should() -> None:
    assert write_text("{", "zip", 6) == "{zipzi"
    assert write_text("a longer beginning", " ", 6) == "a long"
