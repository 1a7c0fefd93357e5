"""Render pages in a headless Chromium, for tests of layout and for pictures in the docs.

    python -m ops.browser URL FILE.png [WIDTH HEIGHT]

Each call starts a browser with a fresh profile and deletes the profile afterwards.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from events.errors import KintsugiError

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_SECONDS: Final = 60.0
_SIZE: Final = (1280, 800)


class BrowserUnavailable(KintsugiError):
    """Chromium is not installed."""


class BrowserError(KintsugiError):
    """The browser ended without a document or picture."""


def program() -> str:
    """Return the browser's path. Raise BrowserUnavailable without one."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        raise BrowserUnavailable("Chromium is not installed; apt-get install chromium")
    return path


def dom(url: str) -> str:
    """Return the HTML of a loaded page. Raise BrowserUnavailable or BrowserError."""
    return _run(url, "--dump-dom")


def picture(url: str, into: Path, size: tuple[int, int] = _SIZE) -> None:
    """Write a page as a PNG file. Raise BrowserUnavailable or BrowserError."""
    width, height = size
    _run(
        url, f"--screenshot={into.absolute()}", f"--window-size={width},{height}",
        "--hide-scrollbars",
    )  # fmt: skip
    if not into.exists():
        raise BrowserError(f"the browser made no picture of {url}")


def _run(url: str, *wanted: str) -> str:
    with tempfile.TemporaryDirectory(prefix="kintsugi-browser-") as profile:
        command = [
            program(), "--headless", "--disable-gpu", "--disable-dev-shm-usage",
            # Chromium's sandbox needs rights that containers lack; the pages are ours.
            "--no-sandbox", f"--user-data-dir={profile}", *wanted, url,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BrowserError(f"the browser took over {_SECONDS:g} s for {url}") from error
    if done.returncode != 0:
        raise BrowserError(f"the browser ended with {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def main(arguments: list[str]) -> None:
    """Write a picture of a page."""
    url, into, *size = arguments
    width, height = map(int, size) if size else _SIZE
    picture(url, Path(into), (width, height))


if __name__ == "__main__":
    main(sys.argv[1:])
