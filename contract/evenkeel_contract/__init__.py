"""The data that the components exchange: resources, configuration, the client key, reports, names."""
