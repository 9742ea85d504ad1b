"""The way of one request, step by step (DESIGN section 5); start with `pipeline`."""
