"""The D2LPM router: identify → parse → admit → match prefix → select → forward and stream → account."""
