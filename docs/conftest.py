"""Pages and scripts, which the tests run by themselves: pytest imports none of them, since some write files."""

collect_ignore_glob = ["*.py"]
