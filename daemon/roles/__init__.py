"""Processes that `kintsugi` starts: gateway, worker, and their supervisor (route)."""
