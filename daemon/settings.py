"""Settings: declared once, composed from flags, environment, a TOML file and defaults.

Order: flags, `KINTSUGI_*`, TOML (`$KINTSUGI_CONFIG`, else `./kintsugi.toml`, else `kintsugi.toml`
in HOME), defaults. An unknown key is an error that names it.
"""

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from events.errors import KintsugiError
from events.registry import first_problem


class ConfigurationError(KintsugiError):
    """A setting that cannot be used."""


class Section(BaseModel):
    """A nested group of settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaSecurity(Section):
    """TLS and SASL of the Kafka client."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password: SecretStr | None = None


class Kafka(Section):
    """How to talk to the broker that `kafka_bootstrap_servers` names."""

    replication_factor: int = Field(default=1, ge=1)
    min_insync_replicas: int = Field(default=1, ge=1)
    security: KafkaSecurity = KafkaSecurity()


class Log(Section):
    """The embedded log."""

    durability: Literal["power", "process"] = "power"
    """`power`: an acknowledged event survives a power cut; `process`: a killed process."""


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix="KINTSUGI_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    home: Path = Path("~/.local/share/kintsugi")
    """Folder for the embedded log, database, blobs, adapters and reports."""
    database_url: SecretStr | None = None
    """Projection database; SQLite in HOME when unset. Secret because it may hold a password."""
    kafka_bootstrap_servers: str = ""
    """Empty: the embedded log only."""
    benchmarks: Path | None = None
    """Folder of real benchmark data."""
    kafka: Kafka = Kafka()
    log: Log = Log()

    @field_validator("home", "benchmarks")
    @classmethod
    def _expanded(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, TOML; no .env file, which would be one place too many."""
        toml = TomlConfigSettingsSource(settings_cls, config_file())
        return init_settings, env_settings, toml

    @property
    def database(self) -> str:
        """The database's URL."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.home / 'kintsugi.db'}"


def config_file() -> Path | None:
    """The TOML file in force; None when there is none."""
    named = os.environ.get("KINTSUGI_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigurationError(
                f"KINTSUGI_CONFIG names {path}, which is no file; unset it or write the file"
            )
        return path
    home = Path(os.environ.get("KINTSUGI_HOME") or Settings.model_fields["home"].default)
    for path in (Path("kintsugi.toml"), home.expanduser() / "kintsugi.toml"):
        if path.is_file():
            return path
    return None


def load(**flags: Any) -> Settings:
    """The settings in force; `flags` that are None were not given."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise ConfigurationError(
            f"setting {first_problem(error)}; see docs/configuration.md"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{config_file()} is no TOML: {error}") from error
