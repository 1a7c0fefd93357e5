"""Compare an agent's acts and words with the expected ones, by their meaning."""
