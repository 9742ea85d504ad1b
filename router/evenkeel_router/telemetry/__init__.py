"""A router's metrics, state and logs."""
