"""Listeners of a broker with TLS: one with SASL user and password, one with client certificates.

Each object makes a new authority, certificates and a password, so a broker must use one object all
its life.
"""

import secrets
from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from daemon.config.settings import KafkaSecurity

USER: Final = "kintsugi"
MECHANISM: Final = "SCRAM-SHA-512"


class SecureListeners:
    """The two listeners of one broker."""

    def __init__(self, folder: Path, port: int, other: int) -> None:
        self.bootstrap = f"localhost:{port}"
        self.mutual = f"localhost:{other}"
        self._folder = folder
        self._password = secrets.token_hex(16)
        self._authority = trustme.CA()
        folder.mkdir(parents=True, exist_ok=True)
        self._authority.cert_pem.write_to_path(self._at("ca.pem"))
        self._store("broker.pem", self._authority.issue_cert("localhost"))
        self._store("client.pem", self._authority.issue_cert("client.localhost"))

    def _at(self, name: str) -> str:
        return str(self._folder / name)

    def _store(self, name: str, issued: trustme.LeafCert) -> None:
        """Write a key (as PKCS #8, which Kafka needs) and its certificate chain into one file."""
        key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        (self._folder / name).write_bytes(plain + chain)

    @property
    def user(self) -> str:
        """Return user and password in the format of Kafka's storage tool."""
        return f"{MECHANISM}=[name={USER},password={self._password}]"

    @property
    def client(self) -> KafkaSecurity:
        """Return the settings of a client with a password."""
        return KafkaSecurity.model_validate(
            {
                "protocol": "SASL_SSL", "ca_file": self._at("ca.pem"), "mechanism": MECHANISM,
                "username": USER, "password": self._password,
            }
        )  # fmt: skip

    @property
    def certificate_client(self) -> KafkaSecurity:
        """Return the settings of a client with a certificate."""
        held = Path(self._at("client.pem"))
        return KafkaSecurity(
            protocol="SSL", ca_file=Path(self._at("ca.pem")), certificate_file=held, key_file=held
        )

    def properties(self, plain: str, controller: str) -> dict[str, str]:
        """Return the broker's properties; its own traffic uses the listener at `plain`."""
        listeners = f"PLAINTEXT://{plain},SECURED://{self.bootstrap},MUTUAL://{self.mutual}"
        return {
            "listeners": f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": MECHANISM,
            "listener.name.secured.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "listener.name.mutual.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._at("broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._at("ca.pem"),
        }
