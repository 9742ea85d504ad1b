"""`evenkeel top`: the service that each client receives, and its fair share, live."""
