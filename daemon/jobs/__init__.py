"""Training runs: processes that go on after the process that started them has ended."""
