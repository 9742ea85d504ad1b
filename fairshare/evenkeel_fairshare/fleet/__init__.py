"""Fleet policies: which replica a request goes to (design R2)."""
