"""`evenkeel up`: a FairInferenceService as processes of this machine."""
