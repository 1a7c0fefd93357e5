"""The command line: one module per noun; data on stdout, messages on stderr."""
