"""Row 9: `kill -9` of the broker, and start again on the same data, under a running shipper.

Passes as ops/faults/broker_flap.py. A kill loses nothing that was acknowledged: the page cache
belongs to the machine. What the projections make of it is another driver's.
"""

from functools import partial

from ops.command_line import run_command
from ops.faults import broker_flap

run = partial(broker_flap.run, kill_only=True)

if __name__ == "__main__":
    run_command(__doc__, run, count=20)
