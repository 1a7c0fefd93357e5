"""What decides, trains and serves: its commands, and each of its packages."""
