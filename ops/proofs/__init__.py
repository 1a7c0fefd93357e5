"""Check that the tests named in the documents as proof of their claims ran and passed."""
