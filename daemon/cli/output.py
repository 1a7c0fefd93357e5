"""The output of a command: data on stdout, messages on stderr. With `--json` stdout holds exactly
one JSON document (JSON Lines for streams of events). Progress is shown only on a terminal. Control
characters in rollouts are made visible, so that no recorded text controls a terminal."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_UNWRAPPED: Final = 10_000
"""Width of text if stdout is no terminal: a script that cuts out columns needs whole ones."""

_CONTROL: Final = {
    code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"
} | {0x7F: 0x2421} | dict.fromkeys(
    (*range(128, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 65533
)  # fmt: skip
"""Visible forms of C0 and C1 controls, DEL, and characters that turn text (Unicode's UAX 9)."""

_LINE_BREAKS: Final = {ord("\n"): 0x240A, ord("\t"): 0x2409, 0x2028: 0xFFFD, 0x2029: 0xFFFD}
"""Visible forms of characters that would begin a new line or jump to another column."""


@dataclass(frozen=True, slots=True)
class Output:
    """The output options of one run of a command."""

    json: bool = False
    quiet: bool = False

    def document(self, value: Any) -> None:
        """Write the single JSON document of a run, or one line of JSON Lines."""
        sys.stdout.write(as_json(value) + "\n")

    def show(self, *renderables: "RenderableType", columns: int = _UNWRAPPED) -> None:
        """Print text for people on stdout. If stdout is no terminal, the text is `columns` wide."""
        console = _console(columns)
        for renderable in renderables:
            if isinstance(renderable, str):
                renderable = plain(renderable)
            # The terminal itself wraps long lines, so that they can be copied as one line.
            console.print(renderable, soft_wrap=isinstance(renderable, str))

    def report(self, document: Any, *texts: str) -> None:
        """Print a result: with `--json` its document, else its texts."""
        if self.json:
            self.document(document)
        else:
            self.show(*texts)

    def show_rows(
        self,
        rows: Sequence[Any],
        columns: "Columns",
        nothing: str = "",
        describe: Callable[[Any], Any] = asdict,
    ) -> None:
        """Print rows as a table, or as JSON by `describe`; without rows, hint `nothing`."""
        if self.json:
            self.document([describe(row) for row in rows])
        elif rows:
            self.show(columns.build_table(rows))
        if not rows and nothing:
            self.hint(nothing)

    @property
    def columns(self) -> int:
        """Return the width of text on stdout, in columns of characters."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNWRAPPED

    def hint(self, text: str) -> None:
        """Print a hint on stderr, unless `--quiet` is set."""
        if not self.quiet:
            print(plain(text), file=sys.stderr)

    def warn(self, text: str) -> None:
        """Print a warning on stderr in one line; no flag suppresses it."""
        print(f"warning: {plain_line(text)}", file=sys.stderr)

    @contextmanager
    def progress(
        self,
        doing: str,
        total: int | None = None,
        unit: Literal["events", "bytes", "episodes", "answers", "tasks"] = "events",
    ) -> Iterator[Callable[[int], None]]:
        """Show progress on stderr, if it is a terminal; yield a function that adds done units."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        with bar:
            task = bar.add_task(doing, total=total)
            yield lambda count: bar.advance(task, count)


def as_json(value: Any) -> str:
    """Return one line of strict JSON; characters that stdout cannot write are escaped."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return json.dumps(
        value, ensure_ascii=encoding != "utf8", allow_nan=False, separators=(",", ":")
    )


def plain(text: str) -> str:
    """Return the text with its control characters made visible."""
    return text.translate(_CONTROL)


def plain_line(text: str) -> str:
    """Return the text as one line, with control characters and line breaks made visible."""
    return plain(text).translate(_LINE_BREAKS)


class Columns:
    """The columns of a list of rows, for its table and its JSON.

    A column is a name, which is also the name of the row's field, or a pair of a name and its
    source. The source is the path of a field (`counts.tries`), a path with a format that turns a
    number into text (`counts.tries:,`), or a function of the row. A path through None gives None.
    """

    def __init__(
        self,
        *columns: str | tuple[str, str | Callable[[Any], Any]],
        right: Sequence[str] = (),
        whole: Sequence[str] = (),
    ) -> None:
        pairs = [(column, column) if isinstance(column, str) else column for column in columns]
        self._readers = {
            name: _make_reader(*value.partition(":")[::2]) if isinstance(value, str) else value
            for name, value in pairs
        }
        self._right, self._whole = right, whole

    def document(self, row: Any) -> dict[str, Any]:
        """Return column name -> value for one row."""
        return {name: read(row) for name, read in self._readers.items()}

    def build_table(self, rows: Iterable[Any]) -> Any:
        """Return the table of the rows; see `table` for `right` and `whole`."""
        cells = [list(self.document(row).values()) for row in rows]
        return table(list(self._readers), cells, right=self._right, whole=self._whole)


def _make_reader(path: str, form: str) -> Callable[[Any], Any]:
    def read(row: Any) -> Any:
        value = row
        for name in path.split("."):
            if value is None:
                break
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        return format(value, form) if form and value is not None else value

    return read


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> Any:
    """Return a table without frames. None gives an empty cell; line breaks in a cell are made
    visible. Columns in `right` are aligned right; these and those in `whole` are never wrapped."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    grid = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        grid.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column in right or column in whole,
            overflow="fold",
        )
    for row in rows:
        grid.add_row(*map(_write_cell, row))
    return grid


def format_interval(interval: dict[str, float] | None) -> str | None:
    """Return a value with the bounds of its 95 % interval as text; None without an interval."""
    if interval is None:
        return None
    return f"{interval['value']:.3f} [{interval['low']:.2f}, {interval['high']:.2f}]"


def _write_cell(cell: Any) -> "Text":
    from rich.text import Text

    text = cell if isinstance(cell, Text) else Text("" if cell is None else str(cell))
    text.plain = plain_line(text.plain)
    return text


def facts(values: Mapping[str, Any]) -> Any:
    """Return names and values, one pair per line; only a Text may have several lines."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in values.items():
        grid.add_row(
            plain_line(name), value if isinstance(value, Text) else _write_cell(str(value))
        )
    return grid


def _console(columns: int) -> "Console":
    from rich.console import Console

    width = None if sys.stdout.isatty() else columns
    return Console(highlight=False, markup=False, emoji=False, width=width)
