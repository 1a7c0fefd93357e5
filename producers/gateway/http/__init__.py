"""The gateway's HTTP side: requests, answers, errors, connections to engines (event)."""
