"""Prefixes: how prompts are cut into hashed blocks, and which replicas hold which blocks."""
