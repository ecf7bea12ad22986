"""Recipes for generating the study's datasets: behavior policies, rollouts, dataset sizes, and pieces of datasets."""
