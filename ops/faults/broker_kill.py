"""Row 9: `kill -9` of the broker, and start again on the same data, under a running shipper.

It passes under the same conditions as ops/faults/broker_flap.py. A kill loses nothing that was
acknowledged, because the page cache survives it. Other drivers check the projections.
"""

from functools import partial

from ops.command_line import run_command
from ops.faults import broker_flap

run = partial(broker_flap.run, kill_only=True)

if __name__ == "__main__":
    run_command(__doc__, run, count=20)
