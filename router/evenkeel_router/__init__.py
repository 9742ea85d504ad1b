"""The D2LPM router: parse → identify → admit → match prefix → select → forward and stream → account."""
