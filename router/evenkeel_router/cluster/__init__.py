"""The Kubernetes API as the router reads it: replicas, peers, configuration."""
