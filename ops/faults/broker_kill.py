"""Row 9: `kill -9` of the broker, and start again on the same data, under a running shipper.

Passes as ops/faults/broker_flap.py. A kill loses nothing that was acknowledged: the page cache
belongs to the machine. What the projections make of it is another driver's.
"""

import sys
from functools import partial

from ops.faults import broker_flap
from ops.faults.scene import report

run = partial(broker_flap.run, kill_only=True)

if __name__ == "__main__":
    sys.exit(report("broker_kill", run, 20))
