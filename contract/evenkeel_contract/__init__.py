"""What the parts of Evenkeel say to each other: resources, configuration, the client key, reports, names."""
