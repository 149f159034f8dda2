"""Programs of the pages: for each difference of the mapping table, one in either dialect.

The name of a function is that of a difference, with `_torch` or `_mindspore` at its end;
`example_torch` and `example_mindspore` are what the picture of a collective shows. Pages show the
lines of a function, and what they printed on four ranks when the page was made.
"""
