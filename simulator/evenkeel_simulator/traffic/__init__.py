"""What clients ask, and what they got: programs, traces, records of requests, and a run in numbers."""
