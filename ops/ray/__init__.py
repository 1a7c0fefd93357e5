"""A real Ray on this machine, for tests of daemon/jobs/ray.py."""
