"""One file per revision, oldest first."""
