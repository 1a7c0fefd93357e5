"""The listener with TLS and SASL of a broker: an authority, a certificate, a user and a password.

    secured = Secured(folder, port)
    secured.properties(plain, controller)     what server.properties has to say
    secured.client                            what a client has to say, as settings of kintsugi

Everything is made anew for each object, so it suits a broker that lives no longer than it.
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

from daemon.settings import KafkaSecurity

USER: Final = "kintsugi"
MECHANISM: Final = "SCRAM-SHA-512"


class Secured:
    """One listener of one broker."""

    def __init__(self, folder: Path, port: int) -> None:
        self.bootstrap = f"localhost:{port}"
        self._folder = folder
        self._password = secrets.token_hex(16)
        self._authority = trustme.CA()
        folder.mkdir(parents=True, exist_ok=True)
        self._authority.cert_pem.write_to_path(self._ca_file)
        self._store()

    @property
    def _ca_file(self) -> str:
        return str(self._folder / "ca.pem")

    @property
    def _key_store(self) -> Path:
        return self._folder / "broker.pem"

    def _store(self) -> None:
        """Key and chain in one file, the key as PKCS #8, which is all that Kafka reads."""
        issued = self._authority.issue_cert("localhost")
        key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        self._key_store.write_bytes(plain + chain)

    @property
    def user(self) -> str:
        """As the tool that formats a broker's folder is told."""
        return f"{MECHANISM}=[name={USER},password={self._password}]"

    @property
    def client(self) -> KafkaSecurity:
        """What a client needs."""
        return KafkaSecurity.model_validate(
            {
                "protocol": "SASL_SSL", "ca_file": self._ca_file, "mechanism": MECHANISM,
                "username": USER, "password": self._password,
            }
        )  # fmt: skip

    def properties(self, plain: str, controller: str) -> dict[str, str]:
        """Of a broker with a listener without security too, which it talks to itself by."""
        return {
            "listeners": f"PLAINTEXT://{plain},SECURED://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{plain},SECURED://{self.bootstrap}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": MECHANISM,
            "listener.name.secured.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._key_store),
        }
