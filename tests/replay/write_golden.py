"""Writes what the golden corpus lacks, and never changes what it has.

    python -m tests.replay.write_golden

For the newest version of every registered type: the stored bytes of its sample (samples.py) as
`tests/replay/golden/<Type>.v<N>.bin` with its headers beside them, and its frozen schema as
`events/schemas/<Type>.v<N>.json`; and the frozen schema of a job's spec. Run it once when a type or
a version is added; a file that was released is history. Where a version gains an optional field,
its bytes and headers are renamed to `<Type>.v<N>.1.*` (then `.2`) and stay beside the new ones.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from events.codec import encode
from events.envelope import Envelope
from events.jobs import JobSpec
from events.registry import REGISTRY
from events.rollouts import EventData
from tests.replay.samples import ARRAYS, SAMPLES
from tests.replay.schemas import plain_schema, schema_of

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = ROOT / "tests" / "replay" / "golden"
SCHEMAS: Final = ROOT / "events" / "schemas"
JOB_SPEC: Final = SCHEMAS / "JobSpec.v1.json"


def name_of(data_type: type[EventData]) -> str:
    """What the files of a type's newest version are called."""
    return f"{data_type.TYPE}.v{data_type.VERSION}"


def envelope_of(data: EventData, number: int) -> Envelope:
    """Every attribute set, the ids and times fixed."""
    return Envelope(
        id=f"01936f00-0000-7000-8000-{number:012d}",
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        cause="01936f00-0000-7000-8000-00000000ffff",
        correlation="correlation-1",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        epoch=4,
        person="person-1",
        keyid="key-1",
        extra={"x-proxy": b"proxy-1"},
    )


def write() -> list[Path]:
    """The files that were written."""
    SCHEMAS.mkdir(exist_ok=True)
    GOLDEN.mkdir(exist_ok=True)
    samples = {type(data): (number, data) for number, data in enumerate(SAMPLES, start=1)}
    written: list[Path] = []
    for data_type in REGISTRY.types.values():
        number, data = samples[data_type]
        entry = encode(envelope_of(data, number), data, 1, ARRAYS.get(data.TYPE)).entry
        headers = [[header, value.decode()] for header, value in entry.headers]
        for path, content in (
            (GOLDEN / f"{name_of(data_type)}.bin", entry.value),
            (GOLDEN / f"{name_of(data_type)}.headers.json", _text(headers)),
            (SCHEMAS / f"{name_of(data_type)}.json", _text(schema_of(data_type))),
        ):
            if not path.exists():
                path.write_bytes(content)
                written.append(path)
    if not JOB_SPEC.exists():
        JOB_SPEC.write_bytes(_text(plain_schema(JobSpec)))
        written.append(JOB_SPEC)
    return written


def _text(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


if __name__ == "__main__":
    for path in write():
        print(path.relative_to(ROOT))
