"""The configuration of docs/operating.md is read."""

import os
import re
from pathlib import Path

import pytest

from daemon.config.settings import load

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


def test_the_configuration_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KINTSUGI_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "kintsugi.toml"
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    file.write_text(text)
    monkeypatch.setenv("KINTSUGI_CONFIG", str(file))
    settings = load()
    assert settings.kafka.security.username == "kintsugi"
    assert settings.log.durability == "power"
