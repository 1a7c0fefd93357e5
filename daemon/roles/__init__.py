"""The processes that `kintsugi` starts: gateway, worker, and their supervisor (route)."""
