"""Errors of the contract and the log. Each names the offending value and the remedy.

KintsugiError
├── WrongUsage         a command was given what cannot be meant
├── BadRecord          the bytes cannot be an event of ours: the fold writes a dead letter
│   └── TooLarge       a record above the limit of one record
├── SchemaAhead        a newer kintsugi wrote this event: the fold halts until it is upgraded
├── LogError           something is wrong with the log, not with an event
│   ├── LogUnavailable transient: try again later
│   ├── LogFull        the disk refused an append; nothing was written
│   ├── LogReadOnly    the log may be read but not appended to
│   ├── LogTruncated   the log starts after the position asked for
│   ├── AheadOfLog     the position asked for lies beyond the end: wrong or wiped log
│   ├── LogDiverged    another record stands where the last folded one stood: a restored log
│   └── LogCorrupt     stored bytes do not match their checksum
├── CheckpointFault    a model's files are at fault, and no environment
└── BlobError          a blob is missing or its bytes do not match its name
    └── BlobUnavailable  transient: the folder of all blobs is away, or its disk errs
"""


class KintsugiError(Exception):
    """The root of every error that kintsugi raises on purpose; its text is one sentence."""


class WrongUsage(KintsugiError):
    """What a command was given names nothing that it could mean."""


class BadRecord(KintsugiError):
    """Deterministic: the same bytes fail in the same way on every replay."""


class TooLarge(BadRecord):
    """A record above `streams.MAX_VALUE_BYTES`."""


class CheckpointFault(KintsugiError):
    """A checkpoint cannot be used as it is configured. No environment is at fault."""


class SchemaAhead(KintsugiError):
    """A known event type in a version that this code does not know yet."""


class LogError(KintsugiError):
    """The log itself failed."""


class LogUnavailable(LogError):
    """Transient: a broker that is down, a lock that is held, a time-out."""


class LogFull(LogError):
    """The disk refused; the batch was not acknowledged and is not in the log."""


class LogReadOnly(LogError):
    """The process may not write to the log."""


class LogTruncated(LogError):
    """Events before the log's start are gone; skipping them silently would lose data."""


class AheadOfLog(LogError):
    """A stored position beyond the log's end: another log, or one that was wiped."""


class LogDiverged(LogError):
    """The log is not the one that was read so far: another one, or one restored from before."""


class LogCorrupt(LogError):
    """Stored bytes fail their checksum; never skipped, an operator decides."""


class BlobError(KintsugiError):
    """A content-addressed blob is missing or does not match its sha256."""


class BlobUnavailable(BlobError):
    """Transient: the folder of all blobs is away, or its disk errs."""
