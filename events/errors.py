"""Errors of the contract and the log. Each names the offending value and the remedy."""


class KintsugiError(Exception):
    """The root of kintsugi's own errors; its text is one sentence."""


class WrongUsage(KintsugiError):
    """An argument of a command names nothing that it could mean."""


class BadRecord(KintsugiError):
    """The bytes are no event of ours: the fold writes a dead letter. Every replay fails alike."""


class TooLarge(BadRecord):
    """A record above `streams.MAX_VALUE_BYTES`."""


class CheckpointFault(KintsugiError):
    """A checkpoint cannot be used as it is configured. No environment is at fault."""


class SchemaAhead(KintsugiError):
    """A newer kintsugi wrote this event: the fold halts until it is upgraded."""


class LogError(KintsugiError):
    """The log failed, not an event."""


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
