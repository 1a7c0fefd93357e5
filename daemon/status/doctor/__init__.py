"""The checks of `kintsugi doctor`, one module per area (route)."""
