"""What the documents claim, and whether the tests that they name as proof ran and passed."""
