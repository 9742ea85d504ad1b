"""Both sides of the wire: the server for clients, and the connections to replicas."""
