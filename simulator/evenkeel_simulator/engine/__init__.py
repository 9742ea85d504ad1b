"""The engine model, pure: continuous batching over a radix cache and a KV pool."""
