"""The edge to the cluster: reading, writing, electing."""
