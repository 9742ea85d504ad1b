"""The scheduling algorithms of Evenkeel, pure: no I/O, no clock, no chance, no third-party runtime.

Everything that decides who is served lives here, and runs unchanged in the simulator, in the router and
inside SGLang. Place in the flow: whoever holds a queue or a fleet asks a policy, then tells it what
happened; the policy never looks.
"""
