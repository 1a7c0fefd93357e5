"""Write migrations/head.sql anew: what all revisions make of an empty SQLite database.

    python -m ops.tables

Is run whenever a revision is added; a test fails until then.
"""

import tempfile
from pathlib import Path

from consumers.database import open_database, sqlite_url
from migrations.head import STATEMENTS, describe
from migrations.upgrade import run_revisions


def lay_out_by_revisions(folder: Path) -> str:
    """Return the statements of the tables that the revisions make, in a file of this folder."""
    engine = open_database(sqlite_url(folder / "revisions.db"))
    try:
        run_revisions(engine)
        return describe(engine)
    finally:
        engine.dispose()


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        STATEMENTS.write_text(lay_out_by_revisions(Path(folder)))
    print(STATEMENTS)


if __name__ == "__main__":
    main()
