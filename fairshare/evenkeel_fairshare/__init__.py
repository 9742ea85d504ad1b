"""The scheduling algorithms of Evenkeel: no I/O, no clock, no randomness, no runtime dependency but `xxhash`.

They run unchanged in the simulator, in the router and inside SGLang. The owner of a queue or of a fleet asks a policy for a
decision, then reports what happened.
"""
