"""The report: a run record in, one self-contained HTML file out. It never calls an engine."""
