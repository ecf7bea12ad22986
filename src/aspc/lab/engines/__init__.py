"""Engines that train the runs of a suite: in this process, in several processes, on Ray, or on Slurm."""
