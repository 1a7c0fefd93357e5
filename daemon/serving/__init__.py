"""Which adapter answers: the gate that lets one serve, and what watches it afterwards."""
