"""The virtual-time driver: fleets of engines fed by traces and workloads, measured and plotted."""
