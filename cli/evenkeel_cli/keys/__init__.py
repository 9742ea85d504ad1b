"""`evenkeel keys`: signed API keys, which no router has in a list."""
