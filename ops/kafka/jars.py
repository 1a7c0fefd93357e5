"""The jars of Apache Kafka, resolved once by Maven into a cache folder.

    python -m ops.kafka.jars        prints the folder

The folder's name carries the hash of pom.xml. Maven writes into a temporary folder that is renamed
when it is whole, so an interrupted download leaves nothing. Only one process at a time resolves the
jars.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

from ops.command_line import print_path

POM: Final = Path(__file__).with_name("pom.xml")
CACHE_VARIABLE: Final = "KINTSUGI_KAFKA_CACHE"
RESOLVE_SECONDS: Final = 600


class BrokerUnavailable(Exception):
    """A program or the jars of a local broker are missing; the text names the remedy."""


def require(program: str, remedy: str) -> str:
    """Return a program's path. Raise BrokerUnavailable with `remedy` if it is missing."""
    path = shutil.which(program)
    if path is None:
        raise BrokerUnavailable(f"{program} is not on PATH; {remedy}")
    return path


def java() -> str:
    """Return the path of Java."""
    return require("java", "install Java 17 or newer (Debian: openjdk-17-jre-headless)")


def cache() -> Path:
    """Return the cache folder: KINTSUGI_KAFKA_CACHE, else .local/kafka beside the sources."""
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else POM.parents[2] / ".local" / "kafka"


def jars() -> Path:
    """Return the folder of the jars; let Maven fetch them if they are missing."""
    folder = cache() / f"libs-{sha256(POM.read_bytes()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    maven = require("mvn", "install Maven (Debian: maven); it is needed once, to fetch the jars")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "resolve.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _resolve(maven, folder)
    return folder


def _resolve(maven: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="resolving-") as temporary:
        libs = Path(temporary) / "libs"
        command = [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={libs}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=RESOLVE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerUnavailable(
                f"Maven did not resolve {POM.name} in {RESOLVE_SECONDS} s; check its network"
            ) from error
        if done.returncode != 0 or not any(libs.glob("kafka-server-*.jar")):
            output = (done.stdout + done.stderr).strip()[-1500:]
            raise BrokerUnavailable(
                f"Maven cannot resolve {POM.name} (exit {done.returncode}); configure a mirror in "
                f"its settings.xml, or set {CACHE_VARIABLE} to a folder that has the "
                f"jars:\n{output}"
            )
        libs.rename(folder)


if __name__ == "__main__":
    print_path(jars, BrokerUnavailable)
