"""`evenkeel replay`: a trace sent to an OpenAI endpoint as real requests."""
