"""Engines that train the runs of a suite: this machine, several processes, Ray, Slurm."""
