"""Reports: results on disk in, figures and one page to read out. Imports no training code."""
