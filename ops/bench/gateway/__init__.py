"""What the gateway costs a call, beside a public gateway and beside none."""
