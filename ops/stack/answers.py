"""Health check of containers: exit code 0 if a URL answers with success.

python -m ops.stack.answers http://127.0.0.1:8080/readyz
"""

import sys
from typing import Final
from urllib.request import ProxyHandler, build_opener

_SECONDS: Final = 5.0


def main() -> int:
    """Run the command line."""
    (url,) = sys.argv[1:]
    try:
        # Ignore a proxy from environment variables.
        build_opener(ProxyHandler({})).open(url, timeout=_SECONDS).close()
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
