"""The claims of the documents, and whether the tests that they name as proof passed."""
