"""What may be written, and where: the contract and the log (event)."""
