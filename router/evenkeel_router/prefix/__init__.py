"""What replicas have cached of a prompt: tokens mode, and the replicas' KV events."""
