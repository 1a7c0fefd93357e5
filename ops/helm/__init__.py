"""The Helm chart and the programs that check it."""
