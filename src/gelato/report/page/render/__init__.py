"""Turn the records of a report into HTML: one module for each section, and `page.py` for all."""
