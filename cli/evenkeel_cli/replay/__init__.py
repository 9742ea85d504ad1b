"""`evenkeel replay`: sends a trace to an OpenAI endpoint as real requests."""
