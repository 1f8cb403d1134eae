"""Reports for other eyes than a terminal's: JUnit XML for CI, and a page with pictures."""
