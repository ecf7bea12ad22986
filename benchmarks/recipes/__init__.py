"""Recipes for the study's datasets: behaviour policies, rollouts, declared sizes and the pieces of a dataset."""
