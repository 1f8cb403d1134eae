"""`python -m fp4ref`: the command line."""

from fp4ref.cli import main

main(prog_name="fp4ref")
