"""`evenkeel route`: a router in front of engines that exist already."""
