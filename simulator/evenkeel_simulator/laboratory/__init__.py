"""Code for experiments and tests only: the papers' literal rules, their tables, and the theorems as functions.

No product code imports it: engines and images ship the policies that a fleet runs, `evenkeel_fairshare`. The simulator's
experiments add these to them (`policies`).
"""
