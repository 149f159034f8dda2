"""Read programs that call collectives, and move them from one dialect to the other.

The rules come from the mapping table. `program.py` finds the calls of a file, `decision.py` says
what becomes of each, and `rewrite.py` changes the source. `reach` compares what ranks make.
"""
