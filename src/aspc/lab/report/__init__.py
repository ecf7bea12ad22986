"""Reports: results on disk rendered as figures and one HTML page."""
