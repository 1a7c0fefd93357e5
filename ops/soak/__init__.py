"""Run the whole stack for hours under load, kills and restarts, and measure what grows."""
