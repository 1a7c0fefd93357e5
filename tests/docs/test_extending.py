"""The importer of docs/extending.md imports."""

import re
from pathlib import Path

from producers.importers.documents import shape_of
from producers.importers.records import RolloutImport, Source

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_importer_imports(tmp_path: Path) -> None:
    file = tmp_path / "tickets.jsonl"
    file.write_text(
        '{"ticket": "T1", "turns": [{"role": "user", "content": "Hello"}], "solved": false}\n'
        '{"ticket": "T2", "turns": "none"}\n'
    )
    module: dict[str, object] = {}
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(source, PAGE.name, "exec"), module)
    recognises, read = module["recognises"], module["read"]
    assert callable(recognises)
    assert callable(read)
    assert recognises("lines", frozenset({"ticket", "turns", "solved"}))
    first, second = read(Source(file), shape_of(file))
    assert isinstance(first, RolloutImport)
    assert first.data.success is False
    assert first.data.task is not None
    assert first.data.task.id == "T1"
    assert "turns" in second.reason
