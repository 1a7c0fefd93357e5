"""What an operator is shown: status document, status page and doctor (route)."""
