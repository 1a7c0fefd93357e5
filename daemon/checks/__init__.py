"""What `kintsugi doctor` looks at: the machine, what is recorded, and the loop."""
