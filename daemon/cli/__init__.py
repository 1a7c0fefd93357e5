"""The command line: one noun per file, data on stdout, talk on stderr."""
