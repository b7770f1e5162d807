"""The report page: a run as plain records, and the records as one HTML file.

records.py    the records of a page; `report.json` holds them
collect/      read a run into records, one module for each section
render/       write records as HTML, one module for each section
assets/       the frame of the page, its style, and the figures, which Plotly draws in the browser
write.py      `write_report`: both files
"""
