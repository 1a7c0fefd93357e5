"""Writes the table of settings of docs/configuration.md: `python -m tests.docs.write_settings`.

Setting, variable and default are the program's. The meaning is the page's own, which may say more
than the declaration and link to other pages; a setting that the page has not yet gets that of its
declaration. Rows of settings that are gone go too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from daemon.config.reference import SettingEntry, list_settings
from daemon.config.settings import Settings

PAGE: Final = Path(__file__).parents[2] / "docs" / "configuration.md"
_HEADING: Final = "\n## Settings\n"
_RULE: Final = "|---|---|---|---|\n"


def meanings(text: str) -> dict[str, str]:
    """Setting -> what the page says of it."""
    table = text.split(_HEADING)[1].split("\n## ")[0]
    rows = [line.strip("|").split("|", 3) for line in table.splitlines() if line[:3] == "| `"]
    return {cells[0].strip(" `"): cells[3].strip() for cells in rows}


def row(one: SettingEntry, said: Mapping[str, str]) -> str:
    """One line of the table."""
    default = _default(one.setting)
    shown = f"`{default}`" if default not in (None, "", ()) else ""
    cells = (f"`{one.setting}`", f"`{one.variable}`", shown, said.get(one.setting, one.meaning))
    return "| " + " | ".join(cells).replace("|  |", "| |") + " |\n"


def _default(name: str) -> object:
    """As Python writes it."""
    model: type = Settings
    *sections, last = name.split(".")
    for section in sections:
        model = model.model_fields[section].annotation  # type: ignore[attr-defined]
    default: object = model.model_fields[last].default  # type: ignore[attr-defined]
    return default


def written(text: str) -> str:
    """The page with the table of this version."""
    before, rest = text.split(_HEADING)
    head, table = rest.split(_RULE)
    after = table[table.index("\n\n") + 1 :]
    rows = "".join(row(one, meanings(text)) for one in list_settings())
    return f"{before}{_HEADING}{head}{_RULE}{rows}{after}"


def main() -> None:
    """Write it."""
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    main()
