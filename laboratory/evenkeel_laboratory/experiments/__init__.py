"""Fleets of engines in virtual time, fed by traces and workloads, measured and plotted."""
