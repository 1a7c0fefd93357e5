"""A real Ray of this machine, for tests: the other side of daemon/jobs/ray.py."""
