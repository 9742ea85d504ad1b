"""What people and programs read about a router: metrics, state, logs."""
