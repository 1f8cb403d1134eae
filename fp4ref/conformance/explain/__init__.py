"""One element's way through the stages, and where two specifications differ, in words and in the smallest input."""
