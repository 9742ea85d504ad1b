"""Fleet policies: the choice of a replica for each request (design R2)."""
