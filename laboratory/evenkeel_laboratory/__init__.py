"""The laboratory: experiments, the papers' tables, policies that only experiments use. No fleet runs it, and no image has it."""
