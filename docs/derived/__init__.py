"""Pages of the site that are derived: from the mapping table, from docstrings, from the errors."""
