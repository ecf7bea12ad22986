"""Recipes for the study's datasets: behavior policies, rollouts, declared sizes and the pieces of a dataset."""
