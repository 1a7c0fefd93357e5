"""Renders database URLs without secrets. Guarantee: no returned text holds a password, neither
before the host nor in the query. Only known harmless options keep their values."""

from typing import Final
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

HIDDEN: Final = "***"

_SHOWN: Final = frozenset(
    (
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname",
        "gssencmode", "host", "hostaddr", "load_balance_hosts", "port", "require_auth", "sslmode",
        "sslnegotiation", "sslrootcert", "target_session_attrs", "user",
    )
)  # fmt: skip
"""Options of libpq whose values are no secret."""


def parse_database_url(text: str) -> URL:
    """Return a parsed database URL. Raises ValueError whose text quotes nothing of the URL."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Neither text nor cause of the error is kept: they may quote a part of a password.
        url = None
    # If the password contains @, its end is parsed as the beginning of the host.
    if url is None or "@" in (url.host or ""):
        raise ValueError(
            "it cannot be read as a URL; percent-encode what a user or a password has of / @ : # ?"
        )
    return url


def render_database_url(url: URL) -> str:
    """Return a database's URL with `***` for each secret."""
    shown = url.set(query={}).render_as_string(hide_password=True)
    if _is_connection(url):
        shown = url.set(query={}, database="").render_as_string(hide_password=True) + HIDDEN
    query = "&".join(
        f"{quote(name)}={HIDDEN if _is_secret(name, value) else quote(value, safe='/:,')}"
        for name, value in _list_query(url)
    )
    return f"{shown}?{query}" if query else shown


def render_name(name: str) -> str:
    """Return a file name unchanged, or a database URL with `***` for each secret."""
    if "://" not in name:
        return name
    try:
        url = parse_database_url(name)
    except ValueError:
        return HIDDEN
    return render_database_url(url) if _list_secrets(url) else name


def hide_secrets(text: str, url: URL) -> str:
    """Replace each secret of `url` in a text, such as a driver's message, by `***`."""
    forms = (str, quote, quote_plus)
    written = {form(secret) for secret in _list_secrets(url) for form in forms if secret}
    for secret in sorted(written, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _list_secrets(url: URL) -> list[str]:
    secrets = [value for name, value in _list_query(url) if _is_secret(name, value)]
    if _is_connection(url):
        secrets.append(str(url.database))
    return secrets if url.password is None else [*secrets, str(url.password)]


def _is_connection(url: URL) -> bool:
    """Return whether the URL's database name is a libpq connection string."""
    return url.get_backend_name() != "sqlite" and "=" in (url.database or "")


def _is_secret(name: str, value: str) -> bool:
    # A database's name may be a connection string with a password in it.
    return name not in _SHOWN or "=" in value or "://" in value


def _list_query(url: URL) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, values in url.query.items()
        for value in ((values,) if isinstance(values, str) else values)
    ]
