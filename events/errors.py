"""Errors of events and of the log. Each text names the wrong value and the remedy."""


class KintsugiError(Exception):
    """The root of kintsugi's own errors; its text is one sentence."""


class WrongUsage(KintsugiError):
    """A command was called with arguments that are wrong or do not fit the present state."""


class BadRecord(KintsugiError):
    """The bytes are not a valid event. The fold writes a dead letter, and so does every replay."""


class TooLarge(BadRecord):
    """A record or section exceeds its size limit, such as `streams.MAX_VALUE_BYTES`."""


class CheckpointFault(KintsugiError):
    """A model checkpoint cannot be used as configured. The environment is not the cause."""


class SchemaAhead(KintsugiError):
    """A newer kintsugi wrote this event: the fold halts until it is upgraded."""


class LogError(KintsugiError):
    """The log failed, not an event."""


class LogUnavailable(LogError):
    """Transient: a broker that is down, a lock that is held, a time-out."""


class LogFull(LogError):
    """The disk is full. The batch was not acknowledged and is not in the log."""


class LogReadOnly(LogError):
    """The process may not write to the log."""


class LogTruncated(LogError):
    """A reader needs events before the log's start, and these were deleted."""


class AheadOfLog(LogError):
    """A stored position is beyond the log's end: it is another log, or it was wiped."""


class LogDiverged(LogError):
    """The log is not the one read so far: it was replaced, or restored to an older state."""


class LogCorrupt(LogError):
    """Stored bytes do not match their checksum. They are never skipped; an operator decides."""


class BlobError(KintsugiError):
    """A content-addressed blob is missing or does not match its sha256."""


class BlobUnavailable(BlobError):
    """Transient: the folder of all blobs is absent, or its disk fails."""
