"""The replicas: which exist, which are healthy, which one gets a request, and where requests wait for one."""
