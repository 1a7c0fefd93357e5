"""Checks whether a broker admits this client, before kafka-python connects. For an untrusted
certificate, a wrong password, or a TLS port without TLS, kafka-python 3.0 waits for its time-out
and then says "Unable to bootstrap". This module does TLS and SASL first and names the cause."""

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Final

import kafka.errors as theirs
from kafka.net.sasl import get_sasl_mechanism

from events.errors import LogError, LogReadOnly, LogUnavailable

_CLIENT: Final = b"kintsugi"
_METADATA: Final = 3
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_VERSION: Final = 1
"""Version of all three requests: supported since Kafka 1.0, without tagged fields."""
_LARGEST_ANSWER: Final = 1 << 20


def greet(plain: socket.socket, host: str, security: Mapping[str, str]) -> None:
    """Do the TLS and SASL handshakes that the settings ask for, then close `plain`. Raises
    LogUnavailable if TLS fails, LogReadOnly if the broker refuses the credentials."""
    protocol = security.get("security_protocol", "PLAINTEXT")
    with plain:
        channel = _start_tls(plain, host, security) if protocol.endswith("SSL") else plain
        with channel:
            if protocol.startswith("SASL"):
                _authenticate(channel, host, security)
            elif protocol == "SSL":
                _probe_access(channel, host)


def speaks_tls(host: str, port: int, timeout_seconds: float) -> bool:
    """Return whether a TLS handshake succeeds there, with any certificate."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout_seconds) as plain,
            anybody.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def _start_tls(plain: socket.socket, host: str, security: Mapping[str, str]) -> ssl.SSLSocket:
    where = f"{host}:{plain.getpeername()[1]}"
    context = _context(security)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise LogUnavailable(
            f"the certificate of {where} cannot be trusted ({error.verify_message}); have "
            "kafka.security.ca_file name the authority that signed it, and kafka_bootstrap_servers "
            "a name that it is for; it is tried again"
        ) from error
    except OSError as error:
        raise LogUnavailable(
            f"{where} does not speak TLS with this client ({error}), and kafka.security.protocol "
            f"is {security['security_protocol']}; name the port of a TLS listener, and the "
            "certificate where it asks for one; it is tried again"
        ) from error


def _context(security: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if "ssl_cafile" in security:
            context.load_verify_locations(security["ssl_cafile"])
        else:
            context.load_default_certs()
        if "ssl_certfile" in security:
            context.load_cert_chain(security["ssl_certfile"], security.get("ssl_keyfile"))
    except (ssl.SSLError, OSError) as error:
        files = ", ".join(value for name, value in security.items() if name.endswith("file"))
        raise LogError(
            f"{files} cannot be used for TLS ({error}); give PEM files that fit together"
        ) from error
    return context


def _probe_access(channel: socket.socket, host: str) -> None:
    """Send a request. Raises LogUnavailable if the listener closes the connection, as one does that
    expects a certificate or SASL."""
    where = f"{host}:{channel.getpeername()[1]}"
    try:
        _request(channel, _METADATA, struct.pack(">i", 0))
    except (OSError, EOFError, struct.error) as error:
        raise LogUnavailable(
            f"{where} does not let this client in ({error}); where it asks for a certificate, set "
            "kafka.security.certificate_file and key_file, and where it asks for SASL, "
            "kafka.security.protocol to SASL_SSL; it is tried again"
        ) from error


def _authenticate(channel: socket.socket, host: str, security: Mapping[str, str]) -> None:
    mechanism, user = security["sasl_mechanism"], security["sasl_plain_username"]
    where = f"{host}:{channel.getpeername()[1]}"
    try:
        _handshake(channel, where, mechanism)
        client = get_sasl_mechanism(mechanism)(host=host, **security)
        while not client.is_done():
            client.receive(_send_sasl_token(channel, where, client.auth_bytes(), user, mechanism))
    except (OSError, EOFError, struct.error) as error:
        raise LogUnavailable(
            f"{where} ended the connection while it asked who we are ({error}); have "
            "kafka.security.protocol and kafka.security.mechanism be those of its listener; it is "
            "tried again"
        ) from error


def _handshake(channel: socket.socket, where: str, mechanism: str) -> None:
    answer = _request(channel, _SASL_HANDSHAKE, _string(mechanism.encode()))
    code, count = struct.unpack_from(">hi", answer)
    if code == 0:
        return
    offered: list[str] = []
    at = 6
    for _ in range(count):
        (size,) = struct.unpack_from(">h", answer, at)
        offered.append(answer[at + 2 : at + 2 + size].decode())
        at += 2 + size
    raise LogReadOnly(
        f"{where} does not offer the SASL mechanism {mechanism}, but {', '.join(offered)}; set "
        "kafka.security.mechanism to one of these"
    )


def _send_sasl_token(
    channel: socket.socket, where: str, token: bytes, user: str, mechanism: str
) -> bytes:
    answer = _request(channel, _SASL_AUTHENTICATE, struct.pack(">i", len(token)) + token)
    code, size = struct.unpack_from(">hh", answer)
    at = 4 + max(0, size)
    if code:
        reason = answer[4:at].decode() or theirs.for_code(code).__name__
        raise LogReadOnly(
            f"{where} refuses user {user!r} by {mechanism} ({reason}); correct "
            "kafka.security.username and kafka.security.password, or give the broker that user"
        )
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


def _request(channel: socket.socket, key: int, body: bytes) -> bytes:
    """Send a request and return the answer's body. Raises EOFError if the broker hangs up."""
    request = struct.pack(">hhi", key, _VERSION, 0) + _string(_CLIENT) + body
    channel.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _exactly(channel, 4))
    if not 4 <= size <= _LARGEST_ANSWER:
        raise EOFError("its answer is none of Kafka's")
    return _exactly(channel, size)[4:]


def _exactly(channel: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = channel.recv(size - len(received))
        if not more:
            raise EOFError("it closed")
        received += more
    return received


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text
