"""Policies that only experiments use: the papers' literal rules, and rules of other schedulers and routers.

`registry` adds them to the policies that a fleet runs (`evenkeel_fairshare`), which engines and images ship.
"""
