"""The gateway's wire protocols: requests, answers, errors, connections to engines (event)."""
