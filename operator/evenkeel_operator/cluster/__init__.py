"""Access to the cluster: reading, writing, leader election."""
